"""States that rest on a disk: sub-group k+1 is read while k steps and k-1 is written (ZeRO-Infinity, section 6.3).

A sub-group's record (`encoded_step.py`) lies in a file, and in one of a few host buffers while it is at hand. When a
transfer fails the step ends half-way, and the engine then refuses all but a load of a checkpoint (`changing.py`).
"""

from __future__ import annotations

from collections.abc import Generator, Iterator

import torch

from zerolab.offload.buffers import aligned
from zerolab.offload.lane import Lane, Transfer
from zerolab.offload.pipeline import Trace, pipeline
from zerolab.offload.unwritten import open_file
from zerolab.zero.tiers.encoded_step import EncodedStep, fields, record_bytes
from zerolab.zero.tiers.stored_step import StoredSegment, StoredState

Tensor = torch.Tensor


class DiskStep(EncodedStep):
    """The step where states rest in a file of this rank's own. `trace`, if set, is called after each read, computation
    and write with its times (`zerolab.offload.pipeline`)."""

    trace: Trace[int] | None = None
    _walk: Generator[tuple[int, int]] | None = None

    def prepare(self) -> None:
        offload = self.offload
        sizes = [record_bytes(group) for group in self.groups]
        self.file = open_file(offload.folder, f"optimizer-rank{self.comm.rank}", sizes) if sizes else None
        self._lane = Lane([self.file] if self.file else [])
        count = min(offload.buffer_count, len(sizes))
        largest = max((self.file.span(k) for k in range(len(sizes))), default=0) if self.file else 0
        self._buffers = [aligned(largest) for _ in range(count)]

    def begin_group(self, group: list[StoredSegment]) -> None:
        number, buffer = self.groups.index(group), self._buffers[0]
        buffer.zero_()
        self.write_main(group, buffer)
        self.stand_in(group)
        self._write(number, 0).wait()

    def at_hand(self) -> Iterator[list[StoredSegment]]:
        self._walk = pipeline(range(len(self.groups)), self._read, self._write, len(self._buffers), self._note)
        for number, at in self._walk:
            group, buffer = self.groups[number], self._buffers[at]
            self.decode(group, buffer)
            yield group
            # Into the buffer, which the walk begins to write at its next turn.
            self.encode(group, buffer)

    def forget(self) -> None:
        super().forget()
        # Returns once no thread touches a buffer.
        if self._walk is not None:
            self._walk.close()

    def stored(self, writing: bool = False) -> Iterator[list[StoredState]]:
        for number, group in enumerate(self.groups):
            self._read(number, 0).wait()
            yield [StoredState(*field) for field in fields(group, self._buffers[0])]
            if writing:
                self._write(number, 0).wait()

    def resting(self) -> list[Tensor]:
        return self._counters()

    def transient(self) -> list[Tensor | None]:
        return [*self._buffers, *super().transient()]

    def disk_bytes(self) -> int:
        return self.file.measure() if self.file else 0

    @property
    def lanes(self) -> list[Lane]:
        return [self._lane]

    def close(self) -> None:
        self._lane.close()

    def _read(self, number: int, at: int) -> Transfer:
        assert self.file is not None
        return self._lane.read(self.file, number, self._buffers[at])

    def _write(self, number: int, at: int) -> Transfer:
        assert self.file is not None
        return self._lane.write(self.file, number, self._buffers[at])

    def _note(self, kind: str, number: int, start: float, stop: float) -> None:
        if self.trace is not None:
            self.trace(kind, number, start, stop)
