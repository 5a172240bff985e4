"""Recorded runs beneath each other on one time axis: what one rank computed, and when its collectives ran."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.patches import Patch

from zerolab.collectives import Span, overlap_seconds
from zerolab.course.viz.looks import COMPUTING, MEMORY, TRAVELLING, Look
from zerolab.course.viz.picture import Picture, blank, figures, text_table
from zerolab.errors import InputError

UNITS = {"ms": 1e3, "µs": 1e6}
INCHES = 6.4
"""About as wide as the time axis is, for deciding which labels fit."""


def timelines(runs: Mapping[str, Sequence[Span]], rank: int = 0, unit: str = "ms") -> Picture:
    """A panel for each run, all on one time axis that begins at each run's own first span: above what `rank` computes,
    beneath its collectives. The title of a panel says how long the run takes.

        sizes = {"small": 1_000, "middle": 30_000, "large": 10**6}
        runs = {name: viz.watch_step(viz.StepRun(0, bucket_numel=numel))[0].spans for name, numel in sizes.items()}
        viz.timelines(runs)

    runs    by name, the spans of a run: those of `watch_step`, or `comm.tracer.spans` returned from a rank function
            that was launched with trace=True, together with the spans of a `SimulatedCompute`. The first word of a
            span's name decides how it is drawn: forward, backward, update, or the name of a collective
    unit    "ms" or "µs"

    Raises:
        InputError: no runs, an unknown unit, or a run without a span of `rank` that takes time.
    """
    if not runs:
        raise InputError("there are no runs to draw; give their spans by name")
    if unit not in UNITS:
        raise InputError(f"the unit is {unit!r}; choose ms or µs")
    moved = {name: _from_zero(name, spans, rank, UNITS[unit]) for name, spans in runs.items()}
    total = max(stop for found in moved.values() for _, _, stop in found)
    figure = blank(7.6, 0.92 * len(runs) + 0.75)
    panels = figure.subplots(len(runs), 1, sharex=True, squeeze=False)[:, 0]
    looks: dict[str, Look] = {}
    rows, said = [], []
    for axes, (name, found) in zip(panels, moved.items(), strict=True):
        for span, start, stop in found:
            look = look_of_span(span)
            looks[look.name] = look
            _bar(axes, span, start, stop, look, total)
        last = max(stop for _, _, stop in found)
        busy = {kind: [(start, stop) for span, start, stop in found if span.kind == kind] for kind in KINDS}
        computing, sending = (overlap_seconds(busy[kind], busy[kind]) for kind in KINDS)
        both = overlap_seconds(*busy.values())
        axes.set_title(f"{name}: {figures(last)} {unit}", loc="left", fontsize=10)
        axes.set_yticks([0, 1], ["computes", "sends"], fontsize=9)
        axes.set_ylim(1.5, -0.5)
        axes.axvline(last, color="black", linewidth=1)
        axes.spines[["top", "right"]].set_visible(False)
        rows.append([name, *map(figures, (last, computing, sending, both))])
        said.append(
            f"{name} takes {figures(last)} {unit}, of which {figures(both)} {unit} computing and sending at once"
        )
    panels[-1].set_xlim(0, 1.005 * total)
    panels[-1].set_xlabel(f"{unit} since the start, on rank {rank}")
    if set(looks) & {"forward", "backward", "update"}:
        looks.pop("compute", None)  # white, too, and too short to be told apart
    order = [name for name in (*COMPUTING, *TRAVELLING, OTHER) if name in looks]
    patches = [Patch(facecolor=looks[n].colour, hatch=looks[n].hatch, edgecolor="black", label=n) for n in order]
    figure.legend(handles=patches, frameon=False, loc="outside upper center", ncols=6, fontsize=9)
    table = text_table([unit, "takes", "computing", "in collectives", "both at once"], rows)
    return Picture(figure, table, f"Timelines on one axis: {'; '.join(said)}.")


KINDS = ("compute", "collective")
OTHER = "other collectives"


def look_of_span(span: Span) -> Look:
    """A collective by its name, computing by its first word."""
    word = span.name.split()[0] if span.name else ""
    if span.kind == "compute":
        return COMPUTING.get(word, COMPUTING["compute"])
    return TRAVELLING.get(word, Look(OTHER, *MEMORY["communication_buffers"][1:]))


def _from_zero(name: str, spans: Sequence[Span], rank: int, scale: float) -> list[tuple[Span, float, float]]:
    """The rank's spans that take time, with their times moved so that the first begins at 0."""
    found = [span for span in spans if span.rank == rank and span.stop > span.start]
    if not found:
        raise InputError(f"{name!r} has no span of rank {rank} that takes time; record it with trace=True and a link")
    first = min(span.start for span in found)
    return [(span, scale * (span.start - first), scale * (span.stop - first)) for span in found]


def _bar(axes: Any, span: Span, start: float, stop: float, look: Look, total: float) -> None:
    row, width = KINDS.index(span.kind), stop - start
    axes.barh(
        row, width, 0.72, left=start, color=look.colour, hatch=look.hatch, edgecolor="black", linewidth=0.5
    )  # fmt: skip
    label = span.name.partition(" ")[2]
    if label and len(label) * 7 * 0.62 / 72 < width / total * INCHES:
        ground = {"boxstyle": "round,pad=0.08", "facecolor": "white", "edgecolor": "none", "alpha": 0.9}
        axes.text(start + width / 2, row, label, ha="center", va="center", fontsize=7, bbox=ground)
