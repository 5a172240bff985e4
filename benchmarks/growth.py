"""How a step's time and bytes grow with parameters, units and ranks.

    python -m benchmarks.growth parameters --pictures benchmarks      1 to 105 million on 2 ranks; 4 to 256 units
    python -m benchmarks.growth ranks --pictures benchmarks           1 to 8 real ones, 8 to 4,096 in a virtual world

Method. The model is the stack of `benchmarks.peers`, 32 rows a rank. For *parameters* its 8 blocks grow in width; for
*units* 256 small blocks are joined into fewer or more units, so that all computing stays what it is; for *ranks* it is
the one of that benchmark. In each round every point comes once: each of zerolab's stages, and the parts of its floor
(computing, the update, a copy), in processes of its own, which make three steps to warm up, then `--steps` timed ones.
A step lasts as long as on its slowest rank, the median of the steps is the round's figure, and tables give the median
over the rounds, with the smallest and largest. A line is fitted by least squares to relative errors, so that small
models count as much as large ones; beside each time stands how far the point is from it. Ratios are to stages' floors.

Bytes are counted in launches of their own, on rank 0: what it sends in a step, as a ring would, and live storages at
the highest moment of the first two steps. They are the same in each round.

A virtual world runs one rank, whatever their number, on tensors without values, each in a process of its own. Its own
cost is what that one rank takes here: seconds of a step that no tracker watches, and private memory by which the
process has grown. Its clock has a link of 100 Gbit/s and 5 us, and 50 GFLOP/s and 10 GB/s for computing.

`--json FILE` keeps every measurement, and a later run goes on from there: three runs with `--rounds 1` are one with
`--rounds 3`, and one with `--rounds 0` only prints and draws.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from tqdm import tqdm

from benchmarks.peers.contenders import OURS, PARTS, STAGES, adamw
from benchmarks.peers.measure import held_bytes, timed
from benchmarks.peers.report import Case, machine
from benchmarks.peers.workload import BLOCKS, WIDTH, stack
from zerolab.collectives import Collectives, Link
from zerolab.course.viz.looks import COLOURS, ink
from zerolab.flat.views import values_here
from zerolab.memory import Tracker
from zerolab.ranks import SimulatedCompute, launch
from zerolab.zero import ZeroEngine
from zerolab.zero.zero_engine import engine_labels

ROWS = 32
WIDTHS = (128, 224, 400, 704, 1280)
UNITS = (4, 16, 64, 256)
RANKS = (1, 2, 4, 8)
VIRTUAL = (8, 32, 128, 512, 2048, 4096)
LINK = Link(100, 5)
SWEEPS = {"parameters": ("parameters", "units"), "ranks": ("ranks", "virtual")}


@dataclass
class Point(Case):
    """A place on a chart."""

    sweep: str = ""
    shape: tuple[int, ...] = (WIDTH, BLOCKS, 1)
    """Width, units, and blocks of a unit."""
    counted: dict[str, Any] = field(default_factory=dict)
    """By stage: bytes that rank 0 sends and holds; of a virtual world also lists of seconds and bytes, by round."""

    @property
    def x(self) -> int:
        width, units, blocks = self.shape
        parameters = units * blocks * (8 * width * width + 7 * width)
        return {"parameters": parameters, "units": units}.get(self.sweep, self.ranks)

    def each(self, stage: int) -> list[float]:
        """Milliseconds of a step by round; in a virtual world, of simulating one."""
        virtual = self.sweep == "virtual"
        seconds = self.counted[str(stage)]["seconds"] if virtual else self.rounds(f"zerolab {stage}")
        return [1e3 * value for value in seconds]

    def over_floor(self, stage: int) -> float:
        pairs = zip(self.rounds(f"zerolab {stage}"), self.floor(stage), strict=True)
        return median(step / floor for step, floor in pairs)


POINTS = {
    "parameters": [{"ranks": 2, "shape": (width, BLOCKS, 1)} for width in WIDTHS],
    "units": [{"ranks": 2, "shape": (32, units, 256 // units)} for units in UNITS],
    "ranks": [{"ranks": ranks} for ranks in RANKS],
    "virtual": [{"ranks": ranks} for ranks in VIRTUAL],
}


def points_of(sweep: str) -> list[Point]:
    return [Point("stack", ROWS, sweep=sweep, **place) for place in POINTS[sweep]]


def measure(points: Sequence[Point], steps: int) -> None:
    """A round: every point once. Bytes are counted in the first; for units they hardly differ."""
    for point in tqdm(points, desc=points[0].sweep, file=sys.stderr):
        for name in {"units": OURS, "virtual": ()}.get(point.sweep, (*OURS, *PARTS)):
            work = (point.workload, point.rows, *point.shape)
            by_rank = start(timed, work, name, steps, ranks=point.ranks, collectives="transport")
            slowest = [max(rank["seconds"][at] for rank in by_rank) for at in range(steps)]
            point.seconds.setdefault(name, []).append(slowest)
        for stage in map(str, STAGES):
            if point.sweep == "virtual":
                (found,) = start(simulate, point.shape, stage, point.ranks, ranks=1)
                row = point.counted.setdefault(stage, {**found, "seconds": [], "held": []})
                row["seconds"].append(found["seconds"])
                row["held"].append(found["held"])
            elif point.sweep != "units" and stage not in point.counted:
                point.counted[stage] = start(count, point.shape, stage, ranks=point.ranks)[0]


def start(fn: Callable[..., Any], *args: Any, **options: Any) -> Any:
    return launch(fn, *args, **options, device="cpu", timeout=300, prints="quiet")


def count(comm: Collectives, shape: Sequence[int], stage: str, steps: int = 1) -> dict[str, Any]:
    """Two steps under a tracker, and others without; what this rank sends in each, and holds at the highest moment."""
    assert comm.meter is not None
    work, seconds, clock = stack(ROWS, *shape), [], comm.transport.now
    with nullcontext() if values_here() else SimulatedCompute(comm, gflop_per_s=50, gbyte_per_s=10):
        engine = ZeroEngine(work.model(), comm, int(stage), optimizer=adamw)
        tracker = Tracker(engine_labels(engine), samples=False)
        for at in range(2 + steps):
            batch = work.batch(at, comm.rank)
            comm.meter.reset()
            began, before = time.perf_counter(), clock()
            with tracker if at < 2 else nullcontext():
                engine.backward(engine(*batch))
                engine.step()
                engine.synchronize()
            seconds.append(time.perf_counter() - began)
        sent, peak = sum(comm.meter.bytes_by_collective().values()), sum(tracker.peak.values())
        return {"sent": sent, "peak": peak, "clock": clock() - before, "seconds": median(seconds[2:])}


def simulate(_: Any, shape: Sequence[int], stage: str, ranks: int) -> dict[str, Any]:
    """`count` on rank 0 of a virtual world, and the memory by which this process has grown meanwhile."""
    launch(count, (8, 2, 1), stage, ranks=2, world="virtual", link=LINK)  # what a first use imports does not count
    before = held_bytes(os.getpid())
    (found,) = launch(count, shape, stage, 5, ranks=ranks, world="virtual", link=LINK)
    return {**found, "held": held_bytes(os.getpid()) - before}


def fit(x: Sequence[float], y: Sequence[float]) -> tuple[float, float]:
    """Slope and start of a line, by least squares of relative errors."""
    slope, begin = np.polyfit(x, y, 1, w=1 / np.asarray(y))
    return float(slope), float(begin)


def times_of(points: Sequence[Point], stage: int) -> tuple[list[int], list[float]]:
    return [point.x for point in points], [median(point.each(stage)) for point in points]


def table(points: Sequence[Point]) -> str:
    """Markdown: milliseconds by point and stage and how far each is from the stage's line; then ratios and bytes."""
    sweep = points[0].sweep
    lines = [f"\n### {sweep}"]

    def add(what: str, cell: Callable[[Point, int], str]) -> None:
        titles = [sweep, *(f"stage {stage}, {what}" for stage in STAGES)]
        lines.extend(["", f"| {' | '.join(titles)} |", "|--:" * len(titles) + "|"])
        lines.extend(f"| {point.x:,} | {' | '.join(cell(point, stage) for stage in STAGES)} |" for point in points)

    def time_cell(point: Point, stage: int) -> str:
        slope, begin = fit(*times_of(points, stage))
        here = median(point.each(stage))
        off = here / (begin + slope * point.x) - 1
        return f"{here:.1f} ({min(point.each(stage)):.1f} to {max(point.each(stage)):.1f}), {off:+.0%}"

    def of_bytes(kind: str, scale: float) -> Callable[[Point, int], str]:
        return lambda point, stage: f"{np.median(point.counted[str(stage)][kind]) / scale:,.2f}"

    add("ms", time_cell)
    scale, unit = (1e6, "ns") if sweep == "parameters" else (1e3, "us")
    fits = [fit(*times_of(points, stage)) for stage in STAGES]
    lines.append(
        f"| line | {' | '.join(f'{begin:.1f} ms + {scale * slope:.3g} {unit} each' for slope, begin in fits)} |"
    )
    if "copy" in points[0].seconds:
        add("/ floor", lambda point, stage: f"{point.over_floor(stage):.2f}")
    if points[0].counted:
        add("MB sent", of_bytes("sent", 1e6))
        add("MB at the peak", of_bytes("peak", 1e6))
    if sweep == "virtual":
        add("ms on its clock", of_bytes("clock", 1e-3))
        add("MB held here", of_bytes("held", 1e6))
    return "\n".join(lines)


def draw(sweeps: Sequence[Sequence[Point]]) -> Figure:
    """Four panels: times of both sweeps, ratios of the first to the floor, and bytes."""
    figure = Figure(figsize=(9, 6.4), layout="constrained")
    (panel_one, panel_two), (panel_ratio, panel_bytes) = figure.subplots(2, 2)
    first, second = sweeps
    for stage in STAGES:
        look = {"color": ink(COLOURS[stage]), "marker": "os^D"[stage], "markersize": 4, "linewidth": 1}
        for axes, points in ((panel_one, first), (panel_two, second)):
            x, times = times_of(points, stage)
            axes.plot(x, times, label=f"stage {stage}", **{**look, "linewidth": 0})
            slope, begin = fit(x, times)
            axes.plot(x, [begin + slope * at for at in x], color=look["color"], linewidth=1)
        panel_ratio.plot([point.x for point in first], [point.over_floor(stage) for point in first], **look)
        for kind, style in (("sent", "-"), ("peak", ":")):
            # One rank sends nothing.
            shown = [point for point in [*first, *second] if point.sweep != "units" and point.counted["0"][kind]]
            sizes = [point.counted[str(stage)][kind] / 1e6 for point in shown]
            panel_bytes.plot([point.x for point in shown], sizes, linestyle=style, **look)
    virtual = second[0].sweep == "virtual"
    named = {
        panel_one: (first[0].sweep, "a step, ms, and the line through all points"),
        panel_two: (second[0].sweep, "a step of one rank, simulated, ms" if virtual else "a step, ms"),
        panel_ratio: (first[0].sweep, "a step / its floor"),
        panel_bytes: ("ranks" if virtual else "parameters", "MB a rank: sent in a step (lines), at the peak (dotted)"),
    }
    for axes, (name, title) in named.items():
        axes.set_xlabel({"virtual": "ranks of a virtual world", "ranks": "ranks"}.get(name, f"{name}, 2 ranks"))
        axes.set_title(title, fontsize=10, loc="left")
        axes.set_xscale("linear" if name in ("units", "ranks") and axes is not panel_bytes else "log")
        axes.set_yscale("log" if axes is panel_bytes or (name == "parameters" and axes is panel_one) else "linear")
        axes.spines[["top", "right"]].set_visible(False)
    for axes in (panel_two, panel_ratio):
        axes.set_ylim(0)
    panel_one.legend(frameon=False)
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("chart", nargs="?", choices=list(SWEEPS), help="default: both")
    parser.add_argument("--only", choices=list(POINTS), help="measure one half of a chart")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--smallest", action="store_true", help="two points of each sweep, to see that it runs")
    parser.add_argument("--json", type=Path, help="go on from the measurements in this file, and write all to it")
    parser.add_argument("--pictures", type=Path, help="draw a PNG for each chart into this folder")
    options = parser.parse_args()
    done = json.loads(options.json.read_text()) if options.json and options.json.exists() else {}
    swept = {sweep: [Point(**point) for point in points] for sweep, points in done.items()}
    for sweep in (sweep for chart in ([options.chart] if options.chart else SWEEPS) for sweep in SWEEPS[chart]):
        if options.only in (None, sweep):
            points = swept.setdefault(sweep, points_of(sweep)[: 2 if options.smallest else None])
            for _ in range(options.rounds):
                measure(points, options.steps)
                if options.json:
                    found = {name: [vars(point) for point in of_sweep] for name, of_sweep in swept.items()}
                    options.json.write_text(json.dumps(found))
            print(table(points), flush=True)
    print(machine(options.rounds, options.steps))
    for chart, sweeps in SWEEPS.items():
        if options.pictures and options.chart in (None, chart):
            figure = draw([swept[sweep] for sweep in sweeps])
            figure.savefig(
                options.pictures / f"growth_{chart}.png", dpi=100, facecolor="white", metadata={"Software": None}
            )


if __name__ == "__main__":
    main()
