"""Transfers beside the computation: threads that move records of swap files, and a walk over groups of states.

System calls on files give up Python's lock, so threads are enough. Reads have threads of their own, which no write
holds up that was asked for earlier: a disk does both at once.

    buffer 0     read 0 | compute 0 | write 0 | read 3 | compute 3 | ...
    buffer 1             read 1 ....| compute 1 | write 1 | read 4 | ...
    buffer 2                         read 2 ....| compute 2 | write 2 | ...

Group k uses buffer k mod n, and each buffer goes round: read, compute, write, and the next read as soon as that write
has ended. With 1 buffer nothing overlaps. With 2, group k + 1 is read beside the computation of k if group k - 1 is
written by then. With 3, all three go on at once, each on a group of its own; more only even out what varies.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

import torch

from zerolab.offload.files import SwapFile

log = logging.getLogger("zerolab.offload")

G = TypeVar("G")

THREADS = 4
"""For each direction."""
PIECE = 8 * 2**20
"""Bytes, whole pages. Larger transfers are cut, so that several threads move them; no size was faster."""


class Transfer:
    """One transfer under way, in so many pieces. Its tensor may not be touched before `wait` has returned.

    Attributes:
        started, stopped: `time.perf_counter()` when the first byte was asked for and the last one was there.
        error: what went wrong, once it has ended.
    """

    def __init__(self, pieces: int = 1) -> None:
        self.started = self.stopped = 0.0
        self.error: BaseException | None = None
        self._left = pieces
        self._lock = threading.RLock()
        self._ended = threading.Event()
        self._callbacks: list[Callable[[Transfer], object]] = []

    @property
    def done(self) -> bool:
        return self._ended.is_set()

    def wait(self) -> None:
        """Block until it has ended; raises what went wrong. May be called again."""
        self._ended.wait()
        if self.error is not None:
            raise self.error

    def add_done_callback(self, callback: Callable[[Transfer], object]) -> None:
        """Call `callback(transfer)` when the transfer has ended, on the thread that ended it, or at once. Unlike a
        future's it comes before any `wait` returns, and what it raises is the transfer's error."""
        with self._lock:
            if not self.done:
                self._callbacks.append(callback)
                return
        callback(self)

    def run(self, work: Callable[[], None]) -> None:
        """Do one piece, unless an earlier one has failed."""
        self.started = self.started or time.perf_counter()
        try:
            if self.error is None:
                work()
        except BaseException as error:
            self.error = self.error or error
        with self._lock:
            self._left -= 1
            if self._left:
                return
            self.stopped = time.perf_counter()
            for callback in self._callbacks:
                try:
                    callback(self)
                except BaseException as error:
                    # Whoever waits must hear of it, and the thread has other transfers to do.
                    self.error = self.error or error
            self._ended.set()


Watch = Callable[[str, float, float], None]
"""Called with "read" or "write" when a transfer has ended, and with when it started and stopped."""


class Lane:
    """Reads and writes whole records of swap files in the background, in order of issue in each direction.

    Two transfers that are not waited for may run at once: a record's write and its next read are the caller's to keep
    apart.
    """

    def __init__(self, files: Iterable[SwapFile] = (), threads: int = THREADS, piece: int = PIECE) -> None:
        self.files = list(files)
        self.watch: Watch | None = None
        self._piece = piece
        self._pools = {kind: ThreadPoolExecutor(threads, f"swap-{kind}") for kind in ("read", "write")}

    def read(self, file: SwapFile, i: int, buffer: torch.Tensor) -> Transfer:
        """Fill `buffer` with record `i`; see `SwapFile.read`."""
        return self._move("read", file, i, buffer)

    def write(self, file: SwapFile, i: int, buffer: torch.Tensor) -> Transfer:
        """Write `buffer` to record `i`; see `SwapFile.write`."""
        return self._move("write", file, i, buffer)

    def close(self) -> None:
        """Let what was issued end, then end the threads and close the `files`. May be called again."""
        for pool in self._pools.values():
            pool.shutdown()
        for file in self.files:
            file.close()

    def __enter__(self) -> Lane:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _move(self, kind: str, file: SwapFile, i: int, buffer: torch.Tensor) -> Transfer:
        file.check(i, buffer)
        starts = range(0, file.span(i), self._piece)
        transfer = Transfer(len(starts))
        if (watch := self.watch) is not None:
            transfer.add_done_callback(lambda ended: watch(kind, ended.started, ended.stopped))
        for start in starts:
            # The task holds the buffer until its piece has ended, whatever becomes of the caller.
            move = partial(getattr(file, kind), i, buffer, start, min(start + self._piece, file.span(i)))
            self._pools[kind].submit(transfer.run, move)
        return transfer


Issue = Callable[[G, int], Transfer]
Trace = Callable[[str, G, float, float], None]
"""Called with "read", "compute" or "write", the group, and when it started and stopped (`time.perf_counter`)."""


def pipeline(
    groups: Iterable[G], read: Issue[G], write: Issue[G], buffers: int, trace: Trace[G] | None = None
) -> Generator[tuple[G, int]]:
    """Each group with the number of its buffer, in order, to compute on between one `next` and the following.

    `read(group, buffer)` and `write(group, buffer)` begin a transfer, on whatever thread, and return at once. A
    transfer that fails ends the walk with its error, the first of several. If the caller leaves it, by an exception or
    a `break`, its last group is not written. Any walk ends only when no transfer is under way; a caller who keeps it
    in a variable closes it.
    """
    walked, trace = list(groups), trace or (lambda *_: None)
    reads, writes = dict[int, Transfer](), dict[int, Transfer]()
    # In order of time.
    failed: list[BaseException] = []
    over = False

    def begin(transfers: dict[int, Transfer], k: int) -> None:
        transfers[k] = (read if transfers is reads else write)(walked[k], k % buffers)
        transfers[k].add_done_callback(partial(ended, transfers, k))

    def ended(transfers: dict[int, Transfer], k: int, transfer: Transfer) -> None:
        # On the thread that ended the transfer, before anybody who waits for it goes on.
        if transfer.error is not None:
            failed.append(transfer.error)
        elif transfers is writes and k + buffers < len(walked) and not over:
            # Only now is the buffer free.
            begin(reads, k + buffers)

    def finish(transfers: dict[int, Transfer], k: int) -> None:
        if failed:
            raise failed[0]
        transfers[k].wait()
        ended = transfers.pop(k)
        trace("read" if transfers is reads else "write", walked[k], ended.started, ended.stopped)

    try:
        for k in range(min(buffers, len(walked))):
            begin(reads, k)
        for k, group in enumerate(walked):
            if k >= buffers:
                # Its end has begun read k, on the lane's thread: the disk does not wait until the processor comes by.
                finish(writes, k - buffers)
            finish(reads, k)
            start = time.perf_counter()
            yield group, k % buffers
            trace("compute", group, start, time.perf_counter())
            begin(writes, k)
        for k in sorted(writes):
            finish(writes, k)
    except BaseException as error:
        over = True
        # A write that ends may still have begun a read: those come last, and then no thread touches a buffer.
        for transfers in (writes, reads):
            for transfer in transfers.values():
                with contextlib.suppress(Exception):
                    transfer.wait()
        if error in failed:
            raise failed[0] from failed[0].__cause__
        for failure in failed:
            # The caller has left, mostly by an error of its own, which must not be hidden.
            log.error("while groups were left unfinished, a transfer failed: %s", failure)
        raise
