"""Which elements of which stretch a reader needs, in plain integers: no file, no tensor.

saved by 3 ranks     |---- rank 0 ----|---- rank 1 ----|---- rank 2 ----|       a parameter of 12 elements
                      0              4                8               12
read by 2 ranks      |-------- rank 0 ---------|-------- rank 1 ---------|
                      0                        6                        12
rank 0 reads          [0, 4) of rank 0's file and [4, 6) of rank 1's
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from zerolab.checkpoint.manifest import ShardRange
from zerolab.errors import CheckpointError


@dataclass(frozen=True)
class Part:
    """The elements `[start, stop)` of a parameter, which are some of a saved stretch's."""

    start: int
    stop: int
    source: ShardRange

    @property
    def within(self) -> tuple[int, int]:
        """The same elements, counted from the beginning of the stretch."""
        return self.start - self.source.start, self.stop - self.source.start


def plan(stretches: Sequence[ShardRange], start: int, stop: int) -> list[Part]:
    """The parts that make up the elements `[start, stop)` of a parameter, in order, each element once.

    Stretches may come in any order and overlap, as replicas do; then of those that have an element the one that goes
    furthest gives it. Raises a CheckpointError for elements that none has.
    """
    parts: list[Part] = []
    at = start
    while at < stop:
        # Of those that have the next element, the one that goes furthest.
        holding = [stretch for stretch in stretches if stretch.start <= at < stretch.stop]
        if not holding:
            raise CheckpointError(
                f"no file has element {at} of {start} to {stop}; the manifest is damaged: take another checkpoint"
            )
        source = max(holding, key=lambda stretch: stretch.stop)
        end = min(stop, source.stop)
        parts.append(Part(at, end, source))
        at = end
    return parts
