"""States that rest on a disk: sub-group k+1 is read while k steps and k-1 is written (ZeRO-Infinity, section 6.3).

A record is what `encoded_step.py` says; at hand it lies in one of a few host buffers. A transfer that fails does not
lose the step: sub-groups that were updated and not yet written stay in their buffers, and the next call of `step`
writes them, then goes on with those that the first did not reach. Until then some parameters are of the step before and
some of this one, other ones on each rank, so the engine does nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import torch

from zerolab.collectives import phase
from zerolab.errors import LostError, OffloadError
from zerolab.offload.buffers import aligned
from zerolab.offload.files import SwapFile
from zerolab.offload.lane import Lane, Transfer
from zerolab.offload.pipeline import Trace, pipeline
from zerolab.zero.encoded_step import EncodedStep, fields, record_bytes
from zerolab.zero.optimizer_step import ShardSegment, StoredState

Tensor = torch.Tensor


class DiskStep(EncodedStep):
    """The step where states rest in a file of this rank's own. `trace` is told when what was read, computed, written
    (`zerolab.offload.pipeline`)."""

    may_fail = True
    trace: Trace[int] | None = None

    def prepare(self) -> None:
        offload = self.stage.offload
        sizes = [record_bytes(group) for group in self.groups]
        self.file = SwapFile(offload.folder, f"optimizer-rank{self.stage.comm.rank}", sizes) if sizes else None
        self._lane = Lane([self.file] if self.file else [])
        count = min(offload.buffer_count, len(sizes))
        largest = max((self.file.span(k) for k in range(len(sizes))), default=0) if self.file else 0
        self._buffers = [aligned(largest) for _ in range(count)]
        # While a step runs: the buffer that holds each updated sub-group, by the sub-group's number; None once it has
        # been written to the disk, since other sub-groups use the buffer then.
        self._updated: dict[int, Tensor | None] = {}
        self._half_done = False

    def begin(self, group: list[ShardSegment]) -> None:
        number, buffer = self.groups.index(group), self._buffers[0]
        buffer.zero_()
        self.write_main(group, buffer)
        self.stand_in(group)
        self._write(number, 0).wait()

    def step(self, factor: float) -> None:
        """A rank whose disk failed stops all, before any new parameter is handed around."""
        error: OffloadError | None = None
        try:
            super().step(factor)
        except OffloadError as failure:
            error = failure
            try:
                self.stage.store.settle()
            except LostError as worse:
                error = worse
        comm = self.stage.comm
        flag = 0 if error is None else 2 if isinstance(error, LostError) else 1
        with phase("norm"):
            flags = comm.all_gather(torch.tensor([flag], dtype=torch.float64, device=comm.device)).tolist()
        # Alike on all ranks: one that was ready before the others failed waits for them.
        self._half_done = any(flags)
        if self._half_done:
            rank, lost = flags.index(max(flags)), max(flags) > 1
            kind = LostError if lost else OffloadError
            hint = (
                "parameters of this step are lost: see to the disk, then begin again from a checkpoint"
                if lost
                else "this step is half done and nothing is lost: see to the disk, then call step() again on all ranks"
            )
            raise kind(f"rank {rank} failed to swap ({error or 'see there'}); {hint}") from error
        self._updated.clear()

    @property
    def half_done(self) -> bool:
        return self._half_done

    def at_hand(self) -> Iterator[list[ShardSegment]]:
        self._finish_writing()
        left = [number for number in range(len(self.groups)) if number not in self._updated]
        with closing(pipeline(left, self._read, self._write, max(1, len(self._buffers)), self._note)) as walk:
            for number, at in walk:
                buffer = self._buffers[at]
                self.decode(self.groups[number], buffer)
                yield self.groups[number]
                self.encode(self.groups[number], buffer)
                # The walk begins to write it at the next turn.
                self._updated[number] = buffer

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

    def close(self) -> None:
        self._lane.close()

    def _read(self, number: int, at: int) -> Transfer:
        assert self.file is not None
        return self._lane.read(self.file, number, self._buffers[at])

    def _write(self, number: int, at: int) -> Transfer:
        assert self.file is not None
        transfer = self._lane.write(self.file, number, self._buffers[at])

        def ended() -> None:
            # At once, not when the walk comes to hear of it: by then the next sub-group may be in this buffer.
            if transfer.error is None and number in self._updated:
                self._updated[number] = None

        transfer.then(ended)
        return transfer

    def _note(self, kind: str, number: int, start: float, stop: float) -> None:
        if self.trace is not None:
            self.trace(kind, number, start, stop)

    def _finish_writing(self) -> None:
        """Write what a step that failed has updated and may not have written."""
        for number, buffer in self._updated.items():
            if buffer is not None:
                assert self.file is not None
                self._lane.write(self.file, number, buffer).wait()
                self._updated[number] = None
