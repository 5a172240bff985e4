"""Memory that all ranks of one machine can address: a rank's own arena, and views of its peers'.

An arena is an anonymous file in memory (memfd): nothing is left of it when the last process that maps it has ended, and
the size of /dev/shm, which containers keep small, does not limit it. It is as large as the machine's memory from the
start; pages come into being when they are first used, and stay to be used again.
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


class Arena:
    """This rank's shared memory. A block is free again when the last tensor on it is gone."""

    def __init__(self, capacity: int | None = None) -> None:
        self._capacity = capacity or os.sysconf("SC_PHYS_PAGES") * mmap.PAGESIZE
        self.fd = os.memfd_create(f"zerolab-{os.getpid()}")
        os.ftruncate(self.fd, self._capacity)
        self.memory = memoryview(mmap.mmap(self.fd, self._capacity))
        self._base = torch.frombuffer(self.memory, dtype=torch.uint8, count=1).data_ptr()
        self.gaps = [(0, self._capacity)]
        """What is free, in order."""
        self._reserved = 0
        # Blocks whose tensors are gone. Python's search for circles may end one at any moment, also while the gaps are
        # being looked at.
        self._freed: deque[tuple[int, int]] = deque()

    def allocate(self, numel: int, dtype: torch.dtype) -> torch.Tensor:
        """A 1-D tensor with a storage of its own; its content is arbitrary."""
        nbytes = numel * dtype.itemsize
        if nbytes == 0:
            return torch.empty(0, dtype=dtype)
        self.collect()
        start, stop = self._take(round_up(nbytes, GRAIN))
        piece = self.memory[start : start + nbytes]
        # The tensor's storage holds `piece` and nobody else does.
        weakref.finalize(piece, self._freed.append, (start, stop)).atexit = False
        return torch.frombuffer(piece, dtype=dtype)

    def offset(self, tensor: torch.Tensor) -> int | None:
        """Where in the arena a tensor begins, None if it lies elsewhere."""
        at = tensor.data_ptr() - self._base
        return at if 0 <= at < self._capacity and tensor.device.type == "cpu" else None

    def collect(self) -> None:
        """Make gaps of the blocks whose tensors are gone, joined with their neighbours."""
        while self._freed:
            freed = self._freed.popleft()
            gaps: list[tuple[int, int]] = []
            for start, stop in sorted([*self.gaps, freed]):
                if gaps and gaps[-1][1] == start:
                    start = gaps.pop()[0]
                gaps.append((start, stop))
            self.gaps = gaps

    def _take(self, nbytes: int) -> tuple[int, int]:
        """Cut a block from the smallest gap that fits. Its pages are taken now, where a lack of memory is an error; at
        first use it would end the process."""
        sizes = [(stop - start, start) for start, stop in self.gaps if stop - start >= nbytes]
        try:
            if not sizes:
                raise OSError(None, f"{self._capacity} bytes, all memory of this machine, are the limit")
            size, start = min(sizes)
            block = start, start + nbytes
            if block[1] > self._reserved:
                os.posix_fallocate(self.fd, self._reserved, block[1] - self._reserved)
                self._reserved = block[1]
        except OSError as error:
            raise InputError(
                f"there is no room for {nbytes} bytes of shared memory ({error.strerror}); use fewer ranks or a "
                "smaller model, or give this machine or container more memory"
            ) from None
        at = self.gaps.index((start, start + size))
        self.gaps[at : at + 1] = [(block[1], start + size)] if nbytes < size else []
        return block

    def close(self) -> None:
        """Give back the descriptor. Tensors keep the memory that they lie in, each until it is gone."""
        if self.fd >= 0:
            os.close(self.fd)
            self.memory.release()
            self.fd = -1
