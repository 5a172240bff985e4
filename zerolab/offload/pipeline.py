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
import time
from collections.abc import Callable, Generator, Iterable
from functools import partial
from typing import Any, Protocol, TypeVar

log = logging.getLogger("zerolab.offload")

G = TypeVar("G")


class AnyTransfer(Protocol):
    """A transfer under way, whoever carries it: `zerolab.offload.lane.Transfer`, or what a lesson puts in its place."""

    started: float
    stopped: float
    error: BaseException | None

    def wait(self) -> None: ...

    def add_done_callback(self, callback: Callable[[Any], object]) -> None: ...


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
    walked, trace = list(groups), trace or (lambda *_: None)
    reads, writes = dict[int, AnyTransfer](), dict[int, AnyTransfer]()
    # In order of time.
    failed: list[BaseException] = []
    over = False

    def begin(transfers: dict[int, AnyTransfer], k: int) -> None:
        transfers[k] = (read if transfers is reads else write)(walked[k], k % buffers)
        transfers[k].add_done_callback(partial(ended, transfers, k))

    def ended(transfers: dict[int, AnyTransfer], k: int, transfer: AnyTransfer) -> None:
        # On the thread that ended the transfer, before anybody who waits for it goes on.
        if transfer.error is not None:
            failed.append(transfer.error)
        elif transfers is writes and k + buffers < len(walked) and not over:
            # Only now is the buffer free.
            begin(reads, k + buffers)

    def finish(transfers: dict[int, AnyTransfer], k: int) -> None:
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
