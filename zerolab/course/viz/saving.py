"""When training stands still for a checkpoint, and what the disk does meanwhile: simulated."""

from __future__ import annotations

from math import isfinite
from typing import Any, NamedTuple

from matplotlib.patches import Patch

from zerolab.course.viz.looks import COMPUTING, PASSING, Look
from zerolab.course.viz.picture import Picture, blank, figures, text_table
from zerolab.errors import InputError
from zerolab.flat.layout import check_count

LOOKS = {
    "step": Look("a step", *COMPUTING["forward"][1:]),
    "copy": Look("copying the shards", *PASSING["read"][1:]),
    "wait": Look("waiting", "#DDDDDD", "xx"),
    "write": Look("writing them", *PASSING["write"][1:]),
}
TRAINING, DISK = "training", "disk"


class Busy(NamedTuple):
    """What a row does from `start` to `stop`: a step, a copy or a wait of training's, a write of the disk's."""

    row: str
    kind: str
    start: float
    stop: float


def save_timeline(
    steps: int = 12, every: int = 3, step: float = 10.0, copy: float = 3.0, write: float = 20.0, unit: str = "ms"
) -> Picture:
    """`steps` steps that take `step` each, with a checkpoint after `every` of them: above, training waits until it is
    written; beneath, it waits for a copy of its shards only, and the disk writes while it goes on. One checkpoint is
    written at a time.

    Raises:
        InputError: no steps, or a time that is no finite number of 0 or more.
    """
    check_count("steps", steps)
    check_count("every", every)
    for name, value in (("step", step), ("copy", copy), ("write", write)):
        if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value) or value < 0:
            raise InputError(f"{name} takes {value!r}; give a finite time of 0 or more")
    if not step:
        raise InputError("a step takes no time, so there is nothing to compare with; give step above 0")
    ways = {
        "wait=True": simulate(steps, every, step, copy, write, waits=True),
        "wait=False": simulate(steps, every, step, copy, write, waits=False),
    }
    total = max(busy.stop for parts in ways.values() for busy in parts)
    figure = blank(7.6, 3.1)
    panels = figure.subplots(2, 1, sharex=True)
    rows, still = [], {}
    for axes, (name, parts) in zip(panels, ways.items(), strict=True):
        still[name] = sum(busy.stop - busy.start for busy in parts if busy.row == TRAINING and busy.kind != "step")
        end = max(busy.stop for busy in parts if busy.row == TRAINING)
        _panel(axes, parts)
        axes.set_title(f"{name}: training stands still for {figures(still[name])} {unit}", loc="left", fontsize=10)
        last = max(busy.stop for busy in parts)
        rows.append([name, *map(figures, (still[name], end, last)), f"{still[name] / end:.0%}"])
    panels[-1].set_xlim(0, 1.005 * total)
    panels[-1].set_xlabel(unit)
    patches = [
        Patch(facecolor=its.colour, hatch=its.hatch, edgecolor="black", label=its.name) for its in LOOKS.values()
    ]
    figure.legend(handles=patches, frameon=False, loc="outside upper right", ncols=4, fontsize=9)
    table = text_table(["", f"stands still, {unit}", "last step ends", "last file ends", "of training's time"], rows)
    told = " and ".join(f"{figures(time)} {unit} with {name}" for name, time in still.items())
    verdict = f"Training stands still for {told}."
    return Picture(figure, table, f"{steps} steps and a checkpoint after every {every}. {verdict}", verdict)


def simulate(steps: int, every: int, step: float, copy: float, write: float, waits: bool) -> list[Busy]:
    """What training and the disk do, in the order in which it begins."""
    parts: list[Busy] = []
    now = written = 0.0

    def spend(kind: str, time: float) -> None:
        nonlocal now
        if time > 0:
            parts.append(Busy(TRAINING, kind, now, now + time))
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
            parts.append(Busy(DISK, "write", now, written))
        if waits:
            spend("wait", write)
    return parts


def _panel(axes: Any, parts: list[Busy]) -> None:
    for busy in parts:
        look = LOOKS[busy.kind]
        axes.barh(
            [TRAINING, DISK].index(busy.row), busy.stop - busy.start, 0.72, left=busy.start, color=look.colour,
            hatch=look.hatch, edgecolor="black", linewidth=0.5,
        )  # fmt: skip
    axes.set_yticks([0, 1], [TRAINING, DISK], fontsize=9)
    axes.set_ylim(1.5, -0.5)
    axes.spines[["top", "right"]].set_visible(False)
