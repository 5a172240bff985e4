"""Host memory that starts at a page, for direct I/O and for copies from and to a GPU."""

from __future__ import annotations

import contextlib
import mmap

import torch

from zerolab.errors import InputError, OffloadError, StateError
from zerolab.flat.layout import check_count
from zerolab.flat.views import values_here
from zerolab.gpu import door
from zerolab.offload.groups import PAGE, on_disk
from zerolab.system import has


def aligned(nbytes: int, pin: bool = False) -> torch.Tensor:
    """`nbytes` zeros (uint8) that start at a page, rounded up to whole pages; the memory lives as long as the tensor
    or a view of it does.

    `pin` locks the pages, so that a GPU copies them at full speed and beside other work; only a rank that computes on a
    GPU asks for it. Torch's allocator of locked memory rounds up to a power of two.
    """
    check_count("the size of a buffer", nbytes)
    nbytes = on_disk(nbytes)
    if not values_here():
        return torch.zeros(nbytes, dtype=torch.uint8)
    try:
        return _pinned(nbytes) if pin else _mapped(nbytes)
    except (OSError, RuntimeError) as error:
        raise OffloadError(
            f"the host has no room for a buffer of {nbytes} bytes ({error}); use fewer or smaller buffers"
        ) from error


def _pinned(nbytes: int) -> torch.Tensor:
    memory = door.locked(nbytes, torch.uint8)
    if memory.data_ptr() % PAGE == 0:
        return memory.zero_()
    memory = door.locked(nbytes + PAGE, torch.uint8)
    return memory.narrow(0, -memory.data_ptr() % PAGE, nbytes).zero_()


def _mapped(nbytes: int) -> torch.Tensor:
    # Private: a forked child must not write into it. In huge pages a transfer has fewer pieces for the kernel to list.
    memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if has("hugepages"):
        with contextlib.suppress(OSError):  # a kernel without them
            memory.madvise(mmap.MADV_HUGEPAGE)
    # The tensor's storage holds the mapping, which is unmapped with the last tensor on it.
    return torch.frombuffer(memory, dtype=torch.uint8)


class Pool:
    """`count` buffers of `nbytes` each, made once and used again."""

    def __init__(self, count: int, nbytes: int, pin: bool = False) -> None:
        check_count("the number of buffers", count)
        self._free = [aligned(nbytes, pin) for _ in range(count)]
        self._taken: dict[int, torch.Tensor] = {}

    @property
    def free(self) -> int:
        """How many buffers `take` can give."""
        return len(self._free)

    @property
    def buffers(self) -> list[torch.Tensor]:
        """All of them, for the ledger."""
        return [*self._free, *self._taken.values()]

    def take(self) -> torch.Tensor:
        """A free buffer; its content is arbitrary."""
        if not self._free:
            raise StateError(f"all {len(self._taken)} buffers of the pool are in use; give one back, or make it larger")
        buffer = self._free.pop()
        self._taken[id(buffer)] = buffer
        return buffer

    def give(self, buffer: torch.Tensor) -> None:
        """Back what `take` returned; no transfer of it may be under way."""
        if self._taken.get(id(buffer)) is not buffer:
            raise InputError("the buffer is not one that take() gave and that is still out; give each back once")
        self._free.append(self._taken.pop(id(buffer)))
