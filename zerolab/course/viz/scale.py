"""The course of a loss scale: its height at each step, and the steps that were skipped."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from math import ceil, cos, floor, inf, isfinite, log2, nan, pi
from typing import Any

from matplotlib.ticker import MaxNLocator

from zerolab.course.formats import FORMATS, rounded
from zerolab.course.viz.looks import PALE, ink
from zerolab.course.viz.picture import Picture, legend, panels, text_table
from zerolab.precision.scaler import LossScaler, ScaleError

FP16 = FORMATS["fp16"]
MOST_ROWS = 40
STEPS = 120
Steps = Sequence[tuple[float, bool]]
"""The scale of each step, and whether the step was skipped."""


def simulated(gradients: Sequence[float], scaler: LossScaler) -> list[tuple[float, bool]]:
    """What `scaler` does when the largest gradients of the steps are these: a step overflows where the scale times
    the gradient rounds to nothing finite in fp16. An overflow at the floor ends the run."""
    steps = []
    for gradient in gradients:
        steps.append((scaler.scale, not isfinite(rounded(scaler.scale * gradient, FP16))))
        try:
            scaler.update(steps[-1][1])
        except ScaleError:
            break
    return steps


# How the largest gradient may move over a run, as a power of two beside its middle; `done` goes from 0 to 1.
COURSES: dict[str, Callable[[float, int], float]] = {
    "steady": lambda done, step: 0.4 * cos(step),
    "falling": lambda done, step: 5 - 10 * done + 0.4 * cos(step),
    "growing": lambda done, step: -5 + 10 * done + 0.4 * cos(step),
    "waves": lambda done, step: 4 * cos(4 * pi * done),
    "spikes": lambda done, step: 7.0 if step % 30 == 22 else 0.4 * cos(step),
}


def gradient_course(name: str, power: int) -> list[float]:
    """The largest gradient of each of STEPS steps, around 2**power; one of COURSES, without chance in it."""
    return [2.0 ** (power + COURSES[name](step / (STEPS - 1), step)) for step in range(STEPS)]


def loss_scale(steps: Steps, gradients: Sequence[float] = ()) -> Picture:
    """A scale from step to step, skipped steps marked; beside it, where gradients are known, the largest scale
    that they allow. If they go on, an overflow at the floor has ended the course."""
    figure, (axes,) = panels(1, 3.4)
    scales = [log2(scale) for scale, _ in steps]
    limits = [log2(FP16.largest / one) if 0 < one < inf else nan for one in gradients[: len(steps)]]
    axes.stairs(scales, baseline=None, color=ink(PALE[4]), linewidth=2, label="loss scale")
    if limits:
        style = {"color": ink(PALE[5]), "linestyle": "--", "label": "largest scale without overflow"}
        axes.stairs(limits, baseline=None, **style)
    if skipped := [step for step, (_, was) in enumerate(steps) if was]:
        # In the middle of its step: the scale in force is the one that overflowed.
        axes.plot(
            [step + 0.5 for step in skipped], [scales[step] for step in skipped], "X", color="#D55E00",
            markeredgecolor="black", markersize=8, clip_on=False, label="skipped step",
        )  # fmt: skip
    heights = [*filter(isfinite, scales + limits)]
    bottom, top = floor(min(heights)) - 1, ceil(max(heights)) + 1
    powers = range(bottom, top + 1, ceil((top - bottom) / 10))
    axes.set(xlim=(0, len(steps)), ylim=(bottom, top), xlabel="step", ylabel="loss scale")
    axes.set_yticks(powers, [f"$2^{{{power}}}$" for power in powers])
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(axis="y", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    legend(figure)
    said = f"{len(skipped)} of {len(steps)} steps skipped"
    if len(steps) < len(gradients):
        said += "; the last one overflowed at the floor, which ends the run"
    first, last = steps[0][0], steps[-1][0]
    reach = f"from {FP16.smallest_subnormal / last:.2g} to {FP16.largest / last:.4g}"
    verdict = f"{said}\na scale of {short(last)} keeps gradients {reach}"
    alt = f"The loss scale over {len(steps)} steps, from {short(first)} to {short(last)}: {said}."
    return Picture(figure, table_of(steps), alt, verdict)


def short(scale: float) -> str:
    return f"{scale:,.0f}" if scale.is_integer() and scale < 1e15 else f"{scale:.6g}"


def table_of(steps: Steps) -> str:
    """A row for each stretch of steps with one scale and one outcome."""
    rows: list[Any] = []
    first = 0
    for (scale, skipped), stretch in groupby(steps):
        last = first + len([*stretch]) - 1
        span = f"{first}" if first == last else f"{first} to {last}"
        rows.append([span, short(scale), f"{log2(scale):.6g}", "skipped" if skipped else "taken"])
        first = last + 1
    table = text_table(["steps", "scale", "log2", "outcome"], rows[:MOST_ROWS])
    left = len(rows) - MOST_ROWS
    return f"{table}\nand {left} rows more, for the steps after these" if left > 0 else table
