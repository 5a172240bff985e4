"""When which buffer of an offloaded step is read into, computed on and written: simulated, or as it was recorded."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import isfinite
from statistics import mean
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from zerolab.collectives.observe import merge
from zerolab.course.viz.looks import PASSING as LOOKS
from zerolab.course.viz.picture import Picture, blank, figures, text_table
from zerolab.errors import InputError
from zerolab.flat.layout import check_count

MOST_BUFFERS = 4
INCHES = 6.6
"""About as wide as the time axis is, for deciding which labels fit."""


class PipelineStep(NamedTuple):
    """One of the three things that happen to a group: `kind` is read, compute or write."""

    kind: str
    group: Any
    start: float
    stop: float


def offload_pipeline(groups: int, buffers: int, read: float, compute: float, write: float, unit: str = "ms") -> Picture:
    """Groups that are each read, computed on and written, for so long, through so many buffers: a row for each buffer.
    The table sets 1 to 4 buffers beside each other, and names what holds up each."""
    parts = schedule(groups, buffers, read, compute, write)
    total, serial, bound = duration(parts), groups * (read + compute + write), least(groups, read, compute, write)
    held = bottleneck(buffers, read, compute, write)
    title = f"{buffers} buffer{'s' * (buffers > 1)}: {total:g} {unit}, held up by {held}"
    figure = draw(parts, buffers, unit)
    rows = []
    for count in sorted({*range(1, MOST_BUFFERS + 1), buffers}):
        found = duration(schedule(groups, count, read, compute, write))
        shown = " (shown)" if count == buffers else ""
        held_there = bottleneck(count, read, compute, write)
        rows.append([f"{count}{shown}", f"{found:g}", f"{serial / found:.2f}", held_there])
    head = [f"{groups} groups, buffers", unit, "times faster", "held up by"]
    above = f"one after the other {serial:g} {unit}; no number of buffers gets below {bound:g} {unit}"
    alt = f"{groups} groups are read, computed on and written through {title}; {above}."
    return Picture(figure, f"{above}\n{text_table(head, rows)}", alt, title)


def recorded_pipeline(trace: Iterable[tuple[str, Any, float, float]], buffers: int) -> Picture:
    """A real walk, as the `trace` of `zerolab.offload.lane` was told of it: (kind, group, start, stop) in seconds.
    Time begins with the first read."""
    parts = recorded(trace, buffers)
    total, busy = duration(parts), busy_by_kind(parts)
    busiest = max(busy, key=lambda kind: busy[kind])
    share = busy[busiest] / total
    title = f"{buffers} buffer{'s' * (buffers > 1)}: {total:.3g} ms, {busiest} is busy {share:.0%} of the time"
    serial = sum(part.stop - part.start for part in parts)
    rows = [[kind, f"{milliseconds:.3g}", f"{milliseconds / total:.0%}"] for kind, milliseconds in busy.items()]
    table = text_table(["", "busy, ms", "of the time"], rows)
    figure = draw(parts, buffers, "ms")
    alt = f"A recorded walk through {title}; one after the other it would take {serial:.3g} ms."
    return Picture(figure, f"one after the other {serial:.3g} ms\n{table}", alt, title)


def compared_pipelines(trace: Iterable[tuple[str, Any, float, float]], buffers: int) -> Picture:
    """A recorded walk (as for `recorded_pipeline`) above the one that the arithmetic predicts from its own mean times
    of reading, computing and writing a group; both on one time axis."""
    parts = recorded(trace, buffers)
    order = [part.group for part in parts if part.kind == "compute"]
    parts = [part for part in parts if part.group in order]
    means = [mean(part.stop - part.start for part in parts if part.kind == kind) for kind in LOOKS]
    predicted = schedule(len(order), buffers, *means)
    walks = {"recorded": parts, "predicted": predicted}
    ends = {name: duration(walk) for name, walk in walks.items()}
    used = min(buffers, len(order))
    figure = blank(7.6, 2 * (0.36 * used + 0.35) + 0.95)
    panels = figure.subplots(2, 1, sharex=True)
    for axes, (name, walk) in zip(panels, walks.items(), strict=True):
        rows_of(axes, walk, buffers, max(ends.values()))
        axes.axvline(ends[name], color="black", linewidth=1)
        axes.set_title(f"{name}: {figures(ends[name])} ms", loc="left", fontsize=10)
    panels[-1].set_xlim(0, 1.005 * max(ends.values()))
    panels[-1].set_xlabel("ms; the number in a bar is that of its group")
    legend(figure)
    each = ", ".join(f"{kind} {figures(time)}" for kind, time in zip(LOOKS, means, strict=True))
    rows = [[name, figures(end), f"{len(order) * sum(means) / end:.2f}"] for name, end in ends.items()]
    table = text_table([f"{buffers} buffers, {len(order)} groups", "ms", "times faster"], rows)
    alt = f"A recorded walk of {len(order)} groups through {buffers} buffers takes {figures(ends['recorded'])} ms; the "
    alt += f"prediction from its mean times is {figures(ends['predicted'])} ms."
    return Picture(figure, f"a group, ms: {each}\n{table}", alt)


def recorded(trace: Iterable[tuple[str, Any, float, float]], buffers: int) -> list[PipelineStep]:
    """The parts of a trace in milliseconds since its first read, in order of their starts."""
    check_count("the number of buffers", buffers)
    parts = sorted((PipelineStep(*one) for one in trace), key=lambda part: part.start)
    if unknown := {part.kind for part in parts} - set(LOOKS):
        raise InputError(f"the trace has a part {min(unknown)!r}; parts are {', '.join(LOOKS)}")
    if not any(part.kind == "compute" and part.stop > part.start for part in parts):
        raise InputError("the trace has no computation that takes time; record a walk to its end")
    first = parts[0].start
    return [
        PipelineStep(kind, group, 1e3 * (start - first), 1e3 * (stop - first)) for kind, group, start, stop in parts
    ]


def schedule(groups: int, buffers: int, read: float, compute: float, write: float) -> list[PipelineStep]:
    """What `zerolab.offload.lane` does where reads, computations and writes each come one at a time: group k uses
    buffer k mod n, and is read as soon as group k - n is written. In order of their starts."""
    check_count("the number of groups", groups)
    check_count("the number of buffers", buffers)
    for name, value in (("read", read), ("compute", compute), ("write", write)):
        if not isinstance(value, int | float) or not isfinite(value) or value < 0:
            raise InputError(f"{name} takes {value!r}; give a finite time of 0 or more")
    if not read + compute + write:
        raise InputError("nothing takes any time, so there is nothing to draw; give read, compute or write above 0")
    parts: list[PipelineStep] = []
    written: list[float] = []
    read_until = computed_until = written_until = 0.0
    for k in range(groups):
        free = written[k - buffers] if k >= buffers else 0.0
        begun = max(free, read_until)
        read_until = begun + read
        parts.append(PipelineStep("read", k, begun, read_until))
        begun = max(read_until, computed_until)
        computed_until = begun + compute
        parts.append(PipelineStep("compute", k, begun, computed_until))
        begun = max(computed_until, written_until)
        written_until = begun + write
        parts.append(PipelineStep("write", k, begun, written_until))
        written.append(written_until)
    return sorted(parts, key=lambda part: (part.start, part.stop))


def least(groups: int, read: float, compute: float, write: float) -> float:
    """The time that no number of buffers gets below: the slowest of the three is never idle, but for what must come
    before its first group and after its last."""
    return (groups - 1) * max(read, compute, write) + read + compute + write


def bottleneck(buffers: int, read: float, compute: float, write: float) -> str:
    """What sets the pace: a group comes every max(read, compute, write, (read + compute + write) / buffers)."""
    times = {"reading": read, "computing": compute, "writing": write}
    most = max(times.values())
    if sum(times.values()) / buffers > most * (1 + 1e-9):
        return "too few buffers"
    slowest = [kind for kind, time in times.items() if time == most]
    return "all three alike" if len(slowest) == len(times) else " and ".join(slowest)


def duration(parts: Sequence[PipelineStep]) -> float:
    """From 0 to the end of the last part."""
    return max(part.stop for part in parts)


def busy_by_kind(parts: Sequence[PipelineStep]) -> dict[str, float]:
    """How long at least one part of each kind was under way."""
    spans = {kind: merge((part.start, part.stop) for part in parts if part.kind == kind) for kind in LOOKS}
    return {kind: sum(stop - start for start, stop in found) for kind, found in spans.items()}


def draw(parts: Sequence[PipelineStep], buffers: int, unit: str) -> Figure:
    """A row for each buffer; a bar for each part, with the number of its group where there is room."""
    used = min(buffers, sum(part.kind == "compute" for part in parts))
    figure = blank(7.6, 0.36 * used + 1.05)
    axes = figure.add_subplot()
    rows_of(axes, parts, buffers, duration(parts))
    axes.set_xlim(0, 1.005 * duration(parts))
    axes.set_xlabel(f"{unit}; the number in a bar is that of its group")
    legend(figure)
    return figure


def rows_of(axes: Axes, parts: Sequence[PipelineStep], buffers: int, total: float) -> None:
    """The bars of a walk, on an axis that is `total` long."""
    order = [part.group for part in sorted(parts, key=lambda part: part.start) if part.kind == "compute"]
    row_of = {group: at % buffers for at, group in enumerate(order)}
    used = min(buffers, len(order))
    for part in parts:
        # A trace of a walk that failed may end with reads of groups that were never computed.
        if part.group not in row_of:
            continue
        row, width = row_of[part.group], part.stop - part.start
        _, colour, hatch = LOOKS[part.kind]
        axes.barh(row, width, 0.72, left=part.start, color=colour, hatch=hatch, edgecolor="black", linewidth=0.5)
        name = str(part.group)
        if (0.08 * len(name) + 0.08) < width / total * INCHES:
            ground = {"boxstyle": "round,pad=0.12", "facecolor": "white", "edgecolor": "none", "alpha": 0.9}
            axes.text(part.start + width / 2, row, name, ha="center", va="center", fontsize=8, bbox=ground)
    axes.set_yticks(range(used), [f"buffer {at}" for at in range(used)])
    axes.set_ylim(used - 0.5, -0.5)
    axes.spines[["top", "right"]].set_visible(False)


def legend(figure: Figure) -> None:
    patches = [
        Patch(facecolor=look.colour, hatch=look.hatch, edgecolor="black", label=look.name) for look in LOOKS.values()
    ]
    figure.legend(handles=patches, frameon=False, loc="outside upper right", ncols=3, fontsize=9)
