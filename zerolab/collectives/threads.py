"""Ranks as threads of one process, which send messages through mailboxes: the smallest world there is.

    launch_threads(2, lambda comm: comm.all_reduce(torch.ones(3)).tolist())    # [[2.0, 2.0, 2.0], [2.0, 2.0, 2.0]]

It needs nothing but Python's threads, so a copy of the library's core trains by it.
"""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import torch

from zerolab.collectives.ring import RingCollectives
from zerolab.collectives.transport import Request, Transport
from zerolab.errors import MismatchError, RankError


class Mailboxes:
    """What is on its way between the ranks of one launch: queues of tensors by sender, receiver and tag."""

    def __init__(self) -> None:
        self.boxes: defaultdict[tuple[int, int, int], deque[torch.Tensor]] = defaultdict(deque)
        self.changed = threading.Condition()
        self.errors: list[Exception] = []

    def put(self, address: tuple[int, int, int], tensor: torch.Tensor) -> None:
        with self.changed:
            self.boxes[address].append(tensor)
            self.changed.notify_all()

    def take(self, address: tuple[int, int, int]) -> torch.Tensor:
        """The oldest tensor there, as soon as there is one. Raises a RankError once a rank has failed."""
        with self.changed:
            self.changed.wait_for(lambda: self.errors or self.boxes[address])
            if not self.boxes[address]:
                raise RankError(f"rank {address[0]} sends nothing more, since a rank has failed")
            return self.boxes[address].popleft()

    def fail(self, error: Exception) -> None:
        with self.changed:
            self.errors.append(error)
            self.changed.notify_all()


class MailTransport(Transport):
    """One rank's messages. What is sent is copied at once, so a send never waits."""

    def __init__(self, mailboxes: Mailboxes, rank: int, size: int) -> None:
        self.mailboxes, self.rank, self.size = mailboxes, rank, size

    def isend(self, tensor: torch.Tensor, dst: int, tag: int = 0) -> Request:
        self.check_peer(dst)
        self.mailboxes.put((self.rank, dst, tag), tensor.detach().clone())
        return SimpleNamespace(wait=lambda: None)

    def irecv(self, tensor: torch.Tensor, src: int, tag: int = 0) -> Request:
        self.check_peer(src)
        return SimpleNamespace(wait=lambda: self._receive(tensor, src, tag))

    def _receive(self, tensor: torch.Tensor, src: int, tag: int) -> None:
        came = self.mailboxes.take((src, self.rank, tag))
        if came.nbytes != tensor.nbytes:
            raise MismatchError(
                f"rank {src} sends {came.nbytes} bytes to rank {self.rank}, which receives {tensor.nbytes}; make both "
                "tensors alike"
            )
        tensor.detach().view(-1).view(torch.uint8).copy_(came.view(-1).view(torch.uint8))


def launch_threads(ranks: int, function: Callable[..., Any], *args: Any) -> list[Any]:
    """Run `function(comm, *args)` on every rank; return the results in rank order, or raise the first error."""
    mailboxes = Mailboxes()

    def live(rank: int) -> Any:
        try:
            comm = RingCollectives(MailTransport(mailboxes, rank, ranks))
            result = function(comm, *args)
            comm.close()
            return result
        except Exception as error:
            mailboxes.fail(error)

    with ThreadPoolExecutor(ranks, "rank") as threads:
        results = [*threads.map(live, range(ranks))]
    if mailboxes.errors:
        raise mailboxes.errors[0]
    return results
