"""Answers to `LossScale` of lesson 06, wrong and right."""

from zoo.answers import Right, Wrong, blank, changed, everywhere, model

MODEL = model("06_mixed_precision", "LossScale")
PLAIN_COUNTS = """
class LossScale:
    def __init__(self, initial_power, window, hysteresis, min_scale):
        self.scale = 2.0 ** initial_power
        self.window, self.hysteresis, self.min_scale = window, hysteresis, min_scale
        self.clean, self.forgiven = 0, hysteresis - 1
    def update(self, overflow):
        if not overflow:
            if self.clean > 0 and self.clean % self.window == 0:
                self.scale *= 2
                self.forgiven = self.hysteresis - 1
            self.clean += 1
        elif self.forgiven > 0:
            self.forgiven -= 1
            self.clean = 0
        elif self.scale == self.min_scale:
            raise OverflowError("the smallest scale overflows")
        else:
            self.scale = max(self.scale / 2, self.min_scale)
            self.clean = 0
"""

WRONG = [
    blank("LossScale", "class LossScale:\n"),
    Wrong("the window-th step",
          changed(MODEL, "self.clean and self.clean", "(self.clean + 1)"),
          "You double on the window-th clean step"),
    Wrong("one step late",
          changed(MODEL, "and self.clean", "> self.window and (self.clean - 1)"),
          "one step too late"),
    Wrong("doubles on and on",
          changed(MODEL, "and self.clean % self.window == 0", ">= self.window"),
          "Once the window is full"),
    Wrong("counts anew",
          changed(MODEL, "self.clean += 1", "    self.clean = -1\n            self.clean += 1"),
          "nothing is left out again"),
    Wrong("never doubles",
          changed(MODEL, "2 * self", "self"),
          "It never doubles"),
    Wrong("a doubling forgives nothing",
          changed(MODEL, ".hysteresis - 1", ".forgiven"),
          "A doubling forgives"),
    Wrong("a clean step forgives",
          changed(MODEL, "return", "self.forgiven = self.hysteresis - 1\n            return"),
          "A clean step does not forgive"),
    Wrong("forgives nothing",
          changed(changed(MODEL, "0, hysteresis - 1", "0, 0"), "self.hysteresis - 1", "0"),
          "overflows are forgiven: they do not halve"),
    Wrong("forgives one more",
          changed(changed(MODEL, "0, hysteresis - 1", "0, hysteresis"), "hysteresis - 1", "hysteresis"),
          "you forgive that one, too"),
    Wrong("forgives again after halving",
          changed(MODEL,
                  "self.forgiven,",
                  "if not self.forgiven:\n"
                  "            self.forgiven = self.hysteresis\n"
                  "        self.forgiven,"),
          "Once one has halved"),
    Wrong("a forgiven one counts as clean",
          changed(MODEL, "1, 0), 0", "1, 0), self.clean if self.forgiven else 0"),
          "that is forgiven is no clean step"),
    Wrong("counts on",
          changed(MODEL, "1, 0), 0", "1, 0), self.clean"),
          "An overflow ends the row"),
    Wrong("quarters",
          changed(MODEL, "2, self", "4, self"),
          "An overflow halves"),
    Wrong("no floor",
          changed(changed(MODEL,
                          "self.scale == self.min_scale",
                          "False"),
                  "max(self.scale / 2, self.min_scale)",
                  "self.scale / 2"),
          "never below min_scale"),
    Wrong("no end",
          changed(MODEL, "self.scale == self.min_scale", "False"),
          "raises OverflowError"),
    Wrong("the floor comes first",
          changed(MODEL, "if not self.forgiven and", "if"),
          "At the floor, too"),
    Wrong("whole halves",
          changed(MODEL, "scale / 2", "scale // 2"),
          "divide with /"),
    Wrong("changes, then raises",
          changed(MODEL, "raise", "self.scale /= 2\n            raise"),
          "Raise before you change anything"),
    Wrong("forgets the row, then raises",
          changed(MODEL, "raise", "self.clean = 0\n            raise"),
          "An OverflowError changes nothing"),
    Wrong("ends above the floor",
          changed(changed(MODEL,
                          ".scale ==",
                          ".scale / 2 <"),
                  "max(self.scale / 2, self.min_scale)",
                  "self.scale / 2"),
          "the scale becomes min_scale"),
    Wrong("begins with the power",
          changed(MODEL, "2.0**initial_power", "float(initial_power)"),
          "it begins with scale"),
    Wrong("shared by all",
          everywhere(MODEL, "self.clean", "LossScale.clean"),
          "a second one beside it"),
    Wrong("a method", """
class LossScale:
    def __init__(self, initial_power, window, hysteresis, min_scale):
        self.height, self.clean, self.forgiven = 2.0**initial_power, 0, hysteresis - 1
        self.window, self.hysteresis, self.min_scale = window, hysteresis, min_scale

    def update(self, overflow):
        if not overflow:
            if self.clean and self.clean % self.window == 0:
                self.height, self.forgiven = 2 * self.height, self.hysteresis - 1
            self.clean += 1
            return
        if not self.forgiven and self.height == self.min_scale:
            raise OverflowError("gradients overflow at the smallest scale")
        self.height = self.height if self.forgiven else max(self.height / 2, self.min_scale)
        self.forgiven, self.clean = max(self.forgiven - 1, 0), 0

    def scale(self):
        return self.height
""", "a number is due"),
    # A check let these pass once, or sent them elsewhere.
    Wrong("another error",
          changed(PLAIN_COUNTS, "OverflowError", "ValueError"),
          "and nothing else raises"),
    # Fail at an edge alone, or in a second call.
    Wrong("a power kept below the floor", """
import math
class LossScale:
    def __init__(self, initial_power, window, hysteresis, min_scale):
        self.power, self.window, self.h, self.floor = initial_power, window, hysteresis, min_scale
        self.left, self.n = hysteresis - 1, 0
    @property
    def scale(self):
        return max(2.0**self.power, self.floor)
    def update(self, overflow):
        if overflow:
            if self.left:
                self.left -= 1
            elif self.scale == self.floor:
                raise OverflowError
            else:
                self.power -= 1
            self.n = 0
            return
        if self.n and self.n % self.window == 0:
            self.power += 1
            self.left = self.h - 1
        self.n += 1
""", "A doubling doubles the scale as it is"),
]  # fmt: skip

RIGHT = [
    Right("plain counts", PLAIN_COUNTS),
    Right("whole numbers where they are whole", """
class LossScale:
    def __init__(self, initial_power, window, hysteresis, min_scale):
        self.scale = 2 ** initial_power
        self.window, self.hysteresis, self.floor = window, hysteresis, min_scale
        self.since = -1
        self.patience = hysteresis
    def update(self, overflow):
        if overflow:
            if self.patience > 1:
                self.patience -= 1
            else:
                if self.scale <= self.floor:
                    raise OverflowError
                half = self.scale // 2 if isinstance(self.scale, int) and self.scale % 2 == 0 else self.scale / 2
                self.scale = half if half > self.floor else self.floor
            self.since = -1
            return
        self.since += 1
        if self.since and not self.since % self.window:
            self.scale, self.patience = 2 * self.scale, self.hysteresis
"""),
    Right("a coroutine", """
class LossScale:
    def __init__(self, initial_power, window, hysteresis, min_scale):
        self.window, self.hysteresis, self.min_scale = window, hysteresis, min_scale
        self.scale = math.ldexp(1.0, initial_power)
        self.steps, self.spare = 0, hysteresis - 1
    def update(self, overflow):
        return self.dirty() if overflow else self.tidy()
    def tidy(self):
        number, self.steps = self.steps, self.steps + 1
        if number and number % self.window == 0:
            self.scale, self.spare = self.scale * 2, self.hysteresis - 1
    def dirty(self):
        if not self.spare and self.scale == self.min_scale:
            raise OverflowError(f"scale {self.scale} cannot be halved")
        self.steps = 0
        if self.spare:
            self.spare -= 1
        else:
            self.scale = self.min_scale if self.scale / 2 < self.min_scale else self.scale / 2
"""),
    Right("a property over an exponent and a floor", """
class LossScale:
    def __init__(self, initial_power, window, hysteresis, min_scale):
        self._state = (2.0 ** initial_power, 0, 0)
        self._rule = window, hysteresis, min_scale
    @property
    def scale(self):
        return self._state[0]
    def update(self, overflow):
        window, hysteresis, floor = self._rule
        scale, clean, overflows = self._state
        if not overflow:
            doubles = clean >= window and clean % window == 0
            self._state = (scale * 2, clean + 1, 0) if doubles else (scale, clean + 1, overflows)
        elif overflows + 1 < hysteresis:
            self._state = (scale, 0, overflows + 1)
        elif scale == floor:
            raise OverflowError("no lower")
        else:
            self._state = (max(floor, scale * 0.5), 0, overflows)
"""),
    Right("a dataclass with a countdown", """
from dataclasses import dataclass, field
@dataclass
class LossScale:
    initial_power: int
    window: int
    hysteresis: int
    min_scale: float
    scale: float = field(init=False)
    def __post_init__(self):
        self.scale = float(2 ** self.initial_power)
        self.left = self.window + 1
        self.lives = self.hysteresis
    def update(self, overflow):
        if overflow:
            if self.lives == 1:
                if self.scale == self.min_scale:
                    raise OverflowError("at the floor")
                self.scale = max(self.min_scale, self.scale / 2)
            else:
                self.lives -= 1
            self.left = self.window + 1
        else:
            self.left -= 1
            if self.left == 0:
                self.scale += self.scale
                self.lives, self.left = self.hysteresis, self.window
"""),
    Right("named differently, enum of events", """
from enum import Enum
class Event(Enum):
    CLEAN, OVERFLOW = range(2)
class LossScale:
    def __init__(self, power, every, patience, floor):
        self.scale = 1.0
        for _ in range(power):
            self.scale += self.scale
        self.every, self.patience, self.floor = every, patience, floor
        self.number, self.overflows = 0, 0
    def update(self, flag):
        {Event.CLEAN: self.clean, Event.OVERFLOW: self.burst}[Event(int(flag))]()
    def clean(self):
        if self.number >= self.every and not self.number % self.every:
            self.scale, self.overflows = self.scale * 2.0, 0
        self.number += 1
    def burst(self):
        forgiven = self.overflows < self.patience - 1
        lower = self.scale if forgiven else max(self.floor, self.scale * 0.5)
        if not forgiven and self.scale == self.floor:
            raise OverflowError(f"{self.scale} is the floor")
        self.scale, self.number, self.overflows = lower, 0, self.overflows + 1
"""),
    Right("property and a tuple", """
class LossScale:
    def __init__(self, initial_power, window, hysteresis, min_scale):
        self._fixed = window, hysteresis, min_scale
        self._state = (2.0 ** initial_power, 0, hysteresis)
    @property
    def scale(self):
        return self._state[0]
    def update(self, overflow):
        window, hysteresis, least = self._fixed
        scale, clean, left = self._state
        if overflow and left > 1:
            self._state = (scale, 0, left - 1)
        elif overflow:
            if scale == least:
                raise OverflowError(f"at {least}")
            self._state = (max(scale / 2, least), 0, left)
        elif clean > 0 and clean % window == 0:
            self._state = (scale * 2, clean + 1, hysteresis)
        else:
            self._state = (scale, clean + 1, left)
"""),
    # Have to hold at the edges.
    Right("plays the past again", """
class LossScale:
    def __init__(self, initial_power, window, hysteresis, min_scale):
        self._rule = initial_power, window, hysteresis, min_scale
        self._past = []
        self.scale = self._play(())
    def _play(self, past):
        power, window, hysteresis, floor = self._rule
        scale, number, used = 2.0**power, -1, 0
        for overflow in past:
            if overflow:
                if used == hysteresis - 1:
                    if scale <= floor:
                        raise OverflowError
                    scale = max(floor, scale * 0.5)
                else:
                    used += 1
                number = -1
            else:
                number += 1
                if number > 0 and number % window == 0:
                    scale += scale
                    used = 0
        return scale
    def update(self, overflow):
        self.scale = self._play([*self._past, overflow])
        self._past.append(overflow)
"""),
]  # fmt: skip
