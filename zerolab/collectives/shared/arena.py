"""Memory that all ranks of one machine can address: a rank's own arena, and views of its peers'.

An arena is an anonymous file in memory (memfd). It has no name, so nothing is left of it when the last process that
maps it has ended, however that happened, and the size of /dev/shm, which containers keep small, does not limit it. It
is as large as the machine's memory from the start; pages come into being when they are first used, and stay with the
arena to be used again.
"""

from __future__ import annotations

import mmap
import os
import weakref
from collections import deque
from dataclasses import dataclass, field

import torch

from zerolab.errors import InputError
from zerolab.flat.layout import round_up

GRAIN = 256
"""Bytes. Every block starts at a multiple of it: cache lines of two blocks never meet, nor do vector registers."""


@dataclass
class Blocks:
    """Which bytes of an arena are in use, in integers: the smallest gap that fits is taken, neighbours are joined."""

    capacity: int
    gaps: list[tuple[int, int]] = field(default_factory=list)
    """Free ranges `[start, stop)` below `top`, in order, no two adjacent."""
    top: int = 0
    """No block in use reaches beyond it."""

    def take(self, nbytes: int) -> int | None:
        """The start of a new block, None if there is no room."""
        nbytes = round_up(max(nbytes, 1), GRAIN)
        fitting = [gap for gap in self.gaps if gap[1] - gap[0] >= nbytes]
        if fitting:
            gap = min(fitting, key=lambda gap: gap[1] - gap[0])
            at = self.gaps.index(gap)
            self.gaps[at : at + 1] = [(gap[0] + nbytes, gap[1])] if gap[0] + nbytes < gap[1] else []
            return gap[0]
        if self.top + nbytes > self.capacity:
            return None
        self.top += nbytes
        return self.top - nbytes

    def give_back(self, start: int, nbytes: int) -> None:
        """Free the block that `take(nbytes)` put at `start`."""
        self.gaps.append((start, start + round_up(max(nbytes, 1), GRAIN)))
        self.gaps.sort()
        joined: list[tuple[int, int]] = []
        for first, last in self.gaps:
            if joined and joined[-1][1] == first:
                joined[-1] = (joined[-1][0], last)
            else:
                joined.append((first, last))
        if joined and joined[-1][1] == self.top:
            self.top, _ = joined.pop()
        self.gaps = joined


class Arena:
    """This rank's shared memory. A block is free again when the last tensor on it is gone."""

    def __init__(self, capacity: int | None = None) -> None:
        capacity = capacity or os.sysconf("SC_PHYS_PAGES") * mmap.PAGESIZE
        self.fd = os.memfd_create(f"zerolab-{os.getpid()}")
        try:
            os.ftruncate(self.fd, capacity)
            self.memory = memoryview(mmap.mmap(self.fd, capacity))
        except OSError as error:
            os.close(self.fd)
            raise InputError(
                f"this process may not map {capacity} bytes of shared memory ({error}); raise its limits "
                '(ulimit -v, ulimit -f), or launch with collectives="ring"'
            ) from None
        self._base = torch.frombuffer(self.memory, dtype=torch.uint8, count=1).data_ptr()
        self._blocks = Blocks(capacity)
        self._reserved = 0
        self._living: dict[int, weakref.ref[memoryview]] = {}
        # Blocks whose tensors are gone. Python's search for circles may end one at any moment, also while the blocks
        # are being looked at.
        self._freed: deque[tuple[int, int]] = deque()

    def allocate(self, numel: int, dtype: torch.dtype) -> torch.Tensor:
        """A 1-D tensor with a storage of its own; its content is arbitrary."""
        nbytes = numel * dtype.itemsize
        if nbytes == 0:
            return torch.empty(0, dtype=dtype)
        while self._freed:
            self._free(*self._freed.popleft())
        start = self._blocks.take(nbytes)
        if start is None:
            raise no_room(nbytes, f"{self._blocks.capacity} bytes, all memory of this machine, are the limit")
        self._reserve(start, nbytes)
        piece = self.memory[start : start + nbytes]
        # The tensor's storage holds `piece` and nobody else does.
        self._living[start] = weakref.ref(piece, lambda _: self._freed.append((start, nbytes)))
        return torch.frombuffer(piece, dtype=dtype)

    def offset(self, tensor: torch.Tensor) -> int | None:
        """Where in the arena a tensor begins, None if it lies elsewhere."""
        at = tensor.data_ptr() - self._base
        return at if 0 <= at < self._blocks.capacity and tensor.device.type == "cpu" else None

    def close(self) -> None:
        """Give back the descriptor. Tensors keep the memory that they lie in, each until it is gone."""
        if self.fd >= 0:
            os.close(self.fd)
            self.memory.release()
            self.fd = -1

    def _free(self, start: int, nbytes: int) -> None:
        del self._living[start]
        self._blocks.give_back(start, nbytes)

    def _reserve(self, start: int, nbytes: int) -> None:
        """Take the pages now, where a lack of memory is an error; at first use it would end the process."""
        stop = start + nbytes
        if stop <= self._reserved:
            return
        try:
            os.posix_fallocate(self.fd, self._reserved, stop - self._reserved)
        except OSError as error:
            self._blocks.give_back(start, nbytes)
            raise no_room(nbytes, error.strerror) from None
        self._reserved = stop


def no_room(nbytes: int, why: str | None) -> InputError:
    return InputError(
        f"there is no room for {nbytes} bytes of shared memory ({why}); use fewer ranks or a smaller model, or give "
        "this machine or container more memory"
    )


class PeerMemory:
    """Another rank's arena, mapped here."""

    def __init__(self, fd: int) -> None:
        self._memory = mmap.mmap(fd, 0)

    def view(self, offset: int, numel: int, dtype: torch.dtype) -> torch.Tensor:
        """The peer's bytes from `offset` on, as a tensor. Whose they are is the peer's to say: read and write only
        within the collective in which it said so."""
        return torch.frombuffer(self._memory, dtype=dtype, count=numel, offset=offset)
