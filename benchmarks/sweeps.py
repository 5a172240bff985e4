"""Two sweeps of this machine, predicted beside measured: `python -m benchmarks.sweeps` (about twenty minutes).

    python -m benchmarks.sweeps --readme                 both, and their tables into benchmarks/README.md
    python -m benchmarks.sweeps wires --max-steps 2      one of them, only to see that it runs through

wires    stages 0 to 3, 2 and 4 ranks, three bandwidths, each link twice: as we simulate it, and as the kernel shapes
         it between network namespaces. Its pictures go to the folder's plots.
tiers    the seven configurations of guides to ZeRO (`benchmarks/tiers.yaml`), a row each

Method. They are sweeps of `zerolab sweep`, so what their folders in sweeps/ have is not run again; another folder or
none begins anew. Times are medians over the steps that no tracker slowed down, predicted for this machine as it was
calibrated before the first case of its kind, so nothing else should run. Bytes are those of the rank that has most.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from benchmarks.plan import fill_readme
from zerolab.apps.sweep import make_cases, read_file, sweep
from zerolab.apps.sweep.plots import by_stage, crossings, write_plots
from zerolab.apps.sweep.rows import DONE, Row

WIRES = {
    "zero_stage": [0, 1, 2, 3],
    "ranks": [2, 4],
    "gbit_per_s": [0.1, 0.3, 1],
    "wire": ["simulated", "shaped"],
    "max_steps": 12,
}
TIERS = Path(__file__).with_name("tiers.yaml")
PLACES = ("peak", "host", "disk", "sent")


def begin(name: str) -> str:
    """The mark in README.md above the table of a sweep."""
    return f"<!-- python -m benchmarks.sweeps {name} --readme -->"


def wires_table(rows: Sequence[Row]) -> list[str]:
    """Lines of Markdown: a row for ranks, bandwidth and wire, milliseconds by stage, errors, and where stages cross."""
    stages = sorted({row["settings"]["zero_stage"] for row in rows})
    lines = [
        f"| ranks | Gbit/s | wire | {' | '.join(f'stage {stage}' for stage in stages)} |",
        "|---:|---:|---|" + "---:|" * len(stages),
    ]
    places = {(row["settings"]["ranks"], row["settings"]["gbit_per_s"], row["settings"]["wire"]): None for row in rows}
    for ranks, gbit, wire in sorted(places):
        cells = {row["settings"]["zero_stage"]: times(row) for row in rows if place(row) == (ranks, gbit, wire)}
        lines.append(f"| {ranks} | {gbit:g} | {wire} | {' | '.join(cells.get(stage, '') for stage in stages)} |")
    lines += ["", "Milliseconds a step, predicted / measured."]
    for wire in sorted({wire for _, _, wire in places}):
        errors = sorted(abs(error_of(row)) for row in rows if place(row)[2] == wire)
        lines[-1] += f" On {wire} wires the median error is {median(errors):.0%}, the worst {errors[-1]:.0%}."
    lines[-1] += without_the_kernel(rows)
    for ranks, wire in sorted({(ranks, wire) for ranks, _, wire in places}):
        lines.append(crossing_line(ranks, wire, [row for row in rows if place(row)[::2] == (ranks, wire)]))
    return lines


def without_the_kernel(rows: Sequence[Row]) -> str:
    """How far shaped wires are from predictions that know nothing of the kernel's work, those for simulated wires."""
    by_us = {(*place(row)[:2], stage_of(row)): row for row in rows if place(row)[2] == "simulated"}
    shaped = [(row, by_us.get((*place(row)[:2], stage_of(row)))) for row in rows if place(row)[2] == "shaped"]
    errors = sorted(abs(us["step_seconds_predicted"] / row["step_seconds"] - 1) for row, us in shaped if us is not None)
    if not errors:
        return ""
    return (
        f" From what is predicted for simulated wires, shaped ones are {median(errors):.0%} off by the median, and "
        f"{errors[-1]:.0%} at worst."
    )


def stage_of(row: Row) -> int:
    return int(row["settings"]["zero_stage"])


def crossing_line(ranks: int, wire: str, rows: Sequence[Row]) -> str:
    """Where two stages are equally fast, by what was measured."""
    found = [
        f"stages {one.below} and {one.above} at {one.gbit_per_s:.2g} Gbit/s"
        for one in crossings(by_stage(rows, "tokens_per_s"))
    ]
    return f"On {ranks} ranks and {wire} wires there cross: {', '.join(found) or 'none'}."


def tiers_table(rows: Sequence[Row]) -> list[str]:
    """Lines of Markdown: a row a configuration, megabytes and milliseconds, predicted / measured."""
    lines = [
        "| stage | device at the peak | host | disk | sent a step | step, ms | / stage 0 |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        sizes = [both(row.get(f"{name}_bytes_predicted", 0), row.get(f"{name}_bytes", 0), 1e6, 2) for name in PLACES]
        ratio = row["step_seconds"] / rows[0]["step_seconds"]
        lines.append(f"| {tier_of(row)} | {' | '.join(sizes)} | {times(row)} | {ratio:.2f} |")
    same = len({row["parameters_sha256"] for row in rows}) == 1
    kept = "All rows end with the same parameters, bit for bit." if same else "The rows end with different parameters."
    return [
        *lines,
        "",
        f"MB (10^6 bytes) and milliseconds, predicted / measured, or one number where both agree. {kept}",
    ]


def tier_of(row: Row) -> str:
    """The stage, and what rests elsewhere: "3, optimizer and parameters on the disk"."""
    settings = row["settings"]
    moved = {name: settings.get(f"offload_{key}") or "device" for name, key in MOVED.items()}
    place = moved["optimizer"]
    states = " and ".join(name for name, where in moved.items() if where == place)
    return str(settings["zero_stage"]) + ("" if place == "device" else f", {states} on the {place}")


MOVED = {"optimizer": "optimizer", "parameters": "param"}


def place(row: Row) -> tuple[int, float, str]:
    settings = row["settings"]
    return settings["ranks"], settings["gbit_per_s"], settings["wire"]


def error_of(row: Row) -> float:
    return float(row["step_seconds_predicted"] / row["step_seconds"] - 1)


def times(row: Row) -> str:
    return both(row["step_seconds_predicted"], row["step_seconds"], 1e-3, 0)


def both(predicted: float, measured: float, unit: float, digits: int) -> str:
    one, other = (f"{value / unit:,.{digits}f}" for value in (predicted, measured))
    return one if one == other else f"{one} / {other}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="wires, tiers", help="which of the two; both, if none is named")
    parser.add_argument("--max-steps", type=int, default=12, help="steps of a case (12)")
    parser.add_argument("--out", type=Path, default=Path("sweeps"), help="a folder for theirs (sweeps)")
    parser.add_argument("--readme", action="store_true", help="write the tables into benchmarks/README.md, too")
    given = parser.parse_args()
    for name in given.names or ("wires", "tiers"):
        if name not in ("wires", "tiers"):
            parser.error(f"there is no sweep {name!r}; name wires or tiers")
        settings = WIRES if name == "wires" else read_file(TIERS)
        rows = sweep(make_cases({**settings, "max_steps": given.max_steps}), given.out / name).rows
        if failed := [row for row in rows if row["status"] != DONE]:
            raise SystemExit(f"{failed[0]['case']} failed: {failed[0]['error']}")
        text = "\n".join((wires_table if name == "wires" else tiers_table)(rows))
        print(text)
        if name == "wires":
            print("\n".join(map(str, write_plots(rows, given.out / name / "plots"))))
        if given.readme:
            fill_readme(begin(name), text)


if __name__ == "__main__":
    main()
