"""When training stands still for a checkpoint, and what the disk does meanwhile: simulated."""

from __future__ import annotations

from zerolab.course.viz.looks import COMPUTING, PASSING, Look
from zerolab.course.viz.picture import Picture, figures, text_table
from zerolab.course.viz.pipeline import check_times
from zerolab.course.viz.spans import Bar, draw_spans
from zerolab.errors import InputError
from zerolab.flat.layout import check_count

LOOKS = {
    "step": Look("a step", *COMPUTING["forward"][1:]),
    "copy": Look("copying the shards", *PASSING["read"][1:]),
    "wait": Look("waiting", "#DDDDDD", "xx"),
    "write": Look("writing them", *PASSING["write"][1:]),
}
ROWS = TRAINING, DISK = ("training", "disk")


def save_timeline(
    steps: int = 12, every: int = 3, step: float = 10.0, copy: float = 3.0, write: float = 20.0
) -> Picture:
    """`steps` steps that take `step` milliseconds each, with a checkpoint after `every` of them: above, training waits
    until it is written; beneath, it waits for a copy of its shards only, and the disk writes while it goes on. One
    checkpoint is written at a time.

    Raises:
        InputError: no steps, or a time that is no finite number of 0 or more.
    """
    check_count("steps", steps)
    check_count("every", every)
    check_times(step=step, copy=copy, write=write)
    if not step:
        raise InputError("a step takes no time, so there is nothing to compare with; give step above 0")
    drawn, rows, told = {}, [], []
    for waits in (True, False):
        bars = simulate(steps, every, step, copy, write, waits)
        training = [bar for bar in bars if bar.row == ROWS.index(TRAINING)]
        still = sum(bar.stop - bar.start for bar in training if bar.look != LOOKS["step"])
        end, last = training[-1].stop, max(bar.stop for bar in bars)
        rows.append([f"wait={waits}", *map(figures, (still, end, last)), f"{still / end:.0%}"])
        drawn[f"wait={waits}: training stands still for {figures(still)} ms"] = bars
        told.append(f"{figures(still)} ms with wait={waits}")
    figure = draw_spans(drawn, ROWS, "ms", [*LOOKS.values()])
    table = text_table(["", "stands still, ms", "last step ends", "last file ends", "of training's time"], rows)
    verdict = f"Training stands still for {' and '.join(told)}."
    return Picture(figure, table, f"{steps} steps and a checkpoint after every {every}. {verdict}", verdict)


def simulate(steps: int, every: int, step: float, copy: float, write: float, waits: bool) -> list[Bar]:
    """What training and the disk do, in the order in which it begins."""
    bars: list[Bar] = []
    now = written = 0.0

    def spend(kind: str, time: float) -> None:
        nonlocal now
        if time > 0:
            bars.append(Bar(0, LOOKS[kind], now, now + time))
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
            bars.append(Bar(1, LOOKS["write"], now, written))
        if waits:
            spend("wait", write)
    return bars
