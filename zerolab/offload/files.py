"""A file of records on a disk: where the disk tier keeps what no memory has room for.

A `SwapFile` belongs to one process. Its space is reserved when it is opened, so a disk that is too small shows before
the first step; its bytes go past the page cache where the file system allows it (O_DIRECT), so that the memory which
it saves is not used after all.

The file keeps its name while it is open, so that a person sees where the disk's space went. A process that is killed
leaves it behind, but its lock ends with the process; by that the next run finds it and names it.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import logging
import mmap
import os
import re
import secrets
import shutil
import threading
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any

import torch

from zerolab.errors import InputError, OffloadError, StateError
from zerolab.files import lock
from zerolab.flat.layout import check_count
from zerolab.offload import calls
from zerolab.offload.groups import PAGE, on_disk
from zerolab.ranks.folders import farewells
from zerolab.system import has

try:
    import fcntl
except ImportError:  # pragma: no cover (Windows)
    fcntl = None  # type: ignore[assignment]

FULL = {errno.ENOSPC: "the disk is full", errno.EDQUOT: "the quota is used up", errno.EFBIG: "it is beyond a limit"}

log = logging.getLogger("zerolab.offload")

_named: set[Path] = set()
"""Left-overs that this process has warned of."""


class SwapFile:
    """A file of `len(sizes)` records in `folder`, gone when it is closed or this process ends, unless by a kill.

    Record `i` has `sizes[i]` bytes at `offset(i)`. Transfers move its `span(i)` bytes, whole pages, from or to memory
    that starts at a page (`zerolab.offload.buffers`). What was never written reads as zeros. Several threads may use
    a file at once.

    Attributes:
        direct: whether transfers go past the page cache.
        why_not: what the file system answered where they do not; else empty.
    """

    def __init__(self, folder: str | Path, name: str, sizes: Sequence[int]) -> None:
        check_count("the number of records", len(sizes))
        for index, size in enumerate(sizes):
            check_count(f"the size of record {index}", size)
        if not re.fullmatch(r"[A-Za-z0-9._-]+", name):
            raise InputError(f"a swap file cannot be named {name!r}; use letters, digits, '.', '_' and '-'")
        self.sizes = tuple(sizes)
        self._starts = [0, *accumulate(map(on_disk, sizes))]
        self.nbytes = self._starts[-1]
        folder = Path(folder)
        check_folder(folder, self.nbytes)
        warn_of(left_overs(folder))
        self.path = folder / f"zerolab-{name}-{os.getpid()}-{secrets.token_hex(4)}.swap"
        # Before it is there: its space is reserved slowly, and a rank may be told to leave meanwhile.
        self._unlink = partial(os.unlink, self.path)
        farewells.add(self._unlink)
        self._fd, self.why_not = _make(self.path, self.nbytes)
        self.direct = not self.why_not
        self._moving = 0
        self._idle = threading.Condition()
        self._closed = False
        # Not weakref.finalize: a rank ends as multiprocessing's processes do, without what `atexit` holds. It does
        # nothing in a forked child, whose parent still uses the file.
        self._remove = Finalize(self, _remove, (self._fd, self.path), exitpriority=10)

    def offset(self, i: int) -> int:
        """Where record `i` starts: a multiple of a page."""
        return self._starts[self._check(i)]

    def span(self, i: int) -> int:
        """The bytes that a transfer of record `i` moves: its size, rounded up to whole pages."""
        return on_disk(self.sizes[self._check(i)])

    def measure(self) -> int:
        """The file's bytes, asked of the file system."""
        return os.fstat(self._fd).st_size

    def read(self, i: int, buffer: torch.Tensor, start: int = 0, stop: int | None = None) -> None:
        """Fill the buffer's first `span(i)` bytes with record `i`, or of those the bytes `[start, stop)`."""
        self._move(calls.read_at, "read", i, buffer, start, stop)

    def write(self, i: int, buffer: torch.Tensor, start: int = 0, stop: int | None = None) -> None:
        """Write the buffer's first `span(i)` bytes to record `i`, or of those the bytes `[start, stop)`."""
        self._move(calls.write_at, "written", i, buffer, start, stop)

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
        """Remove the file, once no thread is in the middle of a transfer. May be called again."""
        with self._idle:
            self._closed = True
            # A descriptor closed under a transfer could be another file's by the next system call.
            self._idle.wait_for(lambda: self._moving == 0)
        self._remove()

    def __enter__(self) -> SwapFile:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _check(self, i: int) -> int:
        if not 0 <= i < len(self.sizes):
            raise InputError(f"{self.path.name} has no record {i}; its records are 0 to {len(self.sizes) - 1}")
        return i

    def _move(
        self, call: Callable[..., int], verb: str, i: int, buffer: torch.Tensor, start: int, stop: int | None
    ) -> None:
        self.check(i, buffer)
        stop = self.span(i) if stop is None else stop
        if not 0 <= start <= stop <= self.span(i) or start % PAGE or stop % PAGE:
            raise InputError(
                f"[{start}, {stop}) are not whole pages of record {i}, which has {self.span(i)} bytes; "
                f"give multiples of {PAGE}"
            )
        with self._idle:
            if self._closed:
                raise StateError(f"{self.path} is closed; move its records before close()")
            self._moving += 1
        try:
            while start < stop:
                start += self._once(call, i, buffer.data_ptr() + start, start, stop)
            self._forget(call, i)
        except OSError as error:
            raise OffloadError(
                f"record {i} of {self.path} could not be {verb}: {_reason(error)}; see to the disk, or name another"
            ) from error
        finally:
            with self._idle:
                self._moving -= 1
                self._idle.notify_all()

    def _once(self, call: Callable[..., int], i: int, address: int, start: int, stop: int) -> int:
        """One system call; how many bytes of it count. It may stop early, at 2 GiB for one; Python itself repeats it
        after a signal."""
        # By address: a view of the tensor would be an operation of torch, on a thread that has none of its modes.
        memory = (ctypes.c_char * (stop - start)).from_address(address)
        moved = call(self._fd, memory, self.offset(i) + start)
        if self.direct:
            moved -= moved % PAGE
        if moved <= 0:
            raise OSError(errno.EIO, f"the file ends {stop - start} bytes too early")
        return moved

    def _forget(self, call: Callable[..., int], i: int) -> None:
        """Without direct I/O: leave nothing in the page cache. Only what is on the disk already can leave it."""
        if not self.direct:
            if call is calls.write_at:
                calls.settle(self._fd)
            calls.forget(self._fd, self.offset(i), self.span(i))


def check_folder(folder: Path, nbytes: int) -> None:
    """Refuse a folder in which a file of `nbytes` cannot be made; nothing is written."""
    if not folder.is_dir():
        what = "is not a folder; name" if folder.exists() else "does not exist; create it, or name"
        raise InputError(f"{folder}, which is to hold a swap file, {what} another folder")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise InputError(f"{folder}, which is to hold a swap file, is not writable; name another folder")
    free = shutil.disk_usage(folder).free
    if free < nbytes:
        raise InputError(
            f"a swap file of {nbytes} bytes does not fit into {folder}, where {free} bytes are free; make room, or "
            "name a folder on another disk"
        )


def left_overs(folder: str | Path) -> list[Path]:
    """Swap files in `folder` that no process holds: those of runs that were killed."""
    return [path for path in sorted(Path(folder).glob("zerolab-*.swap")) if _is_left_over(path)]


def warn_of(paths: Sequence[Path]) -> None:
    """Name left-overs and how to remove them, each once. That they go is for their owner to say."""
    new = [path for path in paths if path not in _named]
    _named.update(new)
    if new:
        files = " ".join(f"'{path}'" for path in new)
        log.warning("killed runs left swap files that no process uses any more; to remove them: rm %s", files)


def _is_left_over(path: Path) -> bool:
    # A file whose state cannot be seen (another user's, or gone by now) is not called a left-over.
    with contextlib.suppress(OSError):
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            # Shared, so that two who look do not take each other for the owner.
            lock(fd, shared=True)
            # A file is empty between its making and its lock.
            return os.fstat(fd).st_size > 0
        finally:
            os.close(fd)
    return False


def _make(path: Path, nbytes: int) -> tuple[int, str]:
    """A new file, locked and with its space; and why its transfers are not direct."""
    try:
        # O_EXCL: never a file of another run.
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise InputError(f"{path} could not be made: {error.strerror}; name another folder") from error
    try:
        # Where there are no locks, left-overs cannot be told from files in use, and none is named.
        with contextlib.suppress(OSError):
            lock(fd, wait=True)
        calls.reserve(fd, nbytes)
        return fd, _go_direct(fd)
    except OSError as error:
        _remove(fd, path)
        raise OffloadError(
            f"the {nbytes} bytes of {path} could not be reserved: {_reason(error)}; make room, or name a folder on "
            "another disk"
        ) from error
    except BaseException:
        _remove(fd, path)
        raise


def _go_direct(fd: int) -> str:
    """Move on past the page cache if that works, as a page written and read shows; else the reason why not.

    The flag is set only now because reserving space may write single bytes, which direct I/O does not allow.
    """
    if not has("direct"):
        return "this system has no direct I/O"
    flags: Any = fcntl.fcntl(fd, fcntl.F_GETFL)
    why = "a page came back in part"
    with mmap.mmap(-1, PAGE) as page, mmap.mmap(-1, PAGE) as back:
        page.write(b"zerolab." * (PAGE // 8))
        try:
            fcntl.fcntl(fd, fcntl.F_SETFL, flags | os.O_DIRECT)
            if os.pwritev(fd, [page], 0) == os.preadv(fd, [back], 0) == PAGE and page[:] == back[:]:
                why = ""
        except OSError as error:
            why = f"direct I/O failed with {error.strerror}"
        fcntl.fcntl(fd, fcntl.F_SETFL, flags)
        # Some file systems take the flag and use the cache all the same; tmpfs is nothing else.
        if not why and calls.in_page_cache(fd):
            why = "the file system keeps in memory what is written to it"
        page[:] = bytes(PAGE)
        if not why:
            fcntl.fcntl(fd, fcntl.F_SETFL, flags | os.O_DIRECT)
        os.pwritev(fd, [page], 0)
    return why


def _remove(fd: int, path: Path) -> None:
    # The name first: while the lock is held, nobody can take the file for a left-over.
    with contextlib.suppress(OSError):
        os.unlink(path)
    os.close(fd)


def _reason(error: OSError) -> str:
    return FULL.get(error.errno or 0, "") or error.strerror or str(error)
