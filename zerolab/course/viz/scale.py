"""The course of a loss scale: its height at each step, and the steps that were skipped."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import cos, isfinite, isinf, log2, pi
from typing import Any

from matplotlib.ticker import MaxNLocator

from zerolab.course.formats import FORMATS, rounded
from zerolab.course.viz.looks import PALE, ink
from zerolab.course.viz.picture import Picture, blank, text_table
from zerolab.errors import InputError
from zerolab.precision.scaler import LossScaler, ScaleError

FP16 = FORMATS["fp16"]
MOST_ROWS = 40
STEPS = 120


@dataclass(frozen=True)
class ScaleCourse:
    """Scales from step to step, each with whether its step was skipped."""

    steps: Sequence[tuple[float, bool]]
    gradients: Sequence[float] = ()
    """The largest gradient of each step, without the scale, where that is known."""
    ended: bool = False
    """Whether the last step overflowed at the floor, which ends a run."""


def scripted(overflows: Iterable[bool], scaler: LossScaler) -> ScaleCourse:
    """What `scaler` does when these steps overflow and the others do not."""
    flags = [bool(flag) for flag in overflows]
    return _drive(len(flags), lambda step, _: flags[step], scaler)


def simulated(gradients: Sequence[float], scaler: LossScaler) -> ScaleCourse:
    """What `scaler` does when the largest gradients of the steps are these: a step overflows where the scale times
    the gradient is more than fp16 can hold, which is what rounds to inf."""
    for gradient in gradients:
        if not isfinite(gradient) or gradient <= 0:
            raise InputError(f"a step's largest gradient is {gradient!r}; give finite numbers above 0")
    course = _drive(len(gradients), lambda step, scale: isinf(rounded(scale * gradients[step], FP16)), scaler)
    return ScaleCourse(course.steps, tuple(gradients[: len(course.steps)]), course.ended)


def _drive(count: int, overflows: Callable[[int, float], bool], scaler: LossScaler) -> ScaleCourse:
    steps: list[tuple[float, bool]] = []
    for step in range(count):
        steps.append((scaler.scale, overflows(step, scaler.scale)))
        try:
            scaler.update(steps[-1][1])
        except ScaleError:
            return ScaleCourse(steps, ended=True)
    return ScaleCourse(steps)


# How the largest gradient may move over a run, as a power of two beside its middle; `done` goes from 0 to 1.
COURSES: dict[str, Callable[[float, int], float]] = {
    "steady": lambda done, step: 0.4 * cos(step),
    "falling": lambda done, step: 5 - 10 * done + 0.4 * cos(step),
    "growing": lambda done, step: -5 + 10 * done + 0.4 * cos(step),
    "waves": lambda done, step: 4 * cos(4 * pi * done),
    "spikes": lambda done, step: 7.0 if step % 30 == 22 else 0.4 * cos(step),
}


def gradient_course(name: str, power: int, steps: int = STEPS) -> list[float]:
    """The largest gradient of each step, around 2**power; one of COURSES, without chance in it."""
    if name not in COURSES:
        raise InputError(f"there is no course {name!r}; choose one of {', '.join(COURSES)}")
    return [2.0 ** (power + COURSES[name](step / max(steps - 1, 1), step)) for step in range(steps)]


def loss_scale(course: ScaleCourse | Sequence[tuple[float, bool]]) -> Picture:
    """A scale from step to step, skipped steps marked; beside it, where the gradients are known, the largest scale
    that they allow. A recorded list of (scale, skipped) will do for a course."""
    if not isinstance(course, ScaleCourse):
        course = ScaleCourse([(float(scale), bool(skipped)) for scale, skipped in course])
    if not course.steps:
        raise InputError("the course has no steps; give one (scale, skipped) or more")
    for step, (scale, _) in enumerate(course.steps):
        if not isfinite(scale) or scale <= 0:
            raise InputError(f"the scale of step {step} is {scale!r}; give finite numbers above 0")
    figure = blank(7.4, 3.4)
    axes = figure.add_subplot()
    scales = [log2(scale) for scale, _ in course.steps]
    count = len(scales)
    axes.stairs(scales, range(count + 1), baseline=None, color=ink(PALE[4]), linewidth=2, label="loss scale")
    skipped = [step for step, (_, was) in enumerate(course.steps) if was]
    heights = list(scales)
    if course.gradients:
        limits = [log2(FP16.largest / gradient) for gradient in course.gradients]
        heights += limits
        axes.stairs(
            limits, range(count + 1), baseline=None, color=ink(PALE[5]), linestyle="--",
            label="largest scale without overflow",
        )  # fmt: skip
    if skipped:
        # In the middle of its step: the scale in force is the one that overflowed.
        axes.plot(
            [step + 0.5 for step in skipped], [scales[step] for step in skipped], "X", color="#D55E00",
            markeredgecolor="black", markersize=8, linestyle="none", clip_on=False, label="skipped step",
        )  # fmt: skip
    _frame(axes, min(heights), max(heights), count)
    figure.legend(frameon=False, loc="outside upper center", ncols=3, fontsize=9)
    said = summary(course)
    alt = f"The loss scale over {count} steps, from {_short(course.steps[0][0])} to {_short(course.steps[-1][0])}: "
    return Picture(figure, _table(course), f"{alt}{said.splitlines()[0]}.", said)


def _frame(axes: Any, low: float, high: float, count: int) -> None:
    bottom, top = int(low // 1) - 1, int(-(-high // 1)) + 1
    every = max(1, -(-(top - bottom) // 10))
    axes.set_ylim(bottom, top)
    axes.set_xlim(0, count)
    powers = range(bottom, top + 1, every)
    axes.set_yticks(powers, [f"$2^{{{power}}}$" for power in powers])
    axes.grid(axis="y", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.set_ylabel("loss scale")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("step")
    axes.spines[["top", "right"]].set_visible(False)


def summary(course: ScaleCourse) -> str:
    """A sentence on the course as a whole, and one on what its last scale does to gradients."""
    skipped, last = sum(was for _, was in course.steps), course.steps[-1][0]
    end = "; the last one overflowed at the floor, which ends the run" if course.ended else ""
    reach = f"from {FP16.smallest_subnormal / last:.2g} to {FP16.largest / last:.4g}"
    return f"{skipped} of {len(course.steps)} steps skipped{end}\na scale of {_short(last)} keeps gradients {reach}"


def _short(scale: float) -> str:
    return f"{scale:,.0f}" if scale.is_integer() and scale < 1e15 else f"{scale:.6g}"


def _table(course: ScaleCourse) -> str:
    """A row for each stretch of steps with one scale and one outcome."""
    rows: list[list[str]] = []
    first = 0
    for step, now in enumerate(course.steps):
        if step + 1 < len(course.steps) and course.steps[step + 1] == now:
            continue
        scale, skipped = now
        power = f"{log2(scale):.6g}"
        span = str(first) if first == step else f"{first} to {step}"
        rows.append([span, _short(scale), power, "skipped" if skipped else "taken"])
        first = step + 1
    table = text_table(["steps", "scale", "log2", "outcome"], rows[:MOST_ROWS])
    left = len(rows) - MOST_ROWS
    return f"{table}\nand {left} rows more, for the steps after these" if left > 0 else table
