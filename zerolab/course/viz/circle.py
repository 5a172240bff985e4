"""A mixed-precision training step as a circle: what keeps how many bytes, what passes along, and what a move cuts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from zerolab.course.viz.looks import COMPUTING, MEMORY
from zerolab.course.viz.picture import BACKDROP, Picture, blank, text_table
from zerolab.errors import InputError

STATES = {"gradients": 2, "optimizer": 12, "parameters": 2}
"""Bytes a parameter that each keeps. The optimizer's step is where its states are."""
ARROWS = [
    ("computing", "gradients", 2),
    ("gradients", "optimizer", 2),
    ("optimizer", "parameters", 2),
    ("parameters", "computing", 4),
]
"""From, to, and bytes a parameter in a step: forward and backward both read the parameters."""
MIDDLES = {"computing": (0.0, 1.0), "gradients": (1.5, 1.0), "optimizer": (1.5, 0.0), "parameters": (0.0, 0.0)}
LABELS = {"computing": "forward, backward", "optimizer": "optimizer step"}
LOOKS = {
    "computing": COMPUTING["compute"],
    "gradients": MEMORY["gradients"],
    "optimizer": MEMORY["optimizer_states"],
    "parameters": MEMORY["parameters"],
}
WIDE, HIGH = 0.8, 0.4
"""Of a box."""


def step_circle(host: Sequence[str] = ()) -> Picture:
    """The circle of a step in mixed precision, with the states named in `host` moved there: an arrow between something
    here and something there crosses the link, and is thick.

    host    some of "gradients", "optimizer" and "parameters"

    Raises:
        InputError: another name in `host`.
    """
    if unknown := set(host) - set(STATES):
        raise InputError(f"{min(unknown)!r} is no state that moves; choose among {', '.join(STATES)}")
    figure = blank(6.4, 3.0)
    axes = figure.add_subplot()
    for name in MIDDLES:
        draw_box(axes, name, name in host)
    rows, crossing = [], 0
    for start, end, nbytes in ARROWS:
        crosses = (start in host) != (end in host)
        crossing += nbytes * crosses
        draw_arrow(axes, start, end, nbytes, crosses)
        rows.append([f"{LABELS.get(start, start)} to {LABELS.get(end, end)}", nbytes, "yes" if crosses else "no"])
    axes.set_xlim(-0.5, 2.0)
    axes.set_ylim(-0.28, 1.28)
    axes.axis("off")
    kept = sum(nbytes for name, nbytes in STATES.items() if name not in host)
    verdict = f"{crossing} bytes a parameter cross the link in a step, {kept} stay on the device"
    where = f"{' and '.join(host)} on the host" if host else "all on the device"
    alt = f"A step as a circle of computing, gradients, optimizer and parameters, with {where}: {verdict}."
    return Picture(figure, text_table(["bytes a parameter", "pass", "cross the link"], rows), alt, verdict)


def draw_box(axes: Axes, name: str, there: bool) -> None:
    x, y = MIDDLES[name]
    look = LOOKS[name]
    edge: dict[str, Any] = {"linewidth": 2.5, "linestyle": "--"} if there else {"linewidth": 0.8}
    colours: dict[str, Any] = {"facecolor": look.colour, "hatch": look.hatch, "edgecolor": "black"}
    axes.add_patch(Rectangle((x - WIDE / 2, y - HIGH / 2), WIDE, HIGH, **colours, **edge))
    words = [LABELS.get(name, name)]
    if name in STATES:
        words.append(f"keeps {STATES[name]}, {'host' if there else 'device'}")
    axes.text(x, y, "\n".join(words), ha="center", va="center", fontsize=9, bbox={**BACKDROP, "pad": 1.5})


def draw_arrow(axes: Axes, start: str, end: str, nbytes: int, crosses: bool) -> None:
    """From the edge of one box to the edge of the next, with its bytes beside it."""
    (x, y), (to_x, to_y) = MIDDLES[start], MIDDLES[end]
    right, up = (to_x > x) - (to_x < x), (to_y > y) - (to_y < y)
    tail = (x + right * WIDE / 2, y + up * HIGH / 2)
    head = (to_x - right * WIDE / 2, to_y - up * HIGH / 2)
    width = 3.5 if crosses else 1
    style: dict[str, Any] = {"arrowstyle": "-|>", "color": "black", "linewidth": width, "mutation_scale": 14}
    axes.annotate("", xy=head, xytext=tail, arrowprops={**style, "shrinkA": 2, "shrinkB": 2})
    beside = (0.0, 0.07) if right else (0.07, 0.0)
    middle = ((tail[0] + head[0]) / 2 + beside[0], (tail[1] + head[1]) / 2 + beside[1])
    words = f"{nbytes}, over the link" if crosses else str(nbytes)
    axes.text(*middle, words, ha="center" if right else "left", va="center", fontsize=9)
