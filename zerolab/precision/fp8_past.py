"""Which fp8 layers have the same scale for their inputs, told without reading it: on a GPU a look at two scales would
make the host wait in every layer that shares its input.

A scale follows from what it began with and from the inputs since. So each input gets a number, and a layer notes the
numbers that it has seen: layers whose notes are the same have the same scale. Layers with different notes may have it,
too; they then keep a copy of the input each.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import count

import torch

Tensor = torch.Tensor

_numbers = count()


class Past:
    """What a layer's scale of inputs follows from. `buffers` are the layer's, with a row for inputs; somebody else may
    write to them, who loads a checkpoint, say. Then that row is read, once."""

    def __init__(self) -> None:
        self._before: Hashable = None
        self._step: list[int] = []
        self._versions: tuple[int, ...] = ()

    def of(self, buffers: Sequence[Tensor], row: int, number: int) -> Hashable:
        """Alike for layers that have the same scale for the input with this number."""
        if not self.is_known(buffers):
            self._before = tuple(tuple(buffer[row].view(-1).tolist()) for buffer in buffers)
            self._step = []
            self.wrote(buffers)
        # The very first input may be what the scale is made from.
        return self._before, self._step[0] if self._step else number

    def saw(self, number: int) -> None:
        # What backward computes again was seen in forward.
        if torch._C._current_graph_task_id() == -1:
            self._step.append(number)

    def is_known(self, buffers: Sequence[Tensor]) -> bool:
        """Whether nobody but the layer has written to its buffers."""
        return self._versions == versions(buffers)

    def wrote(self, buffers: Sequence[Tensor]) -> None:
        """The layer itself has written to its buffers."""
        self._versions = versions(buffers)

    def advance(self) -> None:
        """A step has ended."""
        self._before, self._step = hash((self._before, *self._step)), []


def versions(buffers: Sequence[Tensor]) -> tuple[int, ...]:
    return tuple(buffer._version for buffer in buffers)


def new_number() -> int:
    """A number for an input."""
    return next(_numbers)
