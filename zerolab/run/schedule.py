"""The learning rate of each step, a function of its number alone.

warmup_steps   it rises: (step + 1) / (warmup_steps + 1) of lr; where warmup_shape is log, as DeepSpeed has it
decay_steps    then it falls, by half a cosine or in a line, and is min_lr from here on
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from zerolab.errors import InputError

Kind = Literal["constant", "cosine", "linear"]
WarmupShape = Literal["line", "log"]


@dataclass(frozen=True)
class LrSchedule:
    """`schedule(step)` is the learning rate of a step, counted from 0."""

    lr: float
    kind: Kind = "constant"
    warmup_steps: int = 0
    decay_steps: int = 1
    min_lr: float = 0.0
    warmup_shape: WarmupShape = "line"

    def __post_init__(self) -> None:
        if self.kind == "constant":
            return
        if self.decay_steps < self.warmup_steps:
            within = f"within the {self.warmup_steps} steps of the warm-up"
            raise InputError(f"decay_steps is {self.decay_steps}, {within}; give more, or fewer warmup_steps")
        if self.min_lr > self.lr:
            raise InputError(f"min_lr is {self.min_lr:g} and lr {self.lr:g}; a schedule ends below lr")

    def __call__(self, step: int) -> float:
        if step < self.warmup_steps and self.warmup_shape == "log":
            return self.lr * math.log(step + 2) / math.log(self.warmup_steps + 2)
        if step < self.warmup_steps:
            return self.lr * (step + 1) / (self.warmup_steps + 1)
        if self.kind == "constant":
            return self.lr
        if step >= self.decay_steps:
            return self.min_lr
        done = (step - self.warmup_steps) / (self.decay_steps - self.warmup_steps)
        left = 1 - done if self.kind == "linear" else 0.5 * (1 + math.cos(math.pi * done))
        return self.min_lr + left * (self.lr - self.min_lr)

    def set(self, groups: Iterable[dict[str, Any]], step: int) -> None:
        """Give a torch optimizer's `param_groups` the rate of a step."""
        rate = self(step)
        for group in groups:
            group["lr"] = rate
