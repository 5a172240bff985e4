"""Answers to `LossScale` of lesson 06, wrong and right."""

from zoo.answers import Right

RIGHT = [
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
