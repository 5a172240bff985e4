"""States that rest on a disk: sub-group k+1 is read while k steps and k-1 is written (ZeRO-Infinity, section 6.3).

A sub-group's record lies in a file, and in one of a few host buffers while it is at hand. When a transfer fails the
step ends half-way, and the engine then refuses all but a load of a checkpoint (`overwrite.py`).
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence

import torch

from zerolab.offload.buffers import aligned
from zerolab.offload.files import open_file
from zerolab.offload.lane import Lane, Trace, Transfer, pipeline
from zerolab.zero.tiers.stored_step import StoredSegment, StoredStep

Tensor = torch.Tensor


class DiskStep(StoredStep):
    """The step where states rest in a file of this rank's own. `trace`, if set, is called after each read, computation
    and write with its times (`zerolab.offload.lane.pipeline`)."""

    trace: Trace[int] | None = None
    _buffers: Sequence[Tensor] = ()
    _walk: Generator[tuple[int, int]] | None = None

    def lay_out(self, sizes: Sequence[int]) -> None:
        if sizes:
            self.file = open_file(self.offload.folder, f"optimizer-rank{self.comm.rank}", sizes)
            self.lanes = [Lane([self.file])]
            self._buffers = [aligned(max(sizes)) for _ in sizes[: self.offload.buffer_count]]

    def walk(self) -> Iterator[tuple[list[StoredSegment], Tensor]]:
        self._walk = pipeline(range(len(self.groups)), self._read, self._write, len(self._buffers), self.trace)
        for number, at in self._walk:
            # The walk begins to write the buffer at its next turn.
            yield self.groups[number], self._buffers[at]

    def forget(self) -> None:
        super().forget()
        # Returns once no thread touches a buffer.
        if self._walk is not None:
            self._walk.close()

    def read(self, number: int) -> Tensor:
        self._read(number, 0).wait()
        return self._buffers[0]

    def write(self, number: int) -> None:
        self._write(number, 0).wait()

    def transient(self) -> list[Tensor | None]:
        return [*self._buffers, *super().transient()]

    def _read(self, number: int, at: int) -> Transfer:
        return self.lanes[0].read(self.file, number, self._buffers[at])

    def _write(self, number: int, at: int) -> Transfer:
        return self.lanes[0].write(self.file, number, self._buffers[at])
