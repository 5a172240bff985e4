"""A forward and a backward of stage 3 on paper: which units are gathered when, within limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from zerolab.zero.limits import NO_LIMITS, Stage3Limits


@dataclass
class Walk:
    """One forward and backward of units that run in order, on paper: which are gathered, in order, of these so many
    `in_forward`, and the most at a time.

    numels    elements of each unit, in forward order
    sizes     bytes of each, for `peak`
    first     backward reaches the units from this one on
    resident  units that run once more at the end of the forward, and stay until then
    """

    numels: Sequence[int]
    sizes: Sequence[int]
    limits: Stage3Limits = NO_LIMITS
    prefetch: bool = True
    first: int = 0
    resident: Sequence[int] = ()
    peak: int = 0
    gathers: list[int] = field(default_factory=list)
    in_forward: int = 0

    def __post_init__(self) -> None:
        self._here: set[int] = set()
        forward = [*range(len(self.numels)), *self.resident]
        backward = [unit for unit in reversed(forward) if unit >= self.first]
        for runs, kept in ((forward, self._is_kept), (backward, None)):
            for at, unit in enumerate(runs):
                coming = runs[at + 1 :]
                self._run(unit, coming)
                if unit not in coming and not (kept and kept(unit, coming)):
                    self._here.discard(unit)
            if kept:
                self.in_forward = len(self.gathers)

    def _is_kept(self, unit: int, coming: Sequence[int]) -> bool:
        return unit >= self.first and self.limits.keeps(unit, coming, self.numels.__getitem__)

    def _run(self, unit: int, coming: Sequence[int]) -> None:
        self._gather(unit)
        if self.prefetch:
            sizes = [(self.numels[other], other in self._here) for other in coming]
            live = sum(self.numels[other] for other in self._here)
            for other in coming[: self.limits.ahead(sizes, live)]:
                self._gather(other)
        self.peak = max(self.peak, sum(self.sizes[other] for other in self._here))

    def _gather(self, unit: int) -> None:
        if unit not in self._here:
            self._here.add(unit)
            self.gathers.append(unit)


__all__ = ["NO_LIMITS", "Stage3Limits", "Walk"]
