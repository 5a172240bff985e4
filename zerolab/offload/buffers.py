"""Host memory that starts at a page, for direct I/O and for copies from and to a GPU."""

from __future__ import annotations

import contextlib
import mmap

import torch

from zerolab.flat.views import values_here
from zerolab.gpu import door
from zerolab.offload.groups import PAGE, round_up_to_page
from zerolab.system import has


def aligned(nbytes: int, pin: bool = False) -> torch.Tensor:
    """`nbytes` zeros (uint8) that start at a page, rounded up to whole pages; the memory lives as long as the tensor
    or a view of it does.

    `pin` locks the pages, so that a GPU copies them at full speed and beside other work; only a rank that computes on a
    GPU asks for it. Torch's allocator of locked memory rounds up to a power of two.
    """
    nbytes = round_up_to_page(nbytes)
    if not values_here():
        return torch.zeros(nbytes, dtype=torch.uint8)
    if pin:
        memory = door.locked(nbytes, torch.uint8)
        if memory.data_ptr() % PAGE:
            memory = door.locked(nbytes + PAGE, torch.uint8)
        return memory.narrow(0, -memory.data_ptr() % PAGE, nbytes).zero_()
    # Private: a forked child must not write into it. In huge pages a transfer has fewer pieces for the kernel to list.
    mapped = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if has("hugepages"):
        with contextlib.suppress(OSError):  # a kernel without them
            mapped.madvise(mmap.MADV_HUGEPAGE)
    # The tensor's storage holds the mapping, which is unmapped with the last tensor on it.
    return torch.frombuffer(mapped, dtype=torch.uint8)


def host_empty(numel: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Memory of the host, page-locked for a rank on a GPU. (To lock a page opens a context on a GPU.)"""
    return door.locked(numel, dtype) if door.drives(device) else torch.empty(numel, dtype=dtype)
