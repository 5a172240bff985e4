"""Storages that are emptied and filled again and again, on pages that stay.

A gathered unit comes and goes several times a step. From malloc's heap it takes a new place whenever something small
has settled in its old one, which stays resident. New pages of the system would leave nothing behind, but zeroing them
takes longer than the gathering. So the pages of a storage that is emptied move aside, and into the next one that is
filled (mremap): nobody copies or zeroes them. Malloc gets back an address without pages.
"""

from __future__ import annotations

import ctypes
import mmap
import weakref
from functools import cache
from pathlib import Path
from typing import Any

import torch

from zerolab.flat.views import values_here
from zerolab.system import has

PAGE = mmap.PAGESIZE
LEAST = 64 * PAGE
"""Bytes from which on pages move; below, malloc is as good."""
SCRAP = 16 * PAGE
"""What is shorter is not worth a move."""
MOST, PIECES = 3, 8
"""At most so many times the bytes of the largest storage are kept aside, in at most so many pieces. What is beyond, as
after all units were gathered at once, is given back."""
_MAY_MOVE, _FIXED, _KEEP_MAPPED = 1, 2, 4  # of linux/mman.h
_READ_WRITE, _PRIVATE_FIXED = 1 | 2, 0x02 | 0x10 | 0x20
_FAILED = ctypes.c_void_p(-1).value

Piece = tuple[int, int]  # whole pages that lie together: their address, and how many bytes they are


class Pages:
    """Pages of this process that no storage has at the moment, and how storages of the CPU get and leave them.

    Torch alone does it on a GPU, in a virtual world, and where malloc was not asked to keep what is freed
    (`forkserver.py`) or there is no mremap."""

    def __init__(self, device: torch.device) -> None:
        self.move = values_here() and device.type == "cpu" and keeps_freed_memory() and has("mremap")
        self._aside: list[Piece] = []
        # The pieces of each filled storage, by its address. Each lies in one mapping: mremap moves no range of two.
        self._inside: dict[int, list[Piece]] = {}
        self._largest = 0
        weakref.finalize(self, give_back, self._aside)

    def fill(self, storage: torch.UntypedStorage, nbytes: int) -> None:
        """Give an empty storage `nbytes`; their content is arbitrary."""
        storage.resize_(nbytes)
        if not self.move or nbytes < LEAST:
            return
        self._largest = max(self._largest, nbytes)
        pieces = self._inside[storage.data_ptr()] = []
        start, stop = find_whole_pages(storage)
        while stop - start >= SCRAP and self._aside:
            wanted = stop - start
            at, length = min(self._aside, key=lambda piece: abs(piece[1] - wanted))
            moved = min(length, wanted)
            if self._remap(at, moved, start) is None:
                break
            self._aside.remove((at, length))
            self._keep((at + moved, length - moved))
            pieces.append((start, moved))
            start += moved
        if start < stop:
            pieces.append((start, stop - start))

    def empty(self, storage: torch.UntypedStorage) -> None:
        """Leave a storage without bytes."""
        for at, length in self._inside.pop(storage.data_ptr(), []) if self._inside else []:
            start, stop = find_whole_pages(storage)
            if at < start or at + length > stop:
                # The piece of a storage that was freed without `empty`; another lies at its address now.
                continue
            kept = sum(length for _, length in self._aside)
            if self.move and length >= SCRAP and kept + length <= MOST * self._largest:
                to = self._remap(at, length)
                if to is not None:
                    self._keep((to, length))
            # What malloc gets back is as it was, of one mapping with what lies beside it, and without pages.
            load_libc().mmap(at, length, _READ_WRITE, _PRIVATE_FIXED, -1, 0)
        storage.resize_(0)

    def _remap(self, at: int, nbytes: int, to: int | None = None) -> int | None:
        """Move the pages of a range to address `to`; without one, to any that is free, and the old range stays mapped,
        without pages. Returns where they are now, None if they could not be moved: then new pages do as well."""
        found = load_libc().mremap(at, nbytes, nbytes, _MAY_MOVE | (_KEEP_MAPPED if to is None else _FIXED), to)
        self.move = found != _FAILED
        return int(found) if self.move else None

    def _keep(self, piece: Piece) -> None:
        self._aside.append(piece)
        shortest = min(self._aside, key=lambda piece: piece[1])
        if shortest[1] < SCRAP or len(self._aside) > PIECES:
            self._aside.remove(shortest)
            give_back([shortest])


@cache
def keeps_freed_memory() -> bool:
    """Whether this process was born with a malloc that keeps what is freed."""
    own = Path("/proc/self/environ")
    glibc = own.exists() and hasattr(ctypes.CDLL(None), "malloc_trim")
    return glibc and b"glibc.malloc.mmap_max=0" in own.read_bytes()


def begin_heap() -> None:
    """In a fork, have malloc's heap go on behind a gap: what it grows by is another mapping, and no storage may lie in
    both."""
    if keeps_freed_memory():
        ctypes.CDLL(None).sbrk(PAGE)


def hand_back() -> None:
    """Give the system what is free now: after something large that does not come again."""
    if keeps_freed_memory():
        ctypes.CDLL(None).malloc_trim(0)


def give_back(aside: list[Piece]) -> None:
    """Give pieces back to the system."""
    while aside:
        at, length = aside.pop()
        if length:
            load_libc().munmap(at, length)


def find_whole_pages(storage: torch.UntypedStorage) -> tuple[int, int]:
    """The addresses at which the whole pages of a storage begin and end."""
    start = storage.data_ptr()
    return -(-start // PAGE) * PAGE, (start + storage.nbytes()) // PAGE * PAGE


@cache
def load_libc() -> Any:
    """The C library, told what the functions take that move pages (Linux)."""
    found, address, size, number = ctypes.CDLL(None), ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    found.mremap.restype, found.mremap.argtypes = address, (address, size, size, number, address)
    found.mmap.restype, found.mmap.argtypes = address, (address, size, number, number, number, ctypes.c_long)
    found.munmap.argtypes = (address, size)
    return found
