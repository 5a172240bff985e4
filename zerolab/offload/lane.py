"""Transfers beside the computation: a few threads that read and write records of swap files.

System calls on files give up Python's lock, so threads are enough. Reads have threads of their own, and so have
writes: a read is not held up by a write that was asked for earlier, and a disk does both at once.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable
from multiprocessing.util import Finalize
from queue import Empty, SimpleQueue

import torch

from zerolab.errors import InputError, StateError
from zerolab.flat.layout import check_count
from zerolab.offload.files import SwapFile
from zerolab.offload.groups import PAGE

THREADS = 4
"""For each direction."""
PIECE = 8 * 2**20
"""Bytes. Larger transfers are cut, so that several threads move them; `benchmarks.swap` found no faster size."""
PATIENCE = 2.0
"""Seconds that the interpreter, when it ends, gives to system calls under way."""


class Transfer:
    """One transfer under way. Its tensor may not be touched before `wait` has returned.

    Attributes:
        started, stopped: `time.perf_counter()` when the first byte was asked for and the last one was there.
        error: what went wrong, once it has ended.
    """

    def __init__(self, pieces: int = 1) -> None:
        self.started = self.stopped = 0.0
        self.error: BaseException | None = None
        self._left = pieces
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._callbacks: list[Callable[[], None]] = []

    @property
    def done(self) -> bool:
        return self._ended.is_set()

    def wait(self) -> None:
        """Block until it has ended; raises what went wrong. May be called again."""
        self._ended.wait()
        if self.error is not None:
            raise self.error

    def then(self, callback: Callable[[], None]) -> None:
        """Call `callback` when the transfer has ended, before any `wait` returns: on the thread that ended it, or at
        once. What it raises there counts as the transfer's error."""
        with self._lock:
            if not self.done:
                self._callbacks.append(callback)
                return
        callback()

    def run(self, work: Callable[[], None]) -> None:
        """Do one piece, unless an earlier one has failed."""
        with self._lock:
            self.started = self.started or time.perf_counter()
        error: BaseException | None = None
        if self.error is None:
            try:
                work()
            except BaseException as caught:
                error = caught
        self._end_piece(error)

    def drop(self, error: BaseException) -> None:
        """Count a piece that nobody will do."""
        self._end_piece(error)

    def _end_piece(self, error: BaseException | None) -> None:
        with self._lock:
            self.error = self.error or error
            self._left -= 1
            if self._left:
                return
            self.stopped = time.perf_counter()
        # A callback that comes between the last look at the list and the event would be lost, hence the lock.
        while True:
            with self._lock:
                if not self._callbacks:
                    self._ended.set()
                    return
                callback = self._callbacks.pop(0)
            try:
                callback()
            except BaseException as error:
                # Whoever waits must hear of it, and the thread has other transfers to do.
                self.error = self.error or error


Task = tuple[Transfer, Callable[[], None]]
Watch = Callable[[str, float, float], None]
"""Called with "read" or "write" when a transfer has ended, and with when it started and stopped."""


class Lane:
    """Reads and writes whole records of swap files in the background, in order of issue in each direction.

    Two transfers that are not waited for may run at once: a record's write and its next read are the caller's to keep
    apart. `close` ends what is under way and then closes the `files` that the lane was given.
    """

    def __init__(self, files: Iterable[SwapFile] = (), threads: int = THREADS, piece: int = PIECE) -> None:
        check_count("the number of threads", threads)
        check_count("the size of a piece", piece)
        if piece % PAGE:
            raise InputError(f"a piece of {piece} bytes is not a whole number of pages; give a multiple of {PAGE}")
        self.files = list(files)
        self.watch: Watch | None = None
        self._piece = piece
        self._closed = False
        # The threads know their queue and not the lane, so that a lane which nobody holds any more goes.
        self._reads: SimpleQueue[Task | None] = SimpleQueue()
        self._writes: SimpleQueue[Task | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        for queue, what in ((self._reads, "read"), (self._writes, "write")):
            for number in range(threads):
                # Daemons: a disk that hangs must not keep the interpreter.
                thread = threading.Thread(target=_serve, args=(queue,), name=f"swap-{what}-{number}", daemon=True)
                thread.start()
                self._threads.append(thread)
        # Before the files, which were made earlier and have a lower priority, are removed.
        args = (self._reads, self._writes, self._threads)
        self._stop = Finalize(self, _stop, args, {"patience": PATIENCE}, exitpriority=20)

    def read(self, file: SwapFile, i: int, buffer: torch.Tensor) -> Transfer:
        """Fill `buffer` with record `i`; see `SwapFile.read`."""
        return self._cut(file, i, buffer, file.read, self._reads)

    def write(self, file: SwapFile, i: int, buffer: torch.Tensor) -> Transfer:
        """Write `buffer` to record `i`; see `SwapFile.write`."""
        return self._cut(file, i, buffer, file.write, self._writes)

    def close(self) -> None:
        """Let what was issued end, then end the threads and close the files. May be called again."""
        self._closed = True
        self._stop.cancel()
        _stop(self._reads, self._writes, self._threads, patience=None)
        self._threads.clear()
        for file in self.files:
            file.close()

    def __enter__(self) -> Lane:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _cut(
        self,
        file: SwapFile,
        i: int,
        buffer: torch.Tensor,
        move: Callable[[int, torch.Tensor, int, int], None],
        queue: SimpleQueue[Task | None],
    ) -> Transfer:
        if self._closed:
            raise StateError("the lane is closed; issue transfers before close()")
        file.check(i, buffer)
        span = file.span(i)
        transfer = Transfer(-(-span // self._piece))
        for start in range(0, span, self._piece):
            stop = min(start + self._piece, span)
            # The task holds the buffer until its piece has ended, whatever becomes of the caller.
            queue.put((transfer, lambda start=start, stop=stop: move(i, buffer, start, stop)))  # type: ignore[misc]
        if (watch := self.watch) is not None:
            kind = "read" if queue is self._reads else "write"
            transfer.then(lambda: watch(kind, transfer.started, transfer.stopped))
        return transfer


def _serve(queue: SimpleQueue[Task | None]) -> None:
    while (task := queue.get()) is not None:
        transfer, work = task
        transfer.run(work)
        # An idle thread holds no buffer.
        del task, transfer, work


def _stop(
    reads: SimpleQueue[Task | None],
    writes: SimpleQueue[Task | None],
    threads: list[threading.Thread],
    patience: float | None,
) -> None:
    """End the threads: with no limit, after all that was issued; with one, after what is under way by then."""
    for queue in (reads, writes):
        # A thread may take the last task between a look at the queue and a get that waits.
        with contextlib.suppress(Empty):
            while patience is not None:
                if (task := queue.get_nowait()) is not None:
                    task[0].drop(StateError("a transfer was not begun: its lane is gone; keep the lane until the end"))
        for _ in threads:
            queue.put(None)
    until = None if patience is None else time.perf_counter() + patience
    for thread in threads:
        if thread is not threading.current_thread():
            thread.join(None if until is None else max(0.0, until - time.perf_counter()))
