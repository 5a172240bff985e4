"""A step at stages 0 to 3, as it ran: what each rank has of every unit, messages on their way, and rank 0's memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from math import pi, sin

from zerolab.course.viz.drawing import Drawing, Frame, Mark, Style, filled, words
from zerolab.course.viz.looks import MEMORY
from zerolab.course.viz.slices import AWAY, BRIEF, KEPT, NEW, courses, flow_of, stop_text, stops
from zerolab.course.viz.step import Flow, Sent
from zerolab.memory import KINDS, Sample

WIDE, HIGH, ROOM = 400, 442, 88
"""Of the drawing, and of the units of a rank."""
BANDS = {"parameters": (56, 7), "gradients": (102, 7), "optimizer_states": (148, 14)}
"""Of each band: its top, and the height of a slice. Areas are bytes."""
LEFT, RIGHT, TOP, BOTTOM = 34, 318, 232, 330
MOST_SECONDS, MOST_BYTES, MOST_SENT = 1.9e-3, 4e6, 2e6
LETTERS = {"embedding": "E", "head": "H"}
LEGEND = (
    "a column: a unit (E embedding, 0 to 2 blocks, H head); a row: a quarter",
    "pale: memory that waits for values; black frame: final values of this step",
    "white frame: on its way to the next rank; pale curve: still to come",
)
"""What the colours' legend leaves unsaid."""
APART, SLOWER = 20e-6, 9_000
"""Seconds between two frames, and how much slower than on the virtual clock a film is shown."""
SMALL, START, END = words(11), words(11, "start"), words(11, "end")
AXIS = Style(line="#555555", width=0.8)
Place = Callable[[float], float]
"""From seconds or bytes to dots."""


def stage_frames(stage: int) -> list[Frame]:
    """A step of the course's small model on four ranks at a stage, moment by moment (`slices.py`). Raises InputError
    for a stage that is not there."""
    flow = flow_of(stage)
    times = {stop.time: number for number, stop in enumerate(stops(flow))}
    for number in range(1, int(flow.seconds / APART)):
        if min(abs(number * APART - time) for time in times) > APART / 2:
            times[number * APART] = -1
    frames = []
    for time, after in zip(sorted(times), [*sorted(times)[1:], flow.seconds], strict=True):
        number = times[time]
        said = () if number < 0 else stop_text(flow, number)
        act = "" if number < 0 else stops(flow)[number].computing.replace("no rank computes", "")
        frames.append(Frame(draw_moment(flow, time), said, round(1000 * SLOWER * (after - time)), act))
    return frames


def draw_moment(flow: Flow, time: float) -> Drawing:
    drawing = Drawing(WIDE, HIGH, 1.45)
    left = columns(flow)
    for rank in range(flow.run.ranks):
        draw_rank(drawing, flow, rank, time, left)
    for band, (top, _) in BANDS.items():
        drawing.text(6, top - 4, MEMORY[band].name, START)
    for one in courses(flow):
        _, state, kind = [state for state in one.states if state[0] <= time + 1e-12][-1]
        top, height = BANDS[one.band]
        x, width = left[one.unit]
        place = x + 100 * one.rank, top + height * one.chunk, width - 0.6, height - 0.6
        drawing.box(*place, look(state, kind), f"{one.band} {one.rank} {one.unit} {one.chunk}")
    draw_memory(drawing, flow, time)
    draw_sent(drawing, flow, time)
    used = [MEMORY[kind] for kind in KINDS if kind != "step_buffers"]
    drawing.legend(used, 6, BOTTOM + 22, 122, 3)
    for number, line in enumerate(LEGEND):
        drawing.text(6, BOTTOM + 76 + 15 * number, line, START)
    for number, message in enumerate(flow.messages):
        if message.start <= time < message.stop:
            draw_message(drawing, flow, message, time, left, f"message {number}")
    return drawing


def columns(flow: Flow) -> dict[str, tuple[float, float]]:
    """By unit, where it begins on rank 0 and how wide it is."""
    whole, x, found = sum(flow.units.values()), 6.0, {}
    for unit, nbytes in flow.units.items():
        found[unit] = (x, ROOM * nbytes / whole)
        x += found[unit][1]
    return found


def look(state: int, kind: str) -> Style:
    if state == AWAY:
        return Style("white", "#bbbbbb", dash=(1.5, 1.5))
    colour = MEMORY[kind].colour
    if state == KEPT:
        return Style(colour, "#999999", 0.4, opacity=0.22)
    return Style(colour, "black", 1.3) if state == NEW else Style(colour, "#999999", 0.4)


def draw_rank(drawing: Drawing, flow: Flow, rank: int, time: float, left: dict[str, tuple[float, float]]) -> None:
    drawing.box(2 + 100 * rank, 16, 96, 192, Style("white", "#bbbbbb"))
    drawing.text(50 + 100 * rank, 12, f"rank {rank}", SMALL)
    at = time + BRIEF
    spans = [span.name for span in flow.ranks[rank].spans if span.kind == "compute" and span.start <= at < span.stop]
    for unit, (start, width) in left.items():
        busy = any(name == "update" or name.endswith(f" {unit}") for name in spans)
        middle, ground = 100 * rank + start + width / 2, max(width - 4, 11)
        box = (middle - ground / 2, 22, ground, 15)
        drawing.box(*box, Style("black" if busy else "none"), f"works {rank} {unit}")
        sign = LETTERS.get(unit, unit[-1])
        drawing.text(middle, 34, sign, words(11, fill="white" if busy else "black"), f"sign {rank} {unit}")


def draw_message(
    drawing: Drawing, flow: Flow, message: Sent, time: float, left: dict[str, tuple[float, float]], name: str
) -> None:
    """A message on its way, from its slice on one rank to that on the next."""
    call, unit = flow.calls[message.call][:2]
    band, kind = travels(call)
    share = (time - message.start) / (message.stop - message.start)
    smooth = share * share * (3 - 2 * share)
    x, width = left[unit]
    top, height = BANDS[band]
    rise = (14 if message.dst < message.src else 5) * sin(pi * smooth)
    corner = x + 100 * (message.src + smooth * (message.dst - message.src)), top + height * message.chunk - rise
    drawing.box(*corner, width, height, Style(MEMORY[kind].colour, "white", 1.1), name)


def travels(call: str) -> tuple[str, str]:
    """To which band belongs what a collective sends, and as which kind of memory."""
    return ("parameters", "gathered_units") if call == "all_gather" else ("gradients", "gradient_buffers")


def across(seconds: float) -> float:
    return LEFT + (RIGHT - LEFT) * seconds / MOST_SECONDS


def up(share: float) -> float:
    return BOTTOM - (BOTTOM - TOP) * share


def draw_memory(drawing: Drawing, flow: Flow, time: float) -> None:
    """Rank 0's memory by kind over the step, paler from `time` on, upon that of stage 0 in grey."""
    drawing.marks |= areas(flow)
    later = across(time), TOP, across(flow.seconds) - across(time), BOTTOM - TOP
    drawing.box(*later, Style("white", opacity=0.6), "later")
    drawing.line((across(time), TOP - 4, across(time), BOTTOM), Style(line="black", width=1.4), "now")
    drawing.line((LEFT, TOP, LEFT, BOTTOM, RIGHT, BOTTOM), AXIS)
    drawing.text(2, TOP - 6, "MB held by rank 0; grey: stage 0", START)
    for megabytes in range(5):
        drawing.text(LEFT - 4, up(1e6 * megabytes / MOST_BYTES) + 4, str(megabytes), END)
    for micros in (0, 500, 1000, 1500):
        drawing.text(across(1e-6 * micros), BOTTOM + 13, f"{micros} µs" if micros == 1500 else str(micros), SMALL)


@lru_cache(maxsize=8)
def areas(flow: Flow) -> dict[str, Mark]:
    """Of rank 0's memory, the same in each frame."""
    drawing = Drawing(WIDE, HIGH)
    draw_areas(drawing, flow, flow_of(0), across, lambda nbytes: up(nbytes / MOST_BYTES))
    return drawing.marks


def draw_areas(drawing: Drawing, flow: Flow, plain: Flow, across: Place, up: Place) -> None:
    """Rank 0's memory by kind, upon all of that of `plain` in grey."""
    for of, kinds in ((plain, ("",)), (flow, KINDS)):
        for points, kind in layers(of.ranks[0].course, of.seconds, kinds):
            at = [place for seconds, nbytes in points for place in (across(seconds), up(nbytes))]
            style = filled(MEMORY[kind], "none") if kind else Style("#d9d9d9")
            drawing.add(f"memory {kind}", "area", at, style)


def layers(
    course: Sequence[Sample], seconds: float, kinds: Iterable[str]
) -> Iterator[tuple[list[tuple[float, float]], str]]:
    """Areas upon each other, one for each kind that is ever there ("": all together): corners in seconds and bytes."""
    times = [sample.time for sample in course]
    below = [0.0] * len(course)
    for kind in kinds:
        levels = [sample.bytes.get(kind, 0) if kind else sample.total for sample in course]
        if any(levels):
            above = [low + level for low, level in zip(below, levels, strict=True)]
            yield [*steps(times, above, seconds), *reversed(steps(times, below, seconds))], kind
            below = above


def steps(times: Sequence[float], levels: Sequence[float], end: float) -> list[tuple[float, float]]:
    """Corners of a line that stays at each level until it jumps to another."""
    corners = [(times[0], levels[0])]
    for time, level in zip(times[1:], levels[1:], strict=True):
        if level != corners[-1][1]:
            corners += [(time, corners[-1][1]), (time, level)]
    return [*corners, (end, levels[-1])]


def draw_sent(drawing: Drawing, flow: Flow, time: float) -> None:
    """A bar of the bytes that rank 0 has sent, by collective."""
    below = 0.0
    for name, nbytes in flow.sent(time).items():
        high = (BOTTOM - TOP) * nbytes / MOST_SENT
        style = Style(MEMORY[travels(name)[1]].colour)
        drawing.box(352, BOTTOM - below - high, 30, high, style, f"sent {name}")
        below += high
    drawing.line((348, TOP, 348, BOTTOM, 386, BOTTOM), AXIS)
    drawing.text(WIDE - 2, TOP - 6, "MB sent", END)
    for megabytes in range(3):
        drawing.text(344, up(1e6 * megabytes / MOST_SENT) + 4, str(megabytes), END)
