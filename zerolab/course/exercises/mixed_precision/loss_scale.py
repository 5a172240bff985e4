"""The exercise of lesson 06 on the loss scale."""

from __future__ import annotations

from random import Random

from zerolab.course.judge.case import Case
from zerolab.course.judge.exercise import Claim, Exercise
from zerolab.course.judge.model import Gives
from zerolab.course.judge.same import NEARLY, alike, short

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


MISTAKES = r"""
You double on the window-th clean step; the first one after an overflow, or of all, does not count
    if self.clean and self.clean % => if (self.clean + 1) %
Once the window is full you double at every step; the next doubling is a window later
    self.clean % self.window == 0 => self.clean >= self.window
After a doubling the next comes after `window` further steps: nothing is left out again
    self.clean += 1 => self.clean = 0 if self.clean and self.clean % self.window == 0 else self.clean + 1
A doubling forgives: afterwards there are `hysteresis` overflows again before one halves
    2 * self.scale, self.hysteresis - 1 => 2 * self.scale, self.forgiven
A clean step does not forgive; only a doubling does
    self.clean += 1 => self.clean, self.forgiven = self.clean + 1, self.hysteresis - 1
The hysteresis-th overflow halves; you forgive that one, too
    0, hysteresis - 1 => 0, hysteresis
    2 * self.scale, self.hysteresis - 1 => 2 * self.scale, self.hysteresis
An overflow that is forgiven is no clean step: the row of clean steps ends there, too
    max(self.forgiven - 1, 0), 0 => max(self.forgiven - 1, 0), self.clean if self.forgiven else 0
An overflow ends the row of clean steps: the count begins again
    max(self.forgiven - 1, 0), 0 => max(self.forgiven - 1, 0), self.clean
An OverflowError changes nothing, so the clean steps go on counting
    raise => self.clean = 0\n            raise
Where half would be less than min_scale, the scale becomes min_scale; the end comes after that
    self.scale == self.min_scale => self.scale / 2 < self.min_scale
"""


def updated(scaler, overflow):
    """The name of the error that update() raises, if it does."""
    try:
        scaler.update(overflow)
    # What people raise in the place of an OverflowError, which is one of them.
    except (ValueError, ArithmeticError, AssertionError) as raised:
        return type(raised).__name__


def run_scaler(fn, comm, settings, steps):
    """After each step the scale, or, where update() raised, [the error's name, the scale]; it goes on after that. A
    second one goes another way beside it."""
    # Whatever its parameters are called.
    scaler, other = fn(*settings.values()), fn(*settings.values())
    course = [scaler.scale]
    for overflow in steps:
        raised = updated(scaler, overflow)
        course.append([raised, scaler.scale] if raised else scaler.scale)
        updated(other, not overflow)
    return course


def drawn(rng: Random, **fixed: float):
    power = rng.randint(2, 16)
    settings = {
        "initial_power": power,
        "window": rng.randint(2, 5),
        "hysteresis": rng.randint(2, 4),
        "min_scale": rng.choice((1.0, 2.0, 3.0)),
    }
    steps = []
    while len(steps) < 60:
        steps += [False] * rng.randint(1, 12) + [True] * rng.randint(1, 3)
    # To the floor, and on; then up again.
    steps += [True] * (power + 15) + [False] * 12 + [True] * 3
    return settings | fixed, steps


def cases(rng: Random) -> list[Case]:
    ends = {"initial_power": 3, "window": 1, "hysteresis": 1, "min_scale": 8.0}
    tried = [
        *(drawn(rng) for _ in range(4)),
        # Halves that are no whole numbers.
        drawn(rng, min_scale=0.25),
        # Each overflow raises, and the row of clean steps goes on.
        (ends | {"window": 2}, [False, True, False, True, *[False] * 3]),
        # Window 1, nothing forgiven, a floor at the start.
        (ends, [rng.random() < 0.3 for _ in range(30)]),
        # Overflows at the floor that are forgiven.
        (ends | {"window": 2, "hysteresis": 3}, [True, False, True, True, *[False] * 4, True, True, True]),
        # From 4 to a floor of 3, and no farther.
        (ends | {"window": 3, "min_scale": 3.0}, [True] * 3 + [False] * 4 + [True]),
    ]
    return [Case([args], about=", ".join(f"{name} {value:g}" for name, value in args[0].items())) for args in tried]


def went(args, got, want):
    at = next(at for at, due in enumerate(want) if not alike(got[at], due, NEARLY))
    row = "".join("x" if overflow else "." for overflow in args[1][:at])[-20:]
    after = f"after {row} (x overflows)" if at else "at the start"
    return f"comes to {short(got[at])} {after}, and {short(want[at])} is due"


EXERCISE = Exercise(
    "LossScale",
    cases,
    (
        Claim(
            "the scale goes the way of the rule, step by step",
            Gives(
                look="Which sentence of the rule speaks of this step? A second scaler goes its own way beside this one",
                say=went,
            ),
        ),
    ),
    run=run_scaler,
    mistakes=MISTAKES,
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
