"""The factor by which fp16 training multiplies its loss, so that small gradients do not become 0.

Backward then computes gradients above the smallest numbers of fp16, and the step divides by the factor (Micikevicius et
al., arXiv 1710.03740, section 3.2). A dynamic factor doubles after a while without overflow, and halves when gradients
hold inf or NaN; that step is skipped.

The rule is DeepSpeed's (`DynamicLossScaler`, version 0.19), step by step, with hysteresis and a floor, which torch's
`GradScaler` does not have. With `hysteresis=1` they still differ: GradScaler doubles on the `window`-th clean step in a
row, DeepSpeed, at the start and after each overflow, on the one after it, since its count starts with the first clean
step; and GradScaler halves on below 1, where DeepSpeed stops at `min_scale`, and an overflow there ends the run.
DeepSpeed's factor becomes inf after 2**1023; ours stops there, the only place where it leaves DeepSpeed's way.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from sys import float_info

from zerolab.errors import InputError, ZerolabError
from zerolab.flat.layout import check_count
from zerolab.precision.recipe import Precision

FACTOR = 2.0
MOST_POWER = 127
"""2**127 is the largest power of two in fp32, in which the loss is scaled."""
LARGEST = 2.0**MOST_POWER * (2 - 2.0**-23)
"""The largest number of fp32. Every loss times a larger one is inf."""


class ScaleError(ZerolabError, ArithmeticError):
    """Gradients overflow although the loss scale is as small as it may be."""


@dataclass(eq=False)
class LossScaler:
    """The loss scale of a run: `scale` before a step, after it `update`, with the same answer on all ranks.

    initial_power           the scale starts at 2**initial_power
    window                  clean steps in a row, after the first, before the scale doubles
    hysteresis              the overflow that halves the scale: with 2, one is forgiven, though its step is skipped,
                            and each later one halves until the scale doubles
    min_scale               the scale is never below it
    static                  a fixed scale instead, which no overflow changes
    consecutive_hysteresis  a clean step, and not only a doubling, forgives all overflows before it
    """

    initial_power: int = 16
    window: int = 1000
    hysteresis: int = 2
    min_scale: float = 1.0
    static: float | None = None
    consecutive_hysteresis: bool = False

    def __post_init__(self) -> None:
        check_count("initial_power", self.initial_power, 0)
        if self.initial_power > MOST_POWER:
            raise InputError(f"initial_power is {self.initial_power}, beyond fp32; give at most {MOST_POWER}")
        check_count("window", self.window)
        check_count("hysteresis", self.hysteresis)
        _check_scale("min_scale", self.min_scale)
        if self.static is not None:
            _check_scale("static", self.static, " or None for a scale that follows the overflows")
            if self.static > LARGEST:
                raise InputError(f"static is {self.static:g}, beyond fp32; give at most 2**{MOST_POWER}")
        elif 2.0**self.initial_power < self.min_scale:
            raise InputError(
                f"min_scale is {self.min_scale:g}, above the scale at the start, 2**{self.initial_power}; "
                "give a smaller min_scale or a larger initial_power"
            )
        if not isinstance(self.consecutive_hysteresis, bool):
            raise InputError(f"consecutive_hysteresis is {self.consecutive_hysteresis!r}; give True or False")
        self._scale = float(2.0**self.initial_power if self.static is None else self.static)
        self._clean = 0  # steps since the last overflow
        self._left = self.hysteresis  # overflows, up to and with the one that halves

    @property
    def scale(self) -> float:
        """What the next loss is to be multiplied by."""
        return self._scale

    def update(self, overflow: bool) -> None:
        """Take note of a step: with `overflow` it was skipped, since a gradient of some rank was inf or NaN.

        Raises ScaleError, and changes nothing, for an overflow that should halve a scale that is at its floor.
        """
        if self.static is not None:
            return
        if overflow:
            self._shrink()
            self._clean = 0
            return
        # Not on the first clean step, though 0 is a multiple, too: this is where DeepSpeed counts one step more.
        if self._clean and self._clean % self.window == 0:
            self._left = self.hysteresis
            self._scale = _doubled(self._scale)
        if self.consecutive_hysteresis:
            self._left = self.hysteresis
        self._clean += 1

    def _shrink(self) -> None:
        if self._left > 1:
            self._left -= 1
        elif self._scale == self.min_scale:
            raise ScaleError(
                f"gradients overflow at the smallest loss scale, {self.min_scale:g}; "
                "train in bf16, lower the learning rate, or give a smaller min_scale"
            )
        else:
            self._scale = max(self._scale / FACTOR, self.min_scale)

    def state(self) -> dict[str, float | int]:
        """What a checkpoint must keep. The settings are not part of it."""
        return {"scale": self._scale, "clean": self._clean, "left": self._left}

    def load(self, state: Mapping[str, float | int]) -> None:
        """Go on where `state()` was taken, with the settings of this scaler: a static scale stays as it is, and no
        more overflows are forgiven than its hysteresis allows."""
        _check_scale("scale in the state", state["scale"])
        check_count("clean in the state", state["clean"], 0)  # type: ignore[arg-type]
        check_count("left in the state", state["left"])  # type: ignore[arg-type]
        if self.static is None and state["scale"] < self.min_scale:
            raise InputError(
                f"scale in the state is {state['scale']:g}, below min_scale, {self.min_scale:g}; "
                "give a smaller min_scale"
            )
        if self.static is None:
            self._scale = float(state["scale"])
        self._clean = int(state["clean"])
        self._left = min(int(state["left"]), self.hysteresis)


def _doubled(scale: float) -> float:
    return scale * FACTOR if isfinite(scale * FACTOR) else scale


def _check_scale(what: str, value: float, otherwise: str = "") -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= float_info.max:
        raise InputError(f"{what} is {value!r}; give a finite number above 0{otherwise}")


def find_scaler(precision: Precision | None, scaler: LossScaler | None) -> LossScaler | None:
    """The scaler that is given, or the default one where the precision has fp16. Refuses one that would do nothing."""
    if precision is not None and precision.scales_loss:
        return scaler or LossScaler()
    if scaler is not None:
        raise InputError("a loss scaler is given, but no state is fp16; leave it out, or choose precision fp16")
    return None
