"""What goes on at once: groups in the buffers of an offloaded step, and checkpoints beside training."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf
from statistics import mean
from typing import Any, NamedTuple

from zerolab.course.viz.looks import COMPUTING, PASSING, Look
from zerolab.course.viz.picture import Picture, check_times, figures, text_table
from zerolab.course.viz.timelines import Stretch, draw_spans
from zerolab.errors import InputError
from zerolab.flat.layout import check_count

MOST_BUFFERS = 4
ACROSS = "ms; the number in a bar is that of its group"


class PipelineStep(NamedTuple):
    """One of the three things that happen to a group: `kind` is read, compute or write."""

    kind: str
    group: Any
    start: float
    stop: float


def offload_pipeline(groups: int, buffers: int, read: float, compute: float, write: float) -> Picture:
    """Groups that are each read, computed on and written, in milliseconds, through buffers: a row for each. The table
    sets 1 to 4 buffers beside each other, and names what holds up each."""
    times = read, compute, write
    parts, serial = schedule(groups, buffers, *times), groups * sum(times)
    rows = []
    for count in sorted({*range(1, MOST_BUFFERS + 1), buffers}):
        took, shown = duration(schedule(groups, count, *times)), " (shown)" * (count == buffers)
        rows.append([f"{count}{shown}", f"{took:g}", f"{serial / took:.2f}", bottleneck(count, *times)])
    title = f"{buffers} buffer{'s' * (buffers > 1)}: {duration(parts):g} ms, held up by {bottleneck(buffers, *times)}"
    head = [f"{groups} groups, buffers", "ms", "times faster", "held up by"]
    bound = f"no number of buffers gets below {least(groups, *times):g} ms"
    above = f"one after the other {serial:g} ms; {bound}"
    figure = draw_spans({"": bars_of(parts, buffers)}, names(parts, buffers), ACROSS, [*PASSING.values()])
    alt = f"{groups} groups are read, computed on and written through {title}; {above}."
    return Picture(figure, f"{above}\n{text_table(head, rows)}", alt, title)


def compared_pipelines(trace: Iterable[tuple[str, Any, float, float]], buffers: int) -> Picture:
    """A recorded walk, as the `trace` of `zerolab.offload.lane` was told of it: (kind, group, start, stop) in seconds.
    Beneath it what its own mean times of reading, computing and writing a group predict."""
    parts = recorded(trace, buffers)
    groups = sum(part.kind == "compute" for part in parts)
    means = [mean(part.stop - part.start for part in parts if part.kind == kind) for kind in PASSING]
    walks = {"recorded": parts, "predicted": schedule(groups, buffers, *means)}
    ends = {name: figures(duration(walk)) for name, walk in walks.items()}
    drawn = {f"{name}: {ends[name]} ms": bars_of(walk, buffers) for name, walk in walks.items()}
    figure = draw_spans(drawn, names(parts, buffers), ACROSS, [*PASSING.values()])
    each = ", ".join(f"{kind} {figures(time)}" for kind, time in zip(PASSING, means, strict=True))
    rows = [[name, ends[name], f"{groups * sum(means) / duration(walk):.2f}"] for name, walk in walks.items()]
    table = text_table([f"{buffers} buffers, {groups} groups", "ms", "times faster"], rows)
    alt = f"A recorded walk of {groups} groups through {buffers} buffers takes {ends['recorded']} ms; the "
    alt += f"prediction from its mean times is {ends['predicted']} ms."
    return Picture(figure, f"a group, ms: {each}\n{table}", alt)


def recorded(trace: Iterable[tuple[str, Any, float, float]], buffers: int) -> list[PipelineStep]:
    """The parts of a trace in milliseconds since its first read, in order of their starts."""
    check_count("the number of buffers", buffers)
    parts = sorted((PipelineStep(*one) for one in trace), key=lambda part: part.start)
    for kind, group, start, stop in parts:
        if not 0 <= stop - start < inf:
            raise InputError(f"in the trace {kind} of group {group} lasts from {start} to {stop}; record it anew")
    # A trace of a walk that failed may end with reads of groups that were never computed.
    done = {part.group for part in parts if part.kind == "compute" and part.stop > part.start}
    if not done:
        raise InputError("the trace has no computation that takes time; record a walk to its end")
    first = parts[0].start
    return [
        PipelineStep(kind, group, 1e3 * (start - first), 1e3 * (stop - first))
        for kind, group, start, stop in parts
        if group in done
    ]


def schedule(groups: int, buffers: int, read: float, compute: float, write: float) -> list[PipelineStep]:
    """What `zerolab.offload.lane` does where reads, computations and writes each come one at a time: group k uses
    buffer k mod n, and is read as soon as group k - n is written. In order of their starts."""
    check_count("the number of groups", groups)
    check_count("the number of buffers", buffers)
    times = {"read": read, "compute": compute, "write": write}
    check_times(**times)
    parts: list[PipelineStep] = []
    free, written = dict.fromkeys(times, 0.0), [0.0] * buffers
    for group in range(groups):
        now = written[group % buffers]
        for kind, time in times.items():
            start = max(now, free[kind])
            now = free[kind] = start + time
            parts.append(PipelineStep(kind, group, start, now))
        written[group % buffers] = now
    return sorted(parts, key=lambda part: (part.start, part.stop))


def least(groups: int, read: float, compute: float, write: float) -> float:
    """The time that no number of buffers gets below: the slowest of the three is idle only at the ends."""
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


def bars_of(parts: Sequence[PipelineStep], buffers: int) -> list[Stretch]:
    """A bar for each part in the row of its buffer."""
    order = [part.group for part in parts if part.kind == "compute"]
    return [
        Stretch(order.index(group) % buffers, PASSING[kind], start, stop, str(group))
        for kind, group, start, stop in parts
    ]  # fmt: skip


def names(parts: Sequence[PipelineStep], buffers: int) -> list[str]:
    """Of the buffers that are used."""
    return [f"buffer {at}" for at in range(min(buffers, len({part.group for part in parts})))]


SAVING = {
    "step": Look("a step", *COMPUTING["forward"][1:]),
    "copy": Look("copying the shards", *PASSING["read"][1:]),
    "wait": Look("waiting", "#DDDDDD", "xx"),
    "write": Look("writing them", *PASSING["write"][1:]),
}
ROWS = TRAINING, DISK = ("training", "disk")


def save_timeline(
    steps: int = 12, every: int = 3, step: float = 10.0, copy: float = 3.0, write: float = 20.0
) -> Picture:
    """`steps` steps of `step` milliseconds, with a checkpoint after `every` of them: above, training waits until it is
    written; beneath, for a copy of its shards only. One checkpoint is written at a time."""
    check_count("steps", steps)
    check_count("every", every)
    check_times(step=step)
    check_times(step=step, copy=copy, write=write)
    drawn, rows, told = {}, [], []
    for waits in (True, False):
        bars = simulate(steps, every, step, copy, write, waits)
        training = [bar for bar in bars if bar.row == ROWS.index(TRAINING)]
        still = sum(bar.stop - bar.start for bar in training if bar.look != SAVING["step"])
        end, last = training[-1].stop, max(bar.stop for bar in bars)
        rows.append([f"wait={waits}", *map(figures, (still, end, last)), f"{still / end:.0%}"])
        drawn[f"wait={waits}: training stands still for {figures(still)} ms"] = bars
        told.append(f"{figures(still)} ms with wait={waits}")
    figure = draw_spans(drawn, ROWS, "ms", [*SAVING.values()])
    table = text_table(["", "stands still, ms", "training ends", "last file ends", "of training's time"], rows)
    verdict = f"Training stands still for {' and '.join(told)}."
    return Picture(figure, table, f"{steps} steps and a checkpoint after every {every}. {verdict}", verdict)


def simulate(steps: int, every: int, step: float, copy: float, write: float, waits: bool) -> list[Stretch]:
    """What training and the disk do, in the order in which it begins."""
    bars: list[Stretch] = []
    now = written = 0.0

    def spend(kind: str, time: float) -> None:
        nonlocal now
        if time > 0:
            bars.append(Stretch(0, SAVING[kind], now, now + time))
            now += time

    for number in range(1, steps + 1):
        spend("step", step)
        if number % every:
            continue
        spend("wait", written - now)
        if not waits:
            spend("copy", copy)
        written = now + write
        if write:
            bars.append(Stretch(1, SAVING["write"], now, written))
        if waits:
            spend("wait", write)
    return bars
