"""`zerolab sweep`: many runs in a row, whose settings are the product of what varies."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table

from zerolab.apps.cli import ending
from zerolab.apps.cli.parser import Parser
from zerolab.apps.cli.tables import make_table, render
from zerolab.apps.sweep.cases import (
    CASES,
    MODELS,
    SHARED,
    SHORT,
    SweepCase,
    entries_of,
    make_cases,
    read_file,
    varied_names,
)
from zerolab.apps.sweep.rows import DONE, LINES, TABLE, Row, read_rows
from zerolab.errors import InputError
from zerolab.memory.kinds import OFFLOADED
from zerolab.ranks.job import is_torchrun
from zerolab.run import RunSpec

EXAMPLES = """\
settings are those of zerolab train, with one value or several:

  # bandwidth.yaml
  zero_stage: [0, 1, 2, 3]
  gbit_per_s: [none, 10, 1]
  world: lockstep
  max_steps: 4

  zerolab sweep bandwidth.yaml --stages 2,3 --out sweeps/bandwidth
"""
OWN = {
    "stages": "ZeRO stages (zero_stage)",
    "models": "sizes, as nano, or gpt2:nano",
    "ranks": "how many ranks",
    "bandwidth": "gigabits a second of a link; none: no link",
    "latency": "its microseconds a message",
    "precision": "recipes of dtypes",
    "wire": "simulated, or shaped by the kernel (Linux)",
    "hosts": "shaped: how many hosts there are; none: one a rank",
}
"""The flags that help tells of."""
TIMES = ("ms", "tokens/s", "comm.", "hidden", "waiting")
MEGABYTES = "MB of a step, of the rank that has most: predicted / measured"
SIZES = ("sent", "states", "at the peak")
ELSEWHERE = tuple(place.rstrip(":") for place in OFFLOADED)


def main(arguments: list[str]) -> int:
    """Run what is left of a sweep, and show its rows."""
    given = vars(make_parser().parse_args(arguments))
    file, out, plotted, traces = (given.pop(name) for name in ("file", "out", "plot", "traces"))
    if plotted is not None:
        for name, value in {"FILE.yaml": file, "out": out, "traces": traces or None, **given}.items():
            if value is not None:
                raise InputError(f"--plot draws what is there and runs nothing; leave out {name}")
        return plot(Path(plotted).expanduser())
    if out is None:
        raise InputError("there is no --out; name a folder for the rows")
    folder = Path(out).expanduser()
    flags = {name: split_values(value) for name, value in given.items() if value is not None}
    if is_torchrun():
        raise InputError("a sweep starts its own ranks, and torchrun has started some")
    cases = make_cases(merge({} if file is None else read_file(Path(file)), flags))
    # All of the rest takes torch.
    from zerolab.apps.sweep.run import sweep

    outcome = sweep(cases, folder, traces)
    ending.print_output(render(describe(cases, outcome.rows)))
    there = len(cases) - outcome.ran
    counts = f"{there} were there, {outcome.ran} run now, {len(outcome.failed)} failed"
    files = f"{folder / LINES} and {folder / TABLE}"
    ending.print_output(f"{len(cases)} cases: {counts}; {files} have all figures\n")
    return 1 if outcome.failed else 0


def make_parser() -> Parser:
    parser = Parser(
        "zerolab sweep",
        "Train once for each combination of settings. What the folder has is not run again.",
        usage="zerolab sweep [FILE.yaml] [--SETTING VALUE[,VALUE ...] ...] --out FOLDER",
        epilog=EXAMPLES,
    )
    add = parser.add_argument
    add("file", nargs="?", metavar="FILE.yaml", help="settings, each with a value or some")
    add("--out", metavar="FOLDER", help="where the rows are, and go")
    add("--plot", metavar="FOLDER", help="draw a folder's rows")
    add("--traces", action="store_true", help="keep the trace of each case, too")
    for name, what in OWN.items():
        add(f"--{name}", nargs="*", metavar="V", help=what)
    for name in RunSpec.model_fields.keys() - {*SHARED, *OWN}:
        add(f"--{name.replace('_', '-')}", dest=name, nargs="*", help=argparse.SUPPRESS)
    return parser


def plot(folder: Path) -> int:
    rows = read_rows(folder)
    if not any(row["status"] == DONE for row in rows):
        raise InputError(f"--plot: {str(folder)!r} has no finished row; name the --out of a sweep")
    # What pictures need comes with the course.
    from zerolab.apps.sweep.plots import write_plots

    for path in write_plots(rows, folder / "plots"):
        ending.print_output(f"{path}, and its numbers in {path.with_suffix('.txt').name}\n")
    return 0


def split_values(given: Sequence[str]) -> list[str]:
    """The values of a flag, between commas or blanks; one alone is switched on."""
    return [word for text in given for word in text.split(",") if word] or ["true"]


def merge(settings: dict[str, Any], flags: dict[str, Any]) -> dict[str, Any]:
    """The file's settings, and those of flags, which come in their place."""
    asked = {SHORT.get(name, name) for name in flags}
    if asked & MODELS:
        asked |= MODELS
    for entry in entries_of(settings[CASES]) if CASES in settings else ():
        for name in entry:
            own = SHORT.get(name, name)
            if own in asked:
                where = f"as a flag and in the file's {CASES}"
                raise InputError(f"{own} is given {where}; leave one of the two out")
    kept = {name: value for name, value in settings.items() if SHORT.get(name, name) not in asked}
    if not kept | flags:
        raise InputError("a sweep has no settings; name a YAML file, or give flags")
    return kept | flags


def describe(cases: Sequence[SweepCase], rows: Sequence[Row]) -> Iterator[str | Table]:
    """What a step took, and what it held and sent, a line a case; and why one failed."""
    names = list(varied_names(cases))
    places = [place for place in ELSEWHERE if any(f"{place}_bytes" in row for row in rows)]
    shares = "shares of it with collectives under way, of these hidden, and waiting"
    for title, columns, cells in (
        (f"times of a step; {shares}", TIMES, format_times),
        (MEGABYTES, (*SIZES, *places), lambda row: format_sizes(row, places)),
    ):
        lines = []
        for case, row in zip(cases, rows, strict=True):
            varied = [case.varied.get(name) for name in names]
            line = ["none" if value is None else str(value) for value in varied]
            line += cells(row) if row["status"] == DONE else ["failed"]
            lines.append(line + [""] * (len(names) + len(columns) - len(line)))
        look: Any = {"box": box.SIMPLE_HEAD, "padding": (0, 1, 0, 0)}
        yield make_table(title, "|".join([*names, *columns]), lines, **look)
    yield from (f"{row['case']} failed: {row['error']}" for row in rows if row["status"] != DONE)


def format_times(row: Row) -> list[str]:
    shares = (row["communication_share"], row["overlap_share"], row["waiting_share"])
    percent = ["" if share is None else f"{share:.0%}" for share in shares]
    seconds = row["step_seconds_predicted"]
    spread = f" ± {row['machine_spread']:.0%}" if row.get("machine_spread") else ""
    predicted = "" if seconds is None else f"{1e3 * seconds:.4g}{spread} / "
    return [f"{predicted}{1e3 * row['step_seconds']:.4g}", f"{row['tokens_per_s']:,.0f}", *percent]


def format_sizes(row: Row, places: Sequence[str]) -> list[str]:
    cells = []
    for what in ("sent", "state", "peak", *places):
        names = (f"{what}_bytes_predicted", f"{what}_bytes")
        both = dict.fromkeys(f"{row.get(name, 0) / 1e6:.4g}" for name in names)
        cells.append(" / ".join(both))
    return cells
