"""A moment of a step at stages 0 to 3: what each rank has of every unit, messages on their way, and rank 0's memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, Rectangle

from zerolab.course.viz.flow import Flow, Sent
from zerolab.course.viz.looks import MEMORY
from zerolab.course.viz.picture import Picture
from zerolab.course.viz.slices import AWAY, BANDS, BRIEF, KEPT, NEW, courses, flow_of, stop_text, stops
from zerolab.errors import InputError
from zerolab.memory import KINDS, Sample

WIDE, HIGH, ROOM = 400, 408, 88
"""Of the drawing, and of the units of a rank, in its own units."""
PLACE = {"parameters": (56, 7), "gradients": (102, 7), "optimizer_states": (148, 14)}
"""Of each band: its top, and the height of a slice. Areas are bytes."""
LEFT, RIGHT, TOP, BOTTOM = 34, 318, 228, 306
MOST_SECONDS, MOST_BYTES, MOST_SENT = 1.9e-3, 4e6, 2e6
LETTERS = {"embedding": "E", "head": "H"}
LEGEND = (
    "a column: a unit (E embedding, 0 to 2 blocks, H head); a row: a quarter",
    "pale: memory that waits for values; black frame: final values of this step",
    "white frame: on its way to the next rank; pale curve: still to come",
)
"""What the colours' legend leaves unsaid; `living/stages.js` has the same lines."""


def stage_moment(stage: int = 1, moment: int = 0) -> Picture:
    """A step of the course's small model on four ranks at a stage, at the `moment`th of its moments (`slices.py`).

    Raises InputError for a stage or a moment that is not there.
    """
    flow = flow_of(stage)
    last = len(stops(flow)) - 1
    if isinstance(moment, bool) or not isinstance(moment, int) or not 0 <= moment <= last:
        raise InputError(f"stage {stage} has no moment {moment!r}; take 0 to {last}")
    said, alt, table = stop_text(flow, moment)
    return Picture(draw_moment(flow, stops(flow)[moment].time), table, alt, said)


def draw_moment(flow: Flow, time: float, title: str = "", inches: float = 6.2) -> Figure:
    """The figure `inches` wide; `title` stands above it, its first line in bold."""
    above = 38 if title else 0
    figure = Figure(figsize=(inches, inches * (HIGH + above) / WIDE))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(0, WIDE)
    axes.set_ylim(HIGH, -above)
    axes.set_axis_off()
    size = 11 * inches * 72 / WIDE * 0.82
    if title:
        first, _, rest = title.partition("\n")
        axes.text(6, -26, first, fontsize=1.2 * size, va="center", weight="bold")
        axes.text(6, -9, rest, fontsize=1.1 * size, va="center")
    left = columns(flow)
    for rank in range(flow.run.ranks):
        draw_rank(axes, flow, rank, time, left, size)
    for one in courses(flow):
        _, state, kind = [state for state in one.states if state[0] <= time + 1e-12][-1]
        top, height = PLACE[one.band]
        x, width = left[one.unit]
        axes.add_patch(
            Rectangle((x + 100 * one.rank, top + height * one.chunk), width - 0.6, height - 0.6, **look(state, kind))
        )
    for message in flow.messages:
        if message.start <= time < message.stop:
            axes.add_patch(flying(flow, message, time, left))
    draw_memory(axes, flow, time, size)
    draw_sent(axes, flow, time, size)
    return figure


def columns(flow: Flow) -> dict[str, tuple[float, float]]:
    """By unit, where it begins on rank 0 and how wide it is."""
    whole, x, found = sum(flow.units.values()), 6.0, {}
    for unit, nbytes in flow.units.items():
        found[unit] = (x, ROOM * nbytes / whole)
        x += found[unit][1]
    return found


def look(state: int, kind: str) -> dict[str, Any]:
    if state == AWAY:
        return {"facecolor": "white", "edgecolor": "#bbbbbb", "linewidth": 0.6, "linestyle": (0, (2, 2)), "zorder": 2}
    colour = MEMORY[kind].colour
    if state == KEPT:
        return {"facecolor": (colour, 0.22), "edgecolor": "#999999", "linewidth": 0.4, "zorder": 2}
    edge: dict[str, Any] = {"edgecolor": "black", "linewidth": 1.4, "zorder": 3}
    return {"facecolor": colour, **(edge if state == NEW else {"edgecolor": "#999999", "linewidth": 0.4, "zorder": 2})}


def draw_rank(axes: Any, flow: Flow, rank: int, time: float, left: dict[str, tuple[float, float]], size: float) -> None:
    x = 100 * rank
    axes.add_patch(
        FancyBboxPatch(
            (x + 5, 19), 90, 186, boxstyle="round,pad=3", facecolor="white", edgecolor="#bbbbbb", linewidth=1
        )
    )
    axes.text(x + 50, 8, f"rank {rank}", ha="center", va="center", fontsize=size)
    at = time + BRIEF
    spans = [span.name for span in flow.ranks[rank].spans if span.kind == "compute" and span.start <= at < span.stop]
    for unit, (start, width) in left.items():
        busy = any(name == "update" or name.endswith(f" {unit}") for name in spans)
        if busy:
            axes.add_patch(Rectangle((x + start - 1, 22), width + 2, 15, facecolor="black"))
        axes.text(
            x + start + width / 2, 29.5, LETTERS.get(unit, unit[-1]), color="white" if busy else "black",
            ha="center", va="center", fontsize=size,
        )  # fmt: skip
    for band in BANDS if rank == 0 else ():
        axes.text(6, PLACE[band][0] - 4, MEMORY[band].name, va="baseline", fontsize=size)


def flying(flow: Flow, message: Sent, time: float, left: dict[str, tuple[float, float]]) -> Rectangle:
    """A message on its way, from its slice on one rank to that on the next."""
    name, unit = flow.calls[message.call][:2]
    band = "parameters" if name == "all_gather" else "gradients"
    kind = "gathered_units" if name == "all_gather" else "gradient_buffers"
    share = (time - message.start) / (message.stop - message.start)
    smooth = share * share * (3 - 2 * share)
    x, width = left[unit]
    top, height = PLACE[band]
    rise = (14 if message.dst < message.src else 5) * np.sin(np.pi * smooth)
    corner = (x + 100 * (message.src + smooth * (message.dst - message.src)), top + height * message.chunk - rise)
    return Rectangle(corner, width, height, facecolor=MEMORY[kind].colour, edgecolor="white", linewidth=1.2, zorder=5)


def across(seconds: Any) -> Any:
    return LEFT + (RIGHT - LEFT) * seconds / MOST_SECONDS


def up(share: Any) -> Any:
    return BOTTOM - (BOTTOM - TOP) * share


def draw_memory(axes: Any, flow: Flow, time: float, size: float) -> None:
    """Rank 0's memory by kind over the step, paler from `time` on, upon that of stage 0 in grey."""
    plain = flow_of(0, flow.run.ranks)
    for _, times, level in layers(plain.ranks[0].course, plain.seconds, ("",)):
        axes.fill_between(across(times), up(0), up(level / MOST_BYTES), step="post", facecolor="#d9d9d9", linewidth=0)
    below: Any = 0
    for kind, times, level in layers(flow.ranks[0].course, flow.seconds, KINDS):
        axes.fill_between(
            across(times), up(below / MOST_BYTES), up((below + level) / MOST_BYTES), step="post",
            facecolor=MEMORY[kind].colour, hatch=MEMORY[kind].hatch, edgecolor=(0, 0, 0, 0.35), linewidth=0,
        )  # fmt: skip
        below = below + level
    axes.add_patch(
        Rectangle((across(time), TOP), across(flow.seconds) - across(time), BOTTOM - TOP, facecolor=("white", 0.6))
    )
    axes.plot([across(time)] * 2, [TOP - 4, BOTTOM], color="black", linewidth=1.6)
    axes.plot([LEFT, LEFT, RIGHT], [TOP, BOTTOM, BOTTOM], color="#555555", linewidth=0.9)
    axes.text(2, TOP - 6, "MB held by rank 0; grey: stage 0", fontsize=size)
    for megabytes in range(5):
        axes.text(LEFT - 4, up(1e6 * megabytes / MOST_BYTES), megabytes, ha="right", va="center", fontsize=size)
    for micros in (0, 500, 1000, 1500):
        name = f"{micros} µs" if micros == 1500 else micros
        axes.text(across(1e-6 * micros), BOTTOM + 13, name, ha="center", fontsize=size)
    kinds = [kind for kind in KINDS if kind != "step_buffers"]
    for number, kind in enumerate(kinds):
        x, y = (6, 116, 246)[number % 3], BOTTOM + 22 + 14 * (number // 3)
        axes.add_patch(
            Rectangle(
                (x, y),
                12,
                10,
                facecolor=MEMORY[kind].colour,
                hatch=MEMORY[kind].hatch,
                edgecolor="black",
                linewidth=0.5,
            )
        )
        axes.text(x + 16, y + 9, MEMORY[kind].name, fontsize=size)
    for number, line in enumerate(LEGEND):
        axes.text(6, BOTTOM + 73 + 13 * number, line, fontsize=size)


def layers(course: Iterable[Sample], seconds: float, kinds: Iterable[str]) -> Iterator[tuple[str, Any, Any]]:
    """By kind that is ever there ("" for all together): times, and bytes from each on."""
    samples = [*course]
    times = np.array([sample.time for sample in samples] + [seconds])
    for kind in kinds:
        levels = [sample.bytes.get(kind, 0) if kind else sample.total for sample in samples]
        if any(levels):
            yield kind, times, np.array([*levels, levels[-1]])


def draw_sent(axes: Any, flow: Flow, time: float, size: float) -> None:
    """A bar of the bytes that rank 0 has sent, by collective."""
    below = 0.0
    for name, nbytes in flow.sent(time).items():
        kind = "gathered_units" if name == "all_gather" else "gradient_buffers"
        high = (BOTTOM - TOP) * nbytes / MOST_SENT
        axes.add_patch(Rectangle((352, BOTTOM - below - high), 30, high, facecolor=MEMORY[kind].colour))
        below += high
    axes.plot([348, 348, 386], [TOP, BOTTOM, BOTTOM], color="#555555", linewidth=0.9)
    axes.text(WIDE - 2, TOP - 6, "MB sent", ha="right", fontsize=size)
    for megabytes in range(3):
        axes.text(344, up(1e6 * megabytes / MOST_SENT), megabytes, ha="right", va="center", fontsize=size)
