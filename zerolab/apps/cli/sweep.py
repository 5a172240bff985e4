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
from zerolab.apps.sweep import SweepCase, make_cases, read_file, sweep
from zerolab.apps.sweep.cases import CASES, MODELS, SHARED, SHORT, entries_of, varied_names
from zerolab.apps.sweep.rows import DONE, LINES, TABLE, Row, read_rows
from zerolab.errors import InputError
from zerolab.memory.kinds import OFFLOADED
from zerolab.ranks.join import is_torchrun
from zerolab.run import RunSpec

EXAMPLES = """\
every setting of zerolab train is one of a sweep, in the file and as a flag, with one value or with several:

  # bandwidth.yaml
  zero_stage: [0, 1, 2, 3]
  gbit_per_s: [none, 10, 1]
  world: lockstep
  max_steps: 4

  zerolab sweep bandwidth.yaml --stages 2,3 --out sweeps/bandwidth
"""
OWN = {
    "stages": "ZeRO stages (zero_stage)",
    "models": "sizes, as nano, or gpt2:nano (model, model_size)",
    "ranks": "how many ranks",
    "bandwidth": "links by gigabits a second (gbit_per_s); none: no link",
    "latency": "their microseconds a message (latency_us)",
    "precision": "recipes of dtypes",
    "wire": "simulated, or shaped by the kernel between network namespaces (Linux)",
    "hosts": "shaped: how many hosts the ranks are on (one a rank)",
}
"""The flags that help tells of."""
TIMES = ("ms", "tokens/s", "comm.", "hidden", "waiting")
MEGABYTES = "MB of a step, of the rank that has most: predicted / measured, or one number where these digits agree"
SIZES = ("sent", "states", "at the peak")
ELSEWHERE = tuple(place.rstrip(":") for place in OFFLOADED)
FAILED = 1


def main(arguments: list[str]) -> int:
    """Run what is left of a sweep, and show its rows. The status is 1 if a case failed."""
    given = vars(make_parser().parse_args(arguments))
    file, out, plotted, traces = (given.pop(name) for name in ("file", "out", "plot", "traces"))
    if plotted is not None:
        beside = {"FILE.yaml": file, "out": out, "traces": traces or None, **given}
        others = [name for name, value in beside.items() if value is not None]
        if others:
            raise InputError(f"--plot draws what is there and runs nothing; leave out {others[0]}")
        return plot(Path(plotted).expanduser())
    if out is None:
        raise InputError("there is no --out; name a folder for the rows")
    folder = Path(out).expanduser()
    flags = {name: split_values(value) for name, value in given.items() if value is not None}
    if is_torchrun():
        raise InputError("a sweep starts its own ranks, and torchrun has started some; call it without torchrun")
    cases = make_cases(merge({} if file is None else read_file(Path(file)), flags))
    outcome = sweep(cases, folder, traces)
    ending.print_output(render(describe(cases, outcome.rows)))
    count, failed = len(cases), len(outcome.failed)
    ending.print_output(
        f"{count} cases: {count - outcome.ran} were there, {outcome.ran} run now, {failed} failed; "
        f"{folder / LINES} and {folder / TABLE} have all figures\n"
    )
    return FAILED if failed else 0


def make_parser() -> Parser:
    parser = Parser(
        "zerolab sweep",
        "Train once for each combination of settings, and keep predicted figures beside measured ones: a row a case. "
        "What the folder has is not run again, so a sweep that was ended goes on by the same command.",
        usage="zerolab sweep [FILE.yaml] [--SETTING VALUE[,VALUE ...] ...] --out FOLDER",
        epilog=EXAMPLES,
    )
    add = parser.add_argument
    add("file", nargs="?", metavar="FILE.yaml", help="settings, each with a value or a list of values")
    add("--out", metavar="FOLDER", help="where the rows are, and go")
    add("--plot", metavar="FOLDER", help="draw the rows that are in a folder, into its folder plots, and run nothing")
    add("--traces", action="store_true", help="keep the trace of each case in the folder's traces/KEY.json")
    for name, what in OWN.items():
        add(f"--{name}", nargs="*", metavar="V", help=what)
    for name in RunSpec.model_fields.keys() - {*SHARED, *OWN}:
        add(f"--{name.replace('_', '-')}", dest=name, nargs="*", help=argparse.SUPPRESS)
    return parser


def plot(folder: Path) -> int:
    """Draw the rows of a folder, and name the files."""
    rows = read_rows(folder)
    if not any(row["status"] == DONE for row in rows):
        raise InputError(f"--plot: {str(folder)!r} has no finished row; name the --out of a sweep")
    try:
        from zerolab.apps.sweep.plots import write_plots
    except ModuleNotFoundError as error:
        raise InputError(
            f"{error.name} is not installed; 'pip install \"zerolab[course]\"' brings what pictures need"
        ) from None
    for path in write_plots(rows, folder / "plots"):
        ending.print_output(f"{path}, and its numbers in {path.with_suffix('.txt').name}\n")
    return 0


def split_values(given: Sequence[str]) -> list[str]:
    """The values of a flag, between commas or blanks; a flag alone is a switch that is on."""
    return [word for text in given for word in text.split(",") if word] or ["true"]


def merge(settings: dict[str, Any], flags: dict[str, Any]) -> dict[str, Any]:
    """The file's settings, and those of flags, which come in their place."""
    taken = {SHORT.get(name, name) for name in flags}
    if taken & MODELS:
        taken |= MODELS
    for entry in entries_of(settings[CASES]) if CASES in settings else ():
        if twice := [name for name in entry if SHORT.get(name, name) in taken]:
            name = SHORT.get(twice[0], twice[0])
            raise InputError(f"{name} is given as a flag and in the file's {CASES}; leave one of the two out")
    settings = {name: value for name, value in settings.items() if SHORT.get(name, name) not in taken}
    found = settings | flags
    if not found:
        raise InputError("a sweep has no settings; name a YAML file, or give flags such as --stages 0,1,2,3")
    return found


def describe(cases: Sequence[SweepCase], rows: Sequence[Row]) -> Iterator[str | Table]:
    """A line a case, twice: what a step took, and what it held and sent; and why a case failed."""
    names = [*varied_names(cases)]
    places = [place for place in ELSEWHERE if any(f"{place}_bytes" in row for row in rows)]
    for title, columns, cells in (
        ("times of a step; shares of it with collectives under way, of these hidden, and waiting", TIMES, times),
        (MEGABYTES, (*SIZES, *places), lambda row: sizes(row, places)),
    ):
        lines = []
        for case, row in zip(cases, rows, strict=True):
            varied = ["none" if case.varied.get(name) is None else str(case.varied[name]) for name in names]
            figures = cells(row) if row["status"] == DONE else ["failed", *[""] * (len(columns) - 1)]
            lines.append([*varied, *figures])
        yield make_table(title, "|".join([*names, *columns]), lines, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    yield from (f"{row['case']} failed: {row['error']}" for row in rows if row["status"] != DONE)


def times(row: Row) -> list[str]:
    shares = (row["communication_share"], row["overlap_share"], row["waiting_share"])
    percent = ["" if share is None else f"{share:.0%}" for share in shares]
    seconds = row["step_seconds_predicted"]
    predicted = "" if seconds is None else f"{1e3 * seconds:.4g} / "
    return [f"{predicted}{1e3 * row['step_seconds']:.4g}", f"{row['tokens_per_s']:,.0f}", *percent]


def sizes(row: Row, places: Sequence[str]) -> list[str]:
    kinds = [f"{what}_bytes" for what in ("sent", "state", "peak", *places)]
    return [pair(row.get(f"{kind}_predicted", 0), row.get(kind, 0)) for kind in kinds]


def pair(predicted: float, measured: float) -> str:
    one, other = (f"{nbytes / 1e6:.4g}" for nbytes in (predicted, measured))
    return one if one == other else f"{one} / {other}"
