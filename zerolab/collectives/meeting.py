"""One collective call among ranks that share memory: where everybody's tensor lies, and until when."""

from __future__ import annotations

from types import TracebackType

import torch
from torch.utils._python_dispatch import _disable_current_modes

from zerolab.collectives.machine import WORDS, Machine
from zerolab.collectives.transport import Transport
from zerolab.errors import MismatchError

HERE, DONE = 0, 1
NOWHERE = -1


class Meeting:
    """From this rank's note that its `tensor` is ready to everybody's note that they need it no more.

    Inside, peers' tensors may be viewed: the first view of each waits until that peer is here, too."""

    def __init__(self, machine: Machine, transport: Transport, call: str, tensor: torch.Tensor) -> None:
        self._machine, self._transport, self._tensor = machine, transport, tensor
        self._call = call.encode("ascii", "replace")[:WORDS].decode()
        self._others = [(machine.rank + step) % machine.size for step in range(1, machine.size)]
        self._offsets: dict[int, int] = {}
        # Peers' memory is no memory of this rank: a tracker must not count it.
        self._unwatched = _disable_current_modes()

    def __enter__(self) -> Meeting:
        offset = self._machine.arena.offset(self._tensor) if self._tensor.numel() else None
        self._machine.note(HERE, NOWHERE if offset is None else offset, self._call)
        self._unwatched.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._unwatched.__exit__(kind, error, at)
        if error is not None:
            return
        for rank in self._others:
            self._meet(rank)
        self._machine.note(DONE, NOWHERE, self._call)
        for rank in self._others:
            self._machine.read(rank, DONE, self._transport.waits)

    def view(self, rank: int, start: int, stop: int) -> torch.Tensor:
        """Elements `[start, stop)` of the tensor of `rank`."""
        if rank == self._machine.rank or start == stop:
            return self._tensor[start:stop]
        self._meet(rank)
        dtype = self._tensor.dtype
        return self._machine.view(rank, self._offsets[rank] + start * dtype.itemsize, stop - start, dtype)

    def views(self, start: int, stop: int) -> list[torch.Tensor]:
        """Those elements of all ranks' tensors, in the ring's order of addition: our right neighbour's first, our own
        last."""
        return [self.view(rank, start, stop) for rank in [*self._others, self._machine.rank]]

    def _meet(self, rank: int) -> None:
        """Wait until `rank` is in the same call."""
        if rank in self._offsets:
            return
        self._offsets[rank], theirs = self._machine.read(rank, HERE, self._transport.waits)
        if theirs != self._call:
            (one, this), (other, that) = sorted([(self._machine.rank, self._call), (rank, theirs)])
            raise MismatchError(
                f"rank {one} is in {this} while rank {other} is in {that}; every rank must call the same collectives "
                "in the same order, with the same sizes and dtypes"
            )
