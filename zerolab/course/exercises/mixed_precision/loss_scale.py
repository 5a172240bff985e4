"""The exercise of lesson 06 on the loss scale. What is right is `zerolab.precision.LossScaler`, the library's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from zerolab.course.judge.case import Case, Observation
from zerolab.course.judge.exercise import Claim, Exercise
from zerolab.course.judge.same import short
from zerolab.precision import LossScaler
from zerolab.precision.scaler import ScaleError

TEXT = """
The scale finds its height

Write the loss scaler. `LossScale(initial_power, window, hysteresis, min_scale)` starts with the attribute `scale` at
2^initial_power. After each step somebody calls `update(overflow)`, with True or False. This is the rule, the one of
DeepSpeed and of this library:

- **Clean steps.** Number the clean steps since the last overflow (or since the start) 0, 1, 2, and so on. A clean
  step whose number is above 0 and divisible by `window` doubles the scale. So with window 3 the clean steps 3, 6, 9,
  ... double, which are the fourth, the seventh and the tenth.
- **Overflows.** At the start, and after each doubling, `hysteresis - 1` overflows are forgiven: they do not change
  the scale. (Their steps are skipped all the same.) When none is left, every further overflow halves it. Clean steps
  that do not double forgive nothing. Each overflow, also a forgiven one, ends the row of clean steps.
- **The floor.** The scale never falls below `min_scale`: where half would be less, it becomes `min_scale`.
  `min_scale` need not be a power of two; it may be below 1, and the first scale may be `min_scale`.
- **The end.** An overflow that should halve a scale which *is* `min_scale` raises `OverflowError` and changes
  nothing, so that neither `scale` nor any count is another afterwards.

The check draws windows, hystereses, floors and rows of clean steps and overflows, and goes on after an
`OverflowError`. About fifteen lines.
"""


class LossScale:
    """What the loss is multiplied by: `scale` before a step, `update(overflow)` after it."""

    ### BEGIN SOLUTION
    def __init__(self, initial_power: int, window: int, hysteresis: int, min_scale: float):
        self.scale, self.clean, self.forgiven = 2.0**initial_power, 0, hysteresis - 1
        self.window, self.hysteresis, self.min_scale = window, hysteresis, min_scale

    def update(self, overflow: bool) -> None:
        if not overflow:
            if self.clean and self.clean % self.window == 0:
                self.scale, self.forgiven = 2 * self.scale, self.hysteresis - 1
            self.clean += 1
            return
        if not self.forgiven and self.scale == self.min_scale:
            raise OverflowError("gradients overflow at the smallest scale")
        self.scale = self.scale if self.forgiven else max(self.scale / 2, self.min_scale)
        self.forgiven, self.clean = max(self.forgiven - 1, 0), 0

    ### END SOLUTION


RAISED = "OverflowError"
BESIDE = "a second one beside it: does one know of the other's steps?"
Course = list[Any]
"""The scale after each step, or [the error's name, the scale] where update() raised."""
OTHERS = (ValueError, RuntimeError, ArithmeticError, AssertionError)
"""What people raise in the place of an OverflowError, which is one of them."""


def follow(scaler: Any, steps: Sequence[bool], *errors: type[Exception]) -> Course:
    """The scale at the start and after each step; it goes on after an error."""
    course: Course = [scaler.scale]
    for overflow in steps:
        try:
            scaler.update(overflow)
            course.append(scaler.scale)
        except NotImplementedError:
            raise
        except errors as raised:
            named = RAISED if errors == (ScaleError,) else type(raised).__name__
            course.append([named, scaler.scale])
    return course


def run_scaler(fn: Callable[..., Any], comm: Any, settings: dict[str, Any], steps: list[bool]) -> Any:
    """The course of one alone, and of one beside which another goes its way."""
    alone = follow(made(fn, settings), steps, *OTHERS)
    one, other = made(fn, settings), made(fn, settings)
    beside: Course = [one.scale]
    for overflow in steps:
        beside += follow(one, [overflow], *OTHERS)[1:]
        follow(other, [not overflow], *OTHERS)
    return [alone, beside]


def made(fn: Callable[..., Any], settings: dict[str, Any]) -> Any:
    """A scaler, whatever its parameters are called."""
    try:
        return fn(**settings)
    except TypeError:
        return fn(*settings.values())


@dataclass
class Rule:
    """The rule with a mistake or none, in our own words for it."""

    initial_power: int
    window: int
    hysteresis: int
    min_scale: float
    mistakes: frozenset[str] = field(default_factory=frozenset)

    def __post_init__(self) -> None:
        self.scale: Any = 2.0**self.initial_power
        self.clean, self.left = 0, self.hysteresis
        # Where the scale would be without a floor, since it was last at or above it.
        self.below: Any = self.scale

    def update(self, overflow: bool) -> None:
        wrong = self.mistakes
        if overflow:
            self.overflow()
            return
        doubles = self.clean > 0 and self.clean % self.window == 0
        if "early" in wrong:
            doubles = (self.clean + 1) % self.window == 0
        if "late" in wrong:
            doubles = self.clean > self.window and (self.clean - 1) % self.window == 0
        if "always" in wrong:
            doubles = self.clean >= self.window
        if "anew" in wrong and doubles:
            # The count begins again, as it did at the start, so that one more step passes each time.
            self.clean = -1
        if doubles:
            begun = self.below if "power kept" in wrong else self.scale
            self.scale = max(begun * (1.0 if "never" in wrong else 2.0), self.scale)
            self.below = begun * 2.0
            if "no refill" not in wrong:
                self.left = self.hysteresis
        if "clean refill" in wrong:
            self.left = self.hysteresis
        self.clean += 1

    def overflow(self) -> None:
        wrong = self.mistakes
        if "floor first" in wrong and self.scale == self.min_scale:
            raise OverflowError
        if self.left > 1 and "no hysteresis" not in wrong:
            self.left -= 1
            if not wrong & {"forgiven goes on", "goes on"}:
                self.clean = 0
            return
        if "spent" in wrong and self.left == 1:
            self.left = 0
            self.clean = 0
            return
        at_floor = self.scale < 2 * self.min_scale if "no landing" in wrong else self.scale == self.min_scale
        if at_floor and "no floor" not in wrong and "stays" not in wrong:
            if "row ends" in wrong:
                self.clean = 0
            raise OverflowError
        lower = self.scale // 2 if "whole" in wrong else self.scale / (4 if "quarter" in wrong else 2)
        self.below = lower
        self.scale = lower if "no floor" in wrong else max(lower, self.min_scale)
        if "refill" in wrong:
            self.left = self.hysteresis
        if "goes on" not in wrong:
            self.clean = 0


MISTAKES = {
    "early": "You double on the window-th clean step; the first one after an overflow, or of all, does not count",
    "late": "You double one step too late: after the first clean step, every window-th doubles",
    "always": "Once the window is full you double at every step; the next doubling is a window later",
    "anew": "After a doubling the next comes after `window` further steps: nothing is left out again",
    "never": "It never doubles",
    "no refill": "A doubling forgives: afterwards there are `hysteresis` overflows again before one halves",
    "clean refill": "A clean step does not forgive; only a doubling does",
    "no hysteresis": "The first hysteresis - 1 overflows are forgiven: they do not halve",
    "spent": "The hysteresis-th overflow halves; you forgive that one, too",
    "refill": "Once one has halved, every further overflow halves, too, until the scale doubles",
    "forgiven goes on": "An overflow that is forgiven is no clean step: the row of clean steps ends there, too",
    "goes on": "An overflow ends the row of clean steps: the count begins again",
    "quarter": "An overflow halves",
    "no floor": "The scale is never below min_scale",
    "stays": "An overflow that should halve a scale which is at min_scale raises OverflowError",
}


ELSEWHERE = {
    "floor first": "At the floor, too, an overflow that is forgiven is forgiven",
    "no landing": "Where half would be less than min_scale, the scale becomes min_scale; the end comes after that",
    "whole": "Half of a scale need not be a whole number: divide with /",
    "power kept": "A doubling doubles the scale as it is, at a floor that is no power of two, too",
    "row ends": "An OverflowError changes nothing, so the clean steps go on counting",
}
"""Mistakes that show only at some floors: where the scale begins, or which is no power of two."""


def course_of(settings: dict[str, Any], steps: Sequence[bool], mistake: str = "") -> Course:
    return follow(Rule(**settings, mistakes=frozenset([mistake])), steps, OverflowError)


def library(settings: dict[str, Any], steps: Sequence[bool]) -> Course:
    return follow(LossScaler(**settings), steps, ScaleError)


def drawn(rng: Random) -> tuple[dict[str, Any], list[bool]]:
    settings: dict[str, Any] = {
        "initial_power": rng.randint(2, 16),
        "window": rng.randint(2, 5),
        "hysteresis": rng.randint(2, 4),
        "min_scale": rng.choice((0.25, 1.0, 2.0, 3.0)),
    }
    steps: list[bool] = []
    while len(steps) < 60:
        steps += [False] * rng.randint(1, 12) + [True] * rng.randint(1, 3)
    # To the floor, and on; then up again.
    steps += [True] * (settings["initial_power"] + 15) + [False] * 12 + [True] * 3
    return settings, steps


def telling(rng: Random) -> tuple[dict[str, Any], list[bool]]:
    """A course on which all mistakes show, each in its own way."""
    while True:
        settings, steps = drawn(rng)
        courses = [library(settings, steps), *(course_of(settings, steps, mistake) for mistake in MISTAKES)]
        if len({str(course) for course in courses}) == len(courses):
            return settings, steps


def cases(rng: Random) -> list[Case]:
    tried = [telling(rng) for _ in range(2)]
    tried += [drawn(rng) for _ in range(2)]
    settings, steps = drawn(rng)
    # Halves that are no whole numbers.
    tried.append((settings | {"min_scale": 0.25}, steps))
    # Each overflow raises, and the row of clean steps goes on.
    ends: dict[str, Any] = {"initial_power": 3, "window": 1, "hysteresis": 1, "min_scale": 8.0}
    tried.append((ends | {"window": 2}, [False, True, False, True, *[False] * 3]))
    # Window 1, nothing forgiven, a floor at the start.
    tried.append((ends, [rng.random() < 0.3 for _ in range(30)]))
    # Overflows at the floor that are forgiven.
    tried.append((ends | {"window": 2, "hysteresis": 3}, [True, False, True, True, *[False] * 4, True, True, True]))
    # From 4 to a floor of 3, and no farther.
    uneven: dict[str, Any] = {"initial_power": 3, "window": 3, "hysteresis": 1, "min_scale": 3.0}
    tried.append((uneven, [True] * 3 + [False] * 4 + [True]))
    return [Case([args], about=", ".join(f"{name} {value:g}" for name, value in args[0].items())) for args in tried]


def right(case: Case, seen: Observation) -> str | None:
    settings, steps = case.args[0]
    want = library(settings, steps)
    got, beside = seen.records[0].value
    if got == want:
        return None if beside == want else f"alone it is right, and wrong with {BESIDE}"
    if not isinstance(got, list) or any(isinstance(value, bool) or not plain(value) for value in got):
        return f"scale is {short(got[0] if isinstance(got, list) else got)}, and a number is due"
    at = next(at for at, value in enumerate(got) if value != want[at])
    if not at:
        return f"it begins with scale {short(got[0])}, and 2 ** initial_power, {want[0]:g}, is due"
    row = "".join("x" if overflow else "." for overflow in steps[:at])[-20:]
    said = f"after {row} (x overflows) {spoken(got[at])}, and {spoken(want[at], due=True)}"
    if isinstance(got[at], list) and got[at][0] != RAISED:
        return f"{said}. What should halve a scale at the floor raises {RAISED}, and nothing else raises"
    for mistake, says in (MISTAKES | ELSEWHERE).items():
        if got == course_of(settings, steps, mistake):
            return f"{said}. {says}"
    if isinstance(want[at], list) and isinstance(got[at], list):
        return f"{said}. Raise before you change anything"
    return f"{said}. {look(want, at, steps)}"


def look(want: Course, at: int, steps: Sequence[bool]) -> str:
    """Which sentence of the rule speaks of this step."""
    before, after = want[at - 1], want[at]
    if not steps[at - 1]:
        asked = "How many clean steps in a row were there?"
        raised = [isinstance(after, list) for after, overflow in zip(want[1:], steps[:at], strict=False) if overflow]
        if raised and all(raised):
            return f"{asked} Here every x raises: {ELSEWHERE['row ends']}"
        return asked
    if isinstance(after, list):
        return "What does the rule say of an overflow at the floor?"
    return "How many overflows have been forgiven since it last doubled?" if before == after else "Does this one halve?"


def plain(value: Any) -> bool:
    return isinstance(value, int | float) or (isinstance(value, list) and len(value) == 2 and plain(value[1]))


def spoken(value: Any, due: bool = False) -> str:
    if isinstance(value, list):
        return f"{RAISED} is due, at scale {value[1]:g}" if due else f"it raises {value[0]}, at scale {value[1]:g}"
    return f"{value:g} is due" if due else f"scale is {value:g}"


EXERCISE = Exercise(
    "LossScale",
    cases,
    (Claim("the scale goes the way of the rule, step by step", right),),
    run=run_scaler,
    hints=(
        "Two counts are enough: the clean steps since the last overflow, and how many overflows are still forgiven.",
        "Of the clean steps since the last overflow, numbered from 0, those double whose number is above 0 and "
        "divisible by the window.",
        "An overflow: is one still forgiven? Else, is the scale at the floor? Else halve, and mind the floor.",
    ),
    text=TEXT,
    answer=(LossScale,),
    points=1,
)
