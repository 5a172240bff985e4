"""Messages between ranks: the only thing a collective of ours needs from a world, of which each brings a transport.

A buffer belongs to its request until `wait()`: a sender must not write it and a receiver must not read it.
"""

from __future__ import annotations

import time
import zlib
from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace
from typing import Any, Protocol

import torch

from zerolab.collectives.call import Call, Group
from zerolab.errors import InputError
from zerolab.flat.layout import round_up
from zerolab.gpu import door

CPU = torch.device("cpu")
INTS_TAG = 0x40000001
"""The tag of messages in which ranks give each other integers; no collective and no rank function uses it."""
RowOf = Callable[[int], list[int]]
"""What a rank of this number gives to `all_gather_ints`."""


class Request(Protocol):
    def wait(self) -> None: ...


class CommLane(Protocol):
    """A second line of execution of a rank that runs submitted calls one by one, in order."""

    def submit(self, call: Callable[[], Any]) -> Request: ...

    def close(self) -> None: ...


class Transport(ABC):
    """Messages of one rank. Meter, tracer and link are transports, too, wrapped around the one of the world."""

    rank: int
    size: int
    device: torch.device = CPU
    posts_ahead = False
    """Whether a receive may be posted before its message is sent, which saves the sender a wait."""
    queues = False
    """Whether messages and torch's collectives are queued on a GPU (NCCL): they return to the host at once, and a
    receive takes any message of the right size, whatever its tag."""
    real_clock = True
    """Whether `now` is the time that everybody else has, too."""

    @abstractmethod
    def isend(self, tensor: torch.Tensor, dst: int, tag: int = 0) -> Request:
        """Begin to send a contiguous tensor to rank `dst`. Only a receive with the same tag takes it."""

    @abstractmethod
    def irecv(self, tensor: torch.Tensor, src: int, tag: int = 0) -> Request:
        """Begin to fill a contiguous tensor with a message of the same byte count from rank `src`."""

    def exchange(self, outgoing: torch.Tensor, dst: int, incoming: torch.Tensor, src: int, tag: int = 0) -> None:
        """Send and receive at once; returns when both are done, so that a circle of exchanges cannot deadlock."""
        receiving = self.irecv(incoming, src, tag)
        sending = self.isend(outgoing, dst, tag)
        receiving.wait()
        sending.wait()

    def lane(self) -> CommLane:
        """A lane for asynchronous collectives; a world that schedules ranks itself overrides this."""
        return ThreadLane(f"zerolab-communication-{self.rank}", self.device)

    def entered(self, call: Call) -> None:
        """Told when this rank enters a collective; `str(call)` is such as "#2 all_gather of 4096 float32"."""

    def left(self, call: Call) -> None:
        """Told when this rank has left the collective."""

    def waits(self, peer: int | None) -> None:
        """Told when this rank begins to wait until `peer` comes to the same collective; None: it waits no more."""

    def moved(self, nbytes: int) -> None:
        """Told of bytes that this rank has read or written in peers' memory without a message."""

    def check_waited(self) -> None:
        """Raise if somebody asked for a message and never waited for it; called when the rank function has returned."""

    def check_result(self, result: Any) -> None:
        """Raise if what the rank function has returned means nothing outside this world."""

    def now(self) -> float:
        return time.perf_counter()

    def all_gather_ints(
        self, numbers: Sequence[int], row_of: RowOf | None = None, group: Group | None = None
    ) -> list[list[int]]:
        """Every rank's numbers, as many from each, in rank order, in a `group` or in the world. They travel between
        hosts in log N messages and are nobody's traffic. `row_of` serves worlds in which the others do not answer."""
        ranks = range(self.size) if group is None else group.ranks
        rank, size = ranks.index(self.rank), len(ranks)
        # Row i is that of rank (rank + i) % size.
        table = torch.tensor([numbers] * size, dtype=torch.int64, device="cpu")
        known = 1
        while known < size:
            more = min(known, size - known)
            dst, src = ranks[(rank - known) % size], ranks[(rank + known) % size]
            self.exchange(table[:more], dst, table[known : known + more], src, tag_in(group, INTS_TAG))
            known += more
        rows = table.tolist()
        return rows[-rank:] + rows[:-rank]

    def all_gather_text(self, text: str, group: Group | None = None) -> list[str]:
        """Return every rank's text, in rank order; see `all_gather_ints`."""
        own = text.encode()
        longest = max(length for (length,) in self.all_gather_ints([len(own)], None, group))
        padded = memoryview(own.ljust(round_up(longest, 8), b"\0"))
        rows = self.all_gather_ints(padded.cast("q").tolist(), None, group)
        return [array("q", row).tobytes().rstrip(b"\0").decode() for row in rows]

    def close(self) -> None:
        """Give back what the transport holds."""

    def check_peer(self, peer: int) -> None:
        if isinstance(peer, bool) or not isinstance(peer, int) or not 0 <= peer < self.size:
            raise InputError(f"there is no rank {peer!r}; name a rank from 0 to {self.size - 1}")
        if peer == self.rank:
            raise InputError(f"rank {peer} cannot exchange a message with itself; copy the tensor instead")


def pass_on(name: str) -> Callable[..., Any]:
    def method(self: WrappedTransport, *args: Any, **kwargs: Any) -> Any:
        return getattr(self.inner, name)(*args, **kwargs)

    return method


class WrappedTransport(Transport):
    """A transport that passes everything on."""

    def __init__(self, inner: Transport) -> None:
        self.inner = inner
        self.rank, self.size, self.device = inner.rank, inner.size, inner.device
        self.posts_ahead, self.queues, self.real_clock = inner.posts_ahead, inner.queues, inner.real_clock

    isend = pass_on("isend")
    irecv = pass_on("irecv")
    exchange = pass_on("exchange")
    lane = pass_on("lane")
    entered = pass_on("entered")
    left = pass_on("left")
    waits = pass_on("waits")
    moved = pass_on("moved")
    now = pass_on("now")
    all_gather_ints = pass_on("all_gather_ints")
    close = pass_on("close")


def tag_in(group: Group | None, tag: int) -> int:
    """The tag of messages within a group: no receive of another group takes them."""
    return tag if group is None else zlib.crc32(b"%d %d" % (group.number, tag)) & 0x3FFFFFFF


class ThreadLane:
    """A lane in a thread of its own, for a rank on `device`: torch lets other threads run while it adds or waits."""

    def __init__(self, name: str, device: torch.device = CPU) -> None:
        begin = partial(door.enter, device) if door.drives(device) else None
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name, initializer=begin)

    def submit(self, call: Callable[[], Any]) -> Request:
        return SimpleNamespace(wait=self._pool.submit(call).result)

    def close(self) -> None:
        self._pool.shutdown(wait=True)


class LocalTransport(Transport):
    """The world of one rank: there is nobody to talk to."""

    rank = 0
    size = 1

    def isend(self, tensor: torch.Tensor, dst: int, tag: int = 0) -> Request:
        raise InputError(f"there is no rank {dst} beside rank 0, which is alone; launch with ranks=2 or more")

    def irecv(self, tensor: torch.Tensor, src: int, tag: int = 0) -> Request:
        return self.isend(tensor, src, tag)
