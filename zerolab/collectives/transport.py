"""Point-to-point messages between ranks: the only thing a collective of ours needs from a world.

A transport moves bytes; it knows no sums and no shards. Processes, torchrun and lockstep each bring one, and
`RingCollectives` is built on top of any of them. Requests complete in `wait()`; a buffer belongs to its request
until then: a sender must not write it and a receiver must not read it.
"""

from __future__ import annotations

import threading
import time
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Protocol

import torch

from zerolab.collectives.call import Call, Group, current_call, current_group
from zerolab.errors import InputError
from zerolab.gpu import door

CPU = torch.device("cpu")
Said = Callable[[int], list[int]]


class Request(Protocol):
    """A message under way."""

    def wait(self) -> None: ...


class CommLane(Protocol):
    """A second line of execution of a rank that runs submitted calls one by one, in order."""

    def submit(self, call: Callable[[], Any]) -> Request: ...

    def close(self) -> None: ...


class Transport(ABC):
    """Messages of one rank. Ranks are numbered 0 .. size-1.

    A meter, a tracer and a link are transports too, wrapped around the one of the world, and so is that of a
    group of its ranks (`Grouped`).
    """

    rank: int
    size: int
    device: torch.device = torch.device("cpu")
    within: Group | None = None
    """The group whose ranks these are; None: the world's."""
    posts_ahead = False
    """Whether a receive may be posted long before its message is sent, which saves the sender a wait. Where messages
    run in the order in which they are posted, it would keep back the very send that it waits for."""
    heeds_tags = True
    """Whether a receive takes only a message of its own tag; else any of the right size will do."""

    queues = False
    """Whether torch's collectives among these ranks return to the host when they are queued on a GPU (NCCL)."""

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

    def queued(self, call: Call, done: torch.cuda.Event | None = None) -> None:
        """Told of a collective on a GPU when it is queued there. It has ended when `done` has happened; None: when what
        is queued now on this thread's stream has."""

    def waits(self, peer: int | None) -> None:
        """Told when this rank begins to wait until `peer` comes to the same collective; None: it waits no more."""

    def moved(self, nbytes: int) -> None:
        """Told of bytes that this rank has taken from, or written to, peers' memory without a message."""

    def check_waited(self) -> None:
        """Raise if somebody asked for a message and never waited for it; called when the rank function has returned."""

    def check_result(self, result: Any) -> None:
        """Raise if what the rank function has returned means nothing outside this world."""

    def now(self) -> float:
        """Seconds of this world's clock: real in processes, virtual in lockstep."""
        return time.perf_counter()

    @property
    def real_clock(self) -> bool:
        """Whether `now` is the time that everybody else has, too."""
        return True

    def known(self, numbers: list[int], size: int, said: Said | None) -> list[list[int]] | None:
        """What all ranks of a group of `size` say where this one says `numbers`, in a world that knows it without a
        message; None: they must be asked. `said`, if given, tells what a rank says by its number in the group."""
        return None

    def close(self) -> None:
        """Give back what the transport holds."""

    def bare(self) -> Transport:
        """The same ranks' messages, which no meter, link or tracer sees."""
        return self

    def check_peer(self, peer: int) -> None:
        if isinstance(peer, bool) or not isinstance(peer, int) or not 0 <= peer < self.size:
            raise InputError(f"there is no rank {peer!r}; name a rank from 0 to {self.size - 1}")
        if peer == self.rank:
            raise InputError(f"rank {peer} cannot exchange a message with itself; copy the tensor instead")


class WrappedTransport(Transport):
    """A transport that passes everything on."""

    def __init__(self, inner: Transport) -> None:
        self.inner = inner
        self.rank, self.size, self.device = inner.rank, inner.size, inner.device
        self.posts_ahead, self.heeds_tags = inner.posts_ahead, inner.heeds_tags
        self.queues = inner.queues
        self.within = inner.within

    def isend(self, tensor: torch.Tensor, dst: int, tag: int = 0) -> Request:
        return self.inner.isend(tensor, dst, tag)

    def irecv(self, tensor: torch.Tensor, src: int, tag: int = 0) -> Request:
        return self.inner.irecv(tensor, src, tag)

    def exchange(self, outgoing: torch.Tensor, dst: int, incoming: torch.Tensor, src: int, tag: int = 0) -> None:
        self.inner.exchange(outgoing, dst, incoming, src, tag)

    def lane(self) -> CommLane:
        return self.inner.lane()

    def entered(self, call: Call) -> None:
        self.inner.entered(call)

    def left(self, call: Call) -> None:
        self.inner.left(call)

    def queued(self, call: Call, done: torch.cuda.Event | None = None) -> None:
        self.inner.queued(call, done)

    def waits(self, peer: int | None) -> None:
        self.inner.waits(peer)

    def moved(self, nbytes: int) -> None:
        self.inner.moved(nbytes)

    def now(self) -> float:
        return self.inner.now()

    @property
    def real_clock(self) -> bool:
        return self.inner.real_clock

    def known(self, numbers: list[int], size: int, said: Said | None) -> list[list[int]] | None:
        return self.inner.known(numbers, size, said)

    def close(self) -> None:
        self.inner.close()

    def bare(self) -> Transport:
        return self.inner.bare()


class Grouped(WrappedTransport):
    """Messages among the ranks of a group, which are numbered 0 .. size-1 here, on those of the world. Tags are the
    group's own: what two ranks send each other in one group, no receive of another group takes."""

    def __init__(self, inner: Transport, group: Group) -> None:
        # A group of a group's ranks stands on the world, too.
        super().__init__(inner.inner if isinstance(inner, Grouped) else inner)
        everybody = self.within.ranks if self.within is not None else tuple(range(self.size))
        self._peers = [everybody.index(rank) for rank in group.ranks]
        self.rank, self.size = self._peers.index(self.rank), group.size
        self.within: Group = group

    def isend(self, tensor: torch.Tensor, dst: int, tag: int = 0) -> Request:
        self.check_peer(dst)
        return self._named(lambda: self.inner.isend(tensor, self._peers[dst], self._tag(tag)))

    def irecv(self, tensor: torch.Tensor, src: int, tag: int = 0) -> Request:
        self.check_peer(src)
        return self.inner.irecv(tensor, self._peers[src], self._tag(tag))

    def exchange(self, outgoing: torch.Tensor, dst: int, incoming: torch.Tensor, src: int, tag: int = 0) -> None:
        self.check_peer(dst)
        self.check_peer(src)
        peers = self._peers
        self._named(lambda: self.inner.exchange(outgoing, peers[dst], incoming, peers[src], self._tag(tag)))

    def waits(self, peer: int | None) -> None:
        self.inner.waits(None if peer is None else self._peers[peer])

    def close(self) -> None:
        """The messages stay with the world."""

    def bare(self) -> Transport:
        return Grouped(self.inner.bare(), self.within)

    def _tag(self, tag: int) -> int:
        return zlib.crc32(b"%d %d" % (self.within.number, tag)) & 0x3FFFFFFF

    def _named(self, send: Callable[[], Any]) -> Any:
        """Hand a message on, and say whose it is where no call does."""
        if current_call.get() is not None:
            return send()
        token = current_group.set(self.within)
        try:
            return send()
        finally:
            current_group.reset(token)


class ThreadLane:
    """A lane in a thread of its own, for a rank on `device`. Torch releases the interpreter lock while it adds or
    waits, so the lane makes progress while the rank's main thread computes."""

    def __init__(self, name: str, device: torch.device = CPU) -> None:
        begin = partial(door.enter, device) if door.drives(device) else None
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name, initializer=begin)

    def submit(self, call: Callable[[], Any]) -> Request:
        request = LaneCall(call)
        self._pool.submit(request.run)
        return request

    def close(self) -> None:
        self._pool.shutdown(wait=True)


class LaneCall:
    """A call in a lane's thread. It lets the call go before it says that it has ended: whoever has waited, or looks
    later, finds its tensors held by nobody but their owners. An error of the call is raised by `wait`."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call: Callable[[], Any] | None = call
        self._ended = threading.Event()
        self._error: BaseException | None = None

    def run(self) -> None:
        call, self._call = self._call, None
        assert call is not None
        try:
            call()
        except BaseException as error:
            self._error = error
        del call
        self._ended.set()

    def wait(self) -> None:
        self._ended.wait()
        if self._error is not None:
            raise self._error


class LocalTransport(Transport):
    """The world of one rank: there is nobody to talk to."""

    rank = 0
    size = 1

    def isend(self, tensor: torch.Tensor, dst: int, tag: int = 0) -> Request:
        raise InputError(f"rank 0 is alone and cannot send to rank {dst}; launch with ranks=2 or more")

    def irecv(self, tensor: torch.Tensor, src: int, tag: int = 0) -> Request:
        raise InputError(f"rank 0 is alone and cannot receive from rank {src}; launch with ranks=2 or more")


TELL = 0x40000001
"""The tag of messages by which ranks tell each other numbers; no collective and no rank function uses it."""


def tell_all(transport: Transport, numbers: list[int], said: Said | None = None) -> list[list[int]]:
    """Every rank's numbers, in rank order, by log N messages between hosts: what a rank knows doubles with each. They
    are not part of anybody's traffic, and take no time in lockstep."""
    transport = transport.bare()
    if (rows := transport.known(numbers, transport.size, said)) is not None:
        return rows
    rank, size = transport.rank, transport.size
    # Row i is what rank (rank + i) % size says.
    table = torch.zeros(size, len(numbers), dtype=torch.int64, device="cpu")
    table[0] = torch.tensor(numbers, dtype=torch.int64, device="cpu")
    known = 1
    while known < size:
        more = min(known, size - known)
        transport.exchange(
            table[:more], (rank - known) % size, table[known : known + more], (rank + known) % size, TELL
        )
        known += more
    rows = table.tolist()
    return rows[-rank:] + rows[:-rank]
