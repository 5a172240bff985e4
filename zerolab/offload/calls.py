"""What a swap file asks of the system, and what does the same where the system has no such call."""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
from typing import Any

from zerolab.system import has

_seeking = threading.Lock()
"""A file has one place to read and write at, which threads share."""
_ZEROS = bytes(2**20)


def read_at(fd: int, memory: Any, position: int) -> int:
    """Fill `memory`, a writable buffer, from `position` of the file on; how many bytes came."""
    if has("vectors"):
        return os.preadv(fd, [memory], position)
    with _seeking:
        os.lseek(fd, position, os.SEEK_SET)
        with open(fd, "rb", buffering=0, closefd=False) as file:
            return file.readinto(memory) or 0


def write_at(fd: int, memory: Any, position: int) -> int:
    """Write `memory` to the file from `position` on; how many bytes went."""
    if has("vectors"):
        return os.pwritev(fd, [memory], position)
    with _seeking:
        os.lseek(fd, position, os.SEEK_SET)
        return os.write(fd, memory)


def reserve(fd: int, nbytes: int) -> None:
    """Give an empty file `nbytes` zeros, room on the disk included. Raises an OSError where there is none."""
    if has("reserve"):
        os.posix_fallocate(fd, 0, nbytes)
        return
    done = 0
    while done < nbytes:
        done += write_at(fd, memoryview(_ZEROS)[: nbytes - done], done)


def settle(fd: int) -> None:
    """Return when what was written is on the disk."""
    (os.fdatasync if has("advice") else os.fsync)(fd)


def forget(fd: int, position: int, nbytes: int) -> None:
    """Let the page cache forget these bytes, as far as they are on the disk and the system takes advice."""
    if has("advice"):
        os.posix_fadvise(fd, position, nbytes, os.POSIX_FADV_DONTNEED)


def in_page_cache(fd: int) -> bool:
    """Whether the page cache has the file's first page. To map a page does not bring it in."""
    resident = (ctypes.c_ubyte * 1)()
    with mmap.mmap(fd, mmap.PAGESIZE) as window:
        first = ctypes.c_char.from_buffer(window)
        answer = ctypes.CDLL(None).mincore(
            ctypes.c_void_p(ctypes.addressof(first)), ctypes.c_size_t(mmap.PAGESIZE), resident
        )
        del first  # or the mapping could not be closed
    return answer == 0 and bool(resident[0] & 1)
