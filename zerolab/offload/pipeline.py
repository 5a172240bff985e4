"""A walk over groups that do not fit into memory at once: read, compute, write, each beside the other two.

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
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Generic, Protocol, TypeVar

from zerolab.flat.layout import check_count

log = logging.getLogger("zerolab.offload")

G = TypeVar("G")


class AnyTransfer(Protocol):
    """A transfer under way, whoever carries it: `zerolab.offload.lane.Transfer`, or what a lesson puts in its place."""

    started: float
    stopped: float
    error: BaseException | None

    def wait(self) -> None: ...

    def then(self, callback: Callable[[], None]) -> None: ...


Issue = Callable[[G, int], AnyTransfer]
Trace = Callable[[str, G, float, float], None]
"""Called with "read", "compute" or "write", the group, and when it started and stopped (`time.perf_counter`)."""


def pipeline(
    groups: Iterable[G], read: Issue[G], write: Issue[G], buffers: int, trace: Trace[G] | None = None
) -> Generator[tuple[G, int]]:
    """Each group with the number of its buffer, in order, to compute on between one `next` and the following.

    `read(group, buffer)` and `write(group, buffer)` begin a transfer and return at once. `read` may be called on the
    thread that ended a write. The last `next` returns when all is written.

    A transfer that fails ends the walk with its error, the first of several. If the caller leaves the walk, by an
    exception or a `break`, its last group is not written. Either way the walk ends only when no transfer is under way;
    a caller who keeps it in a variable closes it (`contextlib.closing`).
    """
    check_count("the number of buffers", buffers)
    return _Walk(list(groups), read, write, buffers, trace).run()


class _Walk(Generic[G]):
    def __init__(
        self, groups: Sequence[G], read: Issue[G], write: Issue[G], buffers: int, trace: Trace[G] | None
    ) -> None:
        self._groups = groups
        self._begin = {"read": read, "write": write}
        self._buffers = buffers
        self._trace = trace
        # Guards the end: nothing begins once `_over` is set.
        self._lock = threading.Lock()
        self._over = False
        # Transfers that nobody has waited for yet, by the number of their group.
        self._under_way: dict[tuple[str, int], AnyTransfer] = {}
        # In order of time.
        self._failed: list[BaseException] = []

    def run(self) -> Generator[tuple[G, int]]:
        try:
            for k in range(min(self._buffers, len(self._groups))):
                self._issue("read", k)
            for k, group in enumerate(self._groups):
                if k >= self._buffers:
                    # The end of this write begins read k, on the lane's thread: the disk does not wait until the
                    # processor comes by.
                    self._await("write", k - self._buffers)
                self._await("read", k)
                start = time.perf_counter()
                yield group, k % self._buffers
                self._tell("compute", k, start, time.perf_counter())
                self._issue("write", k)
            for k in range(max(0, len(self._groups) - self._buffers), len(self._groups)):
                self._await("write", k)
        except GeneratorExit:
            self._settle()
            for failure in self._failed:
                # The caller has left, mostly by an error of its own, which must not be hidden.
                log.error("while groups were left unfinished, a transfer failed: %s", failure)
            raise
        except BaseException as error:
            self._settle()
            if error in self._failed:
                raise self._failed[0] from self._failed[0].__cause__
            raise

    def _issue(self, kind: str, k: int) -> None:
        with self._lock:
            if self._over:
                return
            pending = self._begin[kind](self._groups[k], k % self._buffers)
            self._under_way[kind, k] = pending
        pending.then(lambda: self._ended(kind, k, pending))

    def _ended(self, kind: str, k: int, pending: AnyTransfer) -> None:
        """On the thread that ended the transfer, before anybody who waits for it goes on."""
        following = k + self._buffers
        if pending.error is not None:
            self._failed.append(pending.error)
        elif kind == "write" and following < len(self._groups):
            try:
                # Only now is the buffer free.
                self._issue("read", following)
            except BaseException as error:
                self._failed.append(error)

    def _await(self, kind: str, k: int) -> None:
        if not self._failed:
            pending = self._under_way[kind, k]
            pending.wait()
            del self._under_way[kind, k]
            self._tell(kind, k, pending.started, pending.stopped)
        if self._failed:
            raise self._failed[0]

    def _tell(self, kind: str, k: int, start: float, stop: float) -> None:
        if self._trace is not None:
            self._trace(kind, self._groups[k], start, stop)

    def _settle(self) -> None:
        """Begin nothing more, and wait until no thread touches a buffer."""
        with self._lock:
            self._over = True
        for pending in self._under_way.values():
            # Its error is in `_failed` by then.
            with contextlib.suppress(Exception):
                pending.wait()
        self._under_way.clear()
