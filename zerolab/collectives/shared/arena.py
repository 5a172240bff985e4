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

import torch

from zerolab.errors import InputError
from zerolab.flat.layout import round_up

GRAIN = 256
"""Bytes. Every block starts at a multiple of it: cache lines of two blocks never meet, nor do vector registers."""


class Blocks:
    """Which bytes of an arena are free: the smallest gap that fits is taken, neighbours are joined."""

    def __init__(self, capacity: int) -> None:
        self.gaps = [(0, capacity)]

    def take(self, nbytes: int) -> int | None:
        """The start of a new block, None if there is no room."""
        nbytes = round_up(max(nbytes, 1), GRAIN)
        fitting = [gap for gap in self.gaps if gap[1] - gap[0] >= nbytes]
        if not fitting:
            return None
        start, stop = min(fitting, key=lambda gap: gap[1] - gap[0])
        at = self.gaps.index((start, stop))
        self.gaps[at : at + 1] = [(start + nbytes, stop)] if start + nbytes < stop else []
        return start

    def give_back(self, start: int, nbytes: int) -> None:
        """Free the block that `take(nbytes)` put at `start`."""
        freed = start, start + round_up(max(nbytes, 1), GRAIN)
        joined: list[tuple[int, int]] = []
        for first, last in sorted([*self.gaps, freed]):
            if joined and joined[-1][1] == first:
                first = joined.pop()[0]
            joined.append((first, last))
        self.gaps = joined


class Arena:
    """This rank's shared memory. A block is free again when the last tensor on it is gone."""

    def __init__(self, capacity: int | None = None) -> None:
        self._capacity = capacity or os.sysconf("SC_PHYS_PAGES") * mmap.PAGESIZE
        self.fd = os.memfd_create(f"zerolab-{os.getpid()}")
        try:
            os.ftruncate(self.fd, self._capacity)
            self.memory = memoryview(mmap.mmap(self.fd, self._capacity))
        except OSError as error:
            os.close(self.fd)
            raise InputError(
                f"this process may not map {self._capacity} bytes of shared memory ({error}); raise its limits "
                '(ulimit -v, ulimit -f), or launch with collectives="ring"'
            ) from None
        self._base = torch.frombuffer(self.memory, dtype=torch.uint8, count=1).data_ptr()
        self._blocks = Blocks(self._capacity)
        self._reserved = 0
        # Blocks whose tensors are gone. Python's search for circles may end one at any moment, also while the blocks
        # are being looked at.
        self._freed: deque[tuple[int, int]] = deque()

    def allocate(self, numel: int, dtype: torch.dtype) -> torch.Tensor:
        """A 1-D tensor with a storage of its own; its content is arbitrary."""
        nbytes = numel * dtype.itemsize
        if nbytes == 0:
            return torch.empty(0, dtype=dtype)
        while self._freed:
            self._blocks.give_back(*self._freed.popleft())
        start = self._blocks.take(nbytes)
        if start is None:
            raise no_room(nbytes, f"{self._capacity} bytes, all memory of this machine, are the limit")
        self._reserve(start, nbytes)
        piece = self.memory[start : start + nbytes]
        # The tensor's storage holds `piece` and nobody else does.
        weakref.finalize(piece, self._freed.append, (start, nbytes)).atexit = False
        return torch.frombuffer(piece, dtype=dtype)

    def offset(self, tensor: torch.Tensor) -> int | None:
        """Where in the arena a tensor begins, None if it lies elsewhere."""
        at = tensor.data_ptr() - self._base
        return at if 0 <= at < self._capacity and tensor.device.type == "cpu" else None

    def close(self) -> None:
        """Give back the descriptor. Tensors keep the memory that they lie in, each until it is gone."""
        if self.fd >= 0:
            os.close(self.fd)
            self.memory.release()
            self.fd = -1

    def _reserve(self, start: int, nbytes: int) -> None:
        """Take the pages now, where a lack of memory is an error; at first use it would end the process."""
        stop = start + nbytes
        if stop > self._reserved:
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
