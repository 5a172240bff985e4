"""A rank timeline above a memory skyline: who is at what, and what memory holds meanwhile, on one time axis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from matplotlib.patches import Patch

from zerolab.collectives import Span
from zerolab.course.viz.looks import COMPUTING, MEMORY, TRAVELLING, named
from zerolab.course.viz.picture import Picture, blank, text_table
from zerolab.course.viz.step import StepOfRank, StepRun, watch_step
from zerolab.memory import KINDS, Sample
from zerolab.zero.table import STAGES

LOOKS = {name: look for name, look in {**COMPUTING, **TRAVELLING}.items() if name != "compute"}
INCHES = 6.6
"""About as wide as the time axis is, for deciding which labels fit."""


def step_skyline(run: StepRun | None = None) -> Picture:
    """A step of a small model with these settings (`step.py`), as it ran; the table sets all four stages beside it."""
    run = run or StepRun()
    found = ran(run)
    said = headline(run, found[0])
    alt = f"One training step as it ran: {said.replace(chr(10), '; ')}; it takes {1e6 * found[0].seconds:,.0f} µs."
    return Picture(draw_step(found).figure, stages_table(run), alt, said)


def ran(run: StepRun) -> tuple[StepOfRank, ...]:
    """The step of these settings. Only stage 3 gathers ahead: below it one run, which is remembered, serves both."""
    return watch_step(replace(run, prefetch=run.prefetch or run.stage < 3))


def headline(run: StepRun, rank: StepOfRank) -> str:
    """A line of settings, and one for the peak by its name."""
    ranks = f"{run.ranks} rank{'s' * (run.ranks > 1)}"
    ahead = "with prefetch" if run.prefetch else "without prefetch"
    return f"stage {run.stage}, {ranks}, {run.gbit_per_s:g} Gbit/s, {run.latency_us:g} µs, {ahead}\n{peak_name(rank)}"


def peak_name(rank: StepOfRank) -> str:
    """Such as "peak 2,114 kB in backward blocks.1, the largest part gradient buffers"."""
    kind = max(KINDS, key=lambda kind: rank.peak.bytes.get(kind, 0))
    return f"peak {rank.peak.total / 1e3:,.0f} kB in {rank.peak_at}, the largest part {named(kind)}"


def stages_table(run: StepRun) -> str:
    """Rank 0 of a step at each stage: bytes by kind at the peak, and times."""
    ranks = [ran(replace(run, stage=stage))[0] for stage in STAGES]
    kinds = [kind for kind in KINDS if any(rank.peak.bytes.get(kind) for rank in ranks)]
    rows = [[named(kind), *(f"{rank.peak.bytes.get(kind, 0) / 1e3:,.1f}" for rank in ranks)] for kind in kinds]
    rows += [
        ["peak, kB", *(f"{rank.peak.total / 1e3:,.1f}" for rank in ranks)],
        ["step, µs", *(f"{1e6 * rank.seconds:,.0f}" for rank in ranks)],
        ["computing, µs", *(f"{1e6 * rank.busy_seconds('compute'):,.0f}" for rank in ranks)],
        ["in collectives, µs", *(f"{1e6 * rank.busy_seconds('collective'):,.0f}" for rank in ranks)],
        ["both at once, µs", *(f"{1e6 * rank.overlapped:,.0f}" for rank in ranks)],
    ]
    heads = [f"stage {stage}{' (shown)' if stage == run.stage else ''}" for stage in STAGES]
    return text_table(["at the peak, kB", *heads], rows)


def draw_step(found: Sequence[StepOfRank]) -> Picture:
    """Ranks' spans above the memory of rank 0. The table says what rank 0's peak consists of."""
    stop = max(rank.seconds for rank in found) * 1e6
    rows = 0.36 * len(found)
    figure = blank(7.8, rows + 3.7)
    above, below = figure.subplots(2, 1, sharex=True, gridspec_kw={"height_ratios": [rows + 0.2, 2.5]})
    shown = [span for rank in found for span in rank.spans if kind_of(span) in LOOKS and span.stop > span.start]
    for span in shown:
        _bar(above, span, stop)
    above.set_yticks(range(len(found)), [f"rank {rank}" for rank in range(len(found))])
    above.set_ylim(len(found) - 0.5, -0.5)
    used = [name for name in LOOKS if any(kind_of(span) == name for span in shown)]
    patches = [Patch(facecolor=LOOKS[n].colour, hatch=LOOKS[n].hatch, edgecolor="black", label=n) for n in used]
    above.legend(handles=patches, ncols=6, frameon=False, fontsize=8, loc="lower center", bbox_to_anchor=(0.5, 1.0))
    _skyline(below, found[0].course, stop)
    _name_peak(below, found[0], stop)
    below.set_xlim(0, stop)
    below.set_xlabel("microseconds on the virtual clock; above: computing, and beneath it collectives", fontsize=9)
    below.set_ylabel("kB on rank 0", fontsize=9)
    for axes in (above, below):
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=9)
    rows_of_table = [[named(kind), f"{size:,}"] for kind, size in found[0].peak.bytes.items() if size]
    alt = f"What {len(found)} ranks compute and send in a step, above the memory of rank 0: {peak_name(found[0])}."
    return Picture(figure, text_table([peak_name(found[0]), "bytes"], rows_of_table), alt)


def kind_of(span: Span) -> str:
    """What a span is drawn as: a collective by its name, computing by its first word."""
    return span.name.split()[0]


def _bar(axes: Any, span: Span, stop: float) -> None:
    _, colour, hatch = LOOKS[kind_of(span)]
    start, width = 1e6 * span.start, 1e6 * span.seconds
    computes = span.kind == "compute"
    # Computing in the upper half of a rank's row, collectives in the lower.
    middle = span.rank + (-0.21 if computes else 0.21)
    axes.barh(middle, width, 0.38, left=start, color=colour, hatch=hatch, edgecolor="black", linewidth=0.5)
    label = span.name.partition(" ")[2]
    if computes and label and _fits(label, width / stop):
        ground = {"boxstyle": "round,pad=0.08", "facecolor": "white", "edgecolor": "none", "alpha": 0.9}
        axes.text(start + width / 2, middle, label, ha="center", va="center", fontsize=7, bbox=ground)


def _fits(label: str, share: float) -> bool:
    return len(label) * 7 * 0.62 / 72 < share * INCHES


def _skyline(axes: Any, course: Sequence[Sample], stop: float) -> None:
    """Live bytes by kind, stacked, each named where it has room."""
    times = np.array([1e6 * sample.time for sample in course] + [stop])
    kinds = [kind for kind in KINDS if any(sample.bytes.get(kind) for sample in course)]
    live = np.array([[sample.bytes.get(kind, 0) / 1e3 for sample in course] for kind in kinds])
    live = np.concatenate([live, live[:, -1:]], axis=1)
    tops = np.cumsum(live, axis=0)
    most = tops[-1].max()
    patches = []
    for number, kind in enumerate(kinds):
        name, colour, hatch = MEMORY[kind]
        bottom = tops[number] - live[number]
        axes.fill_between(
            times, bottom, tops[number], step="post", facecolor=colour, hatch=hatch, edgecolor=(0, 0, 0, 0.45),
            linewidth=0.3,
        )  # fmt: skip
        patches.append(Patch(facecolor=colour, hatch=hatch, edgecolor="black", label=name))
        _name(axes, name, times, bottom, tops[number], stop, most)
    axes.legend(
        handles=patches, ncols=4, frameon=False, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.17)
    )  # fmt: skip
    axes.set_ylim(0, 1.3 * most)


def _name(axes: Any, kind: str, times: Any, bottom: Any, top: Any, stop: float, most: float) -> None:
    """Write a kind into its layer, at the place where it is highest over the whole width of the word."""
    half = len(kind) * 8 * 0.62 / 72 / INCHES * stop / 2
    best = (0.0, 0.0, 0.0)
    for middle in np.linspace(half, stop - half, 60):
        # The level in force when the window opens counts, too.
        first = max(int(np.searchsorted(times, middle - half, side="right")) - 1, 0)
        last = int(np.searchsorted(times, middle + half))
        low, high = bottom[first:last].max(), top[first:last].min()
        best = max(best, (high - low, float(middle), (low + high) / 2))
    room, middle, height = best
    if room > 0.06 * most:
        ground = {"boxstyle": "round,pad=0.1", "facecolor": "white", "edgecolor": "none", "alpha": 0.9}
        axes.text(middle, height, kind, ha="center", va="center", fontsize=8, bbox=ground)


def _name_peak(axes: Any, rank: StepOfRank, stop: float) -> None:
    """A mark on the peak, with its size, place and largest part."""
    at, height = 1e6 * rank.peak.time, rank.peak.total / 1e3
    side = "left" if at < 0.3 * stop else "right" if at > 0.7 * stop else "center"
    axes.vlines(at, 0, height, color="black", linewidth=0.8, linestyle=":")
    axes.annotate(
        _in_two_lines(peak_name(rank)),
        (at, height), xytext=(at, 1.1 * height), ha=side, va="bottom", fontsize=9,
        arrowprops={"arrowstyle": "-|>", "color": "black", "shrinkB": 0},
    )  # fmt: skip
    axes.plot([at], [height], "o", color="black", markersize=4)


def _in_two_lines(name: str) -> str:
    first, _, second = name.rpartition(", ")
    return f"{first},\n{second}"
