"""When which buffer of an offloaded step is read into, computed on and written: simulated, or as it was recorded."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import isfinite
from typing import Any, NamedTuple

from matplotlib.patches import Patch

from zerolab.collectives.tracer import merge
from zerolab.errors import InputError
from zerolab.flat.layout import check_count
from zerolab.viz.picture import COLOURS, HATCHES, Picture, blank, text_table

MOST_BUFFERS = 4
LOOKS = {"read": (COLOURS[0], HATCHES[0]), "compute": (COLOURS[1], HATCHES[1]), "write": (COLOURS[2], HATCHES[2])}
INCHES = 6.6
"""About as wide as the time axis is, for deciding which labels fit."""


class Part(NamedTuple):
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
    figure = draw(parts, buffers, title, unit)
    rows = []
    for count in sorted({*range(1, MOST_BUFFERS + 1), buffers}):
        found = duration(schedule(groups, count, read, compute, write))
        shown = " (shown)" if count == buffers else ""
        held_there = bottleneck(count, read, compute, write)
        rows.append([f"{count}{shown}", f"{found:g}", f"{serial / found:.2f}", held_there])
    head = [f"{groups} groups, buffers", unit, "times faster", "held up by"]
    above = f"one after the other {serial:g} {unit}; no number of buffers gets below {bound:g} {unit}"
    return Picture(figure, f"{title}\n{above}\n{text_table(head, rows)}")


def recorded_pipeline(trace: Iterable[tuple[str, Any, float, float]], buffers: int) -> Picture:
    """A real walk, as the `trace` of `zerolab.offload.pipeline` was told of it: (kind, group, start, stop) in seconds.
    Time begins with the first read."""
    check_count("the number of buffers", buffers)
    parts = [Part(*one) for one in trace]
    if unknown := {part.kind for part in parts} - set(LOOKS):
        raise InputError(f"the trace has a part {min(unknown)!r}; parts are {', '.join(LOOKS)}")
    if not any(part.kind == "compute" and part.stop > part.start for part in parts):
        raise InputError("the trace has no computation that takes time; record a walk to its end")
    first = min(part.start for part in parts)
    parts = [Part(kind, group, 1e3 * (start - first), 1e3 * (stop - first)) for kind, group, start, stop in parts]
    total, busy = duration(parts), busy_by_kind(parts)
    busiest = max(busy, key=lambda kind: busy[kind])
    share = busy[busiest] / total
    title = f"{buffers} buffer{'s' * (buffers > 1)}: {total:.3g} ms, {busiest} is busy {share:.0%} of the time"
    serial = sum(part.stop - part.start for part in parts)
    rows = [[kind, f"{milliseconds:.3g}", f"{milliseconds / total:.0%}"] for kind, milliseconds in busy.items()]
    table = text_table(["", "busy, ms", "of the time"], rows)
    figure = draw(parts, buffers, title, "ms")
    return Picture(figure, f"{title}\none after the other {serial:.3g} ms\n{table}")


def schedule(groups: int, buffers: int, read: float, compute: float, write: float) -> list[Part]:
    """What `zerolab.offload.pipeline` does where reads, computations and writes each come one at a time: group k uses
    buffer k mod n, and is read as soon as group k - n is written. In order of their starts."""
    check_count("the number of groups", groups)
    check_count("the number of buffers", buffers)
    for name, value in (("read", read), ("compute", compute), ("write", write)):
        if not isinstance(value, int | float) or not isfinite(value) or value < 0:
            raise InputError(f"{name} takes {value!r}; give a finite time of 0 or more")
    if not read + compute + write:
        raise InputError("nothing takes any time, so there is nothing to draw; give read, compute or write above 0")
    parts: list[Part] = []
    written: list[float] = []
    read_until = computed_until = written_until = 0.0
    for k in range(groups):
        free = written[k - buffers] if k >= buffers else 0.0
        begun = max(free, read_until)
        read_until = begun + read
        parts.append(Part("read", k, begun, read_until))
        begun = max(read_until, computed_until)
        computed_until = begun + compute
        parts.append(Part("compute", k, begun, computed_until))
        begun = max(computed_until, written_until)
        written_until = begun + write
        parts.append(Part("write", k, begun, written_until))
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


def duration(parts: Sequence[Part]) -> float:
    """From 0 to the end of the last part."""
    return max(part.stop for part in parts)


def busy_by_kind(parts: Sequence[Part]) -> dict[str, float]:
    """How long at least one part of each kind was under way."""
    spans = {kind: merge((part.start, part.stop) for part in parts if part.kind == kind) for kind in LOOKS}
    return {kind: sum(stop - start for start, stop in found) for kind, found in spans.items()}


def draw(parts: Sequence[Part], buffers: int, title: str, unit: str) -> Any:
    """A row for each buffer; a bar for each part, with the number of its group where there is room."""
    order = [part.group for part in sorted(parts, key=lambda part: part.start) if part.kind == "compute"]
    row_of = {group: at % buffers for at, group in enumerate(order)}
    used = min(buffers, len(order))
    total = duration(parts)
    figure = blank(7.6, 0.36 * used + 1.25)
    axes = figure.add_subplot()
    for part in parts:
        # A trace of a walk that failed may end with reads of groups that were never computed.
        if part.group not in row_of:
            continue
        row, width = row_of[part.group], part.stop - part.start
        colour, hatch = LOOKS[part.kind]
        axes.barh(
            row, width, 0.72, left=part.start, color=colour, hatch=hatch, edgecolor="black", linewidth=0.5, alpha=0.9
        )  # fmt: skip
        name = str(part.group)
        if (0.08 * len(name) + 0.08) < width / total * INCHES:
            ground = {"boxstyle": "round,pad=0.12", "facecolor": "white", "edgecolor": "none", "alpha": 0.9}
            axes.text(part.start + width / 2, row, name, ha="center", va="center", fontsize=8, bbox=ground)
    axes.set_yticks(range(used), [f"buffer {at}" for at in range(used)])
    axes.set_ylim(used - 0.5, -0.5)
    axes.set_xlim(0, total)
    axes.set_xlabel(f"{unit}; the number in a bar is that of its group")
    axes.set_title(title, loc="left", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    patches = [
        Patch(facecolor=colour, hatch=hatch, edgecolor="black", label=kind) for kind, (colour, hatch) in LOOKS.items()
    ]
    figure.legend(handles=patches, frameon=False, loc="outside upper right", ncols=3, fontsize=9)
    return figure
