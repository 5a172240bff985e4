"""A swap file of a world without values: it has records and a size, and nothing of it is on a disk."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

import torch

from zerolab.flat.views import values_here
from zerolab.offload.files import SwapFile
from zerolab.offload.groups import on_disk


class UnwrittenFile(SwapFile):
    """Takes what a `SwapFile` takes, and moves nothing. On a virtual clock its transfers take no time."""

    def __init__(self, folder: str | Path, name: str, sizes: Sequence[int]) -> None:
        self.sizes = tuple(sizes)
        self._starts = [0, *accumulate(map(on_disk, sizes))]
        self.nbytes = self._starts[-1]
        self.path = Path(folder) / name
        self.direct, self.why_not = True, ""

    def measure(self) -> int:
        return self.nbytes

    def read(self, i: int, buffer: torch.Tensor, start: int = 0, stop: int | None = None) -> None:
        self.check(i, buffer)

    def write(self, i: int, buffer: torch.Tensor, start: int = 0, stop: int | None = None) -> None:
        self.check(i, buffer)

    def check(self, i: int, buffer: torch.Tensor) -> None:
        self._check(i)

    def close(self) -> None:
        pass


def open_file(folder: str | Path, name: str, sizes: Sequence[int]) -> SwapFile:
    """A swap file of this world."""
    return (SwapFile if values_here() else UnwrittenFile)(folder, name, sizes)
