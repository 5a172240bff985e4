"""A file of records on a disk: where the disk tier keeps what no memory has room for.

Its space is reserved when it is opened, so a disk that is too small shows before the first step; its bytes go past the
page cache where the file system allows it (O_DIRECT). A process that is killed leaves it behind, without its lock, and
the next run names it.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import logging
import mmap
import os
import secrets
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import accumulate
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any

import torch

from zerolab.errors import InputError, OffloadError, StateError
from zerolab.files import lock
from zerolab.flat.layout import check_count
from zerolab.flat.views import values_here
from zerolab.offload.groups import PAGE, round_up_to_page
from zerolab.offload.places import check_folder
from zerolab.ranks.folders import farewells
from zerolab.system import has

log = logging.getLogger("zerolab.offload")

_named: set[Path] = set()
"""Left-overs that this process has warned of."""


class SwapFile:
    """A file of `len(sizes)` records in `folder`, gone when it is closed or this process ends, unless by a kill.

    Record `i` has `sizes[i]` bytes at `offset(i)`. Transfers move its `span(i)` bytes, whole pages, from or to memory
    that starts at a page (`buffers.py`). Several threads may use a file at once; all are done before it is closed.

    Attributes:
        direct: whether transfers go past the page cache.
        why_not: what the file system answered where they do not; else empty.
    """

    def __init__(self, folder: str | Path, name: str, sizes: Sequence[int]) -> None:
        self._lay_out(sizes)
        folder = Path(folder)
        check_folder(folder, self.nbytes)
        warn_of_left_overs(folder)
        self.path = folder / f"zerolab-{name}-{os.getpid()}-{secrets.token_hex(4)}.swap"
        # O_EXCL: never a file of another run.
        self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        # Not by weakref.finalize: ranks end without what `atexit` holds, and a fork leaves its parent's file alone.
        unlink = partial(_unlink, self.path)
        farewells.add(unlink)
        self._unlink = Finalize(self, unlink, exitpriority=10)
        self._close = weakref.finalize(self, os.close, self._fd)
        # At the end of the process a thread may still use it.
        self._close.atexit = False
        try:
            with suppress(OSError):
                lock(self._fd, wait=True)
            _reserve(self._fd, self.nbytes)
            self.why_not = _go_direct(self._fd)
        except OSError as error:
            self.close()
            raise OffloadError(
                f"the {self.nbytes} bytes of {self.path} could not be reserved: {_reason(error)}; make room, or name "
                "a folder on another disk"
            ) from error
        self.direct = not self.why_not

    def _lay_out(self, sizes: Sequence[int]) -> None:
        check_count("the number of records", len(sizes))
        for index, size in enumerate(sizes):
            check_count(f"the size of record {index}", size)
        self.sizes = tuple(sizes)
        self._starts = [0, *accumulate(map(round_up_to_page, sizes))]
        self.nbytes = self._starts[-1]

    def offset(self, i: int) -> int:
        """Where record `i` starts: a multiple of a page."""
        return self._starts[self._check(i)]

    def span(self, i: int) -> int:
        """The bytes that a transfer of record `i` moves: its size, rounded up to whole pages."""
        return round_up_to_page(self.sizes[self._check(i)])

    def measure(self) -> int:
        """The file's bytes, asked of the file system."""
        return os.fstat(self._fd).st_size

    def read(self, i: int, buffer: torch.Tensor, start: int = 0, stop: int | None = None) -> None:
        """Fill the buffer's first `span(i)` bytes with record `i`, or of those the bytes `[start, stop)`."""
        self._move(os.preadv, i, buffer, start, stop)

    def write(self, i: int, buffer: torch.Tensor, start: int = 0, stop: int | None = None) -> None:
        """Write the buffer's first `span(i)` bytes to record `i`, or of those the bytes `[start, stop)`."""
        self._move(os.pwritev, i, buffer, start, stop, writes=True)

    def check(self, i: int, buffer: torch.Tensor) -> None:
        """Refuse a buffer that record `i` cannot be moved from or to as a whole; nothing is ever cut."""
        if buffer.device.type != "cpu" or not buffer.is_contiguous() or buffer.data_ptr() % PAGE:
            raise InputError(
                f"a buffer of {tuple(buffer.shape)} on {buffer.device} is not one run of host memory that starts at a "
                f"multiple of {PAGE} bytes; take it from zerolab.offload.buffers.aligned"
            )
        if buffer.nbytes < self.span(i):
            raise InputError(
                f"record {i} of {self.path.name} takes {self.span(i)} bytes with its padding and the buffer has "
                f"{buffer.nbytes}; make the buffer as large as the file's largest span"
            )

    def close(self) -> None:
        """Remove the file. May be called again."""
        # The name first: while the lock is held, nobody can take the file for a left-over.
        self._unlink()
        self._close()

    def __enter__(self) -> SwapFile:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _check(self, i: int) -> int:
        if not 0 <= i < len(self.sizes):
            raise InputError(f"{self.path.name} has no record {i}; its records are 0 to {len(self.sizes) - 1}")
        return i

    def _move(
        self, call: Callable[..., int], i: int, buffer: torch.Tensor, at: int, stop: int | None, writes: bool = False
    ) -> None:
        self.check(i, buffer)
        stop = self.span(i) if stop is None else stop
        if not 0 <= at <= stop <= self.span(i) or at % PAGE or stop % PAGE:
            raise InputError(f"[{at}, {stop}) are not whole pages of record {i}, which has {self.span(i)} bytes")
        if not self._close.alive:
            raise StateError(f"{self.path} is closed; move its records before close()")
        try:
            while at < stop:
                # By address: a view would be an operation of torch. A call may stop early, at 2 GiB for one.
                memory = (ctypes.c_char * (stop - at)).from_address(buffer.data_ptr() + at)
                moved = call(self._fd, [memory], self.offset(i) + at)
                moved -= moved % PAGE if self.direct else 0
                if moved <= 0:
                    raise OSError(errno.EIO, f"the file ends {stop - at} bytes too early")
                at += moved
            if not self.direct and has("advice"):
                # Leave nothing in the page cache. Only what is on the disk already can leave it.
                if writes:
                    os.fdatasync(self._fd)
                os.posix_fadvise(self._fd, self.offset(i), self.span(i), os.POSIX_FADV_DONTNEED)
        except OSError as error:
            raise OffloadError(
                f"record {i} of {self.path} could not be {'written' if writes else 'read'}: {_reason(error)}; see to "
                "the disk, or name another"
            ) from error


class UnwrittenFile(SwapFile):
    """The swap file of a world without values: it has a size, and nothing of it is on a disk or takes time."""

    def __init__(self, folder: str | Path, name: str, sizes: Sequence[int]) -> None:
        self._lay_out(sizes)
        self.path, self.direct, self.why_not = Path(folder) / name, True, ""

    def measure(self) -> int:
        return self.nbytes

    def check(self, i: int, buffer: torch.Tensor) -> None:
        self._check(i)

    def close(self) -> None:
        pass

    def _move(self, call: Callable[..., int], i: int, *_: Any, **named: Any) -> None:
        self._check(i)


def open_file(folder: str | Path, name: str, sizes: Sequence[int]) -> SwapFile:
    """A swap file of this world."""
    return (SwapFile if values_here() else UnwrittenFile)(folder, name, sizes)


def left_overs(folder: str | Path) -> list[Path]:
    """Swap files in `folder` that no process holds: those of runs that were killed."""
    found = []
    for path in sorted(Path(folder).glob("zerolab-*.swap")):
        # A file whose state cannot be seen (another user's, or gone by now) is not called a left-over.
        with suppress(OSError), open(path, "rb") as file:
            # Shared, so that two who look do not take each other for the owner.
            lock(file.fileno(), shared=True)
            # A file is empty between its making and its lock.
            if os.fstat(file.fileno()).st_size:
                found.append(path)
    return found


def warn_of_left_overs(folder: Path) -> None:
    """Name left-overs and how to remove them, each once. That they go is for their owner to say."""
    new = [path for path in left_overs(folder) if path not in _named]
    _named.update(new)
    if new:
        files = " ".join(f"'{path}'" for path in new)
        log.warning("killed runs left swap files that no process uses any more; to remove them: rm %s", files)


def _reserve(fd: int, nbytes: int) -> None:
    """Give an empty file `nbytes` zeros, room on the disk included. Raises an OSError where there is none."""
    if has("reserve"):
        os.posix_fallocate(fd, 0, nbytes)
        return
    zeros = bytes(2**20)
    for start in range(0, nbytes, len(zeros)):
        os.pwrite(fd, zeros[: nbytes - start], start)


def _go_direct(fd: int) -> str:
    """Move on past the page cache if that works, as a page of zeros shows; else the reason why not. Not before the
    space is reserved, by single bytes perhaps, which direct I/O does not allow."""
    if not has("direct"):
        return "this system has no direct I/O"
    flags: Any = fcntl.fcntl(fd, fcntl.F_GETFL)
    try:
        fcntl.fcntl(fd, fcntl.F_SETFL, flags | os.O_DIRECT)
        with mmap.mmap(-1, PAGE) as page:
            os.pwritev(fd, [page], 0)
        # Some file systems take the flag and use the cache all the same; tmpfs is nothing else.
        if not _in_page_cache(fd):
            return ""
        why = "the file system keeps in memory what is written to it"
    except OSError as error:
        why = f"direct I/O failed with {error.strerror}"
    fcntl.fcntl(fd, fcntl.F_SETFL, flags)
    return why


def _in_page_cache(fd: int) -> bool:
    """Whether the page cache has the file's first page. To map a page does not bring it in."""
    resident = (ctypes.c_ubyte * 1)()
    with mmap.mmap(fd, mmap.PAGESIZE) as window:
        first = ctypes.c_char.from_buffer(window)
        answer = ctypes.CDLL(None).mincore(ctypes.byref(first), ctypes.c_size_t(mmap.PAGESIZE), resident)
        del first  # or the mapping could not be closed
    return answer == 0 and bool(resident[0] & 1)


def _unlink(path: Path) -> None:
    with suppress(OSError):
        os.unlink(path)


def _reason(error: OSError) -> str:
    return "the disk is full" if error.errno == errno.ENOSPC else error.strerror or str(error)
