"""Asynchronous calls without a second thread: announced when they are issued, done when all have announced theirs.

A call in shared memory is work for a processor, not for a wire. A thread of its own would take that processor from
the computation beside it, and wait for its turn besides. So a call is announced at once; the rank computes on, and does
its share of the call when it comes by again and finds the others announced, or at the latest when somebody waits for
the result. In between, nobody has waited for anybody.

A rank works on its calls only while it is inside `comm`. While it computes, or waits for something else, nobody does
its share, and the other ranks may have to wait for it.

Calls of a group run in the order of issue, as everywhere. A wait for one runs those before it. A call that reads or
writes what another has yet to write, or writes what the others have yet to read, is announced when that call is over.

Each group has a queue of its own, and a rank that waits for a call of one goes on with those of all the others: ranks
that issue two groups' calls in different orders do not wait for each other in a circle.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from threading import RLock
from typing import Any, ClassVar
from weakref import WeakSet

import torch
from torch.utils._python_dispatch import _disable_current_modes

from zerolab.collectives.call import Call, current_call
from zerolab.collectives.handle import Handle
from zerolab.collectives.shared.call import SharedCall
from zerolab.collectives.shared.peers import DONE, HERE, GroupPeers, Peers
from zerolab.collectives.transport import Request, Transport
from zerolab.errors import MismatchError, StateError

Announce = Callable[[GroupPeers, Call, list[torch.Tensor]], SharedCall]
"""Says where this rank's tensor for a call lies, given those that the call reads and writes."""


class QueuedCall:
    """A call that was issued. `tensors` are what it reads and what it writes, in this order; a barrier has none."""

    def __init__(self, queue: CallQueue, call: Call, run: Callable[[], None], tensors: list[torch.Tensor]) -> None:
        self.call, self.run, self.tensors = call, run, tensors
        self._queue = queue
        self.shared: SharedCall | None = None
        self.entered = self.ran = self.over = False
        self.error: BaseException | None = None

    def arrive(self) -> None:
        """Return when the result is here: as soon as this rank has done its share, but for an all-reduce, to which each
        of the others adds its part."""
        self._queue.keep(self, until_over=self.call.name == "all_reduce")

    def wait(self) -> None:
        """Return when everybody has."""
        self._queue.keep(self, until_over=True)

    def must_follow(self, earlier: QueuedCall) -> bool:
        """Whether this call may not even be announced before the earlier one is over."""
        if not self.tensors or not earlier.tensors or earlier.shared is None:
            return earlier.shared is None
        reads, writes = self.tensors
        # Others may still read what an earlier call announced, and what it writes may be there only when it is over.
        return any(
            overlap(one, other)
            for one, other in [
                (reads, earlier.tensors[1]),
                (writes, earlier.tensors[1]),
                (writes, earlier.shared.tensor),
            ]
        )

    def end(self) -> None:
        """The call is over for everybody. Its tensors are let go at once, whoever keeps the handle."""
        assert self.shared is not None
        at_the_end, self.shared.at_the_end = self.shared.at_the_end, None
        if at_the_end is not None:
            with unrecorded():
                at_the_end()
        self.over = True
        self.shared, self.tensors, self.run = None, [], _nothing


def _nothing() -> None:
    """What is left to do of a call that is over."""


class unrecorded:  # noqa: N801 - a word of the code that it stands around
    """Autograd records nothing inside. (torch.no_grad() makes ten calls more, and each collective enters it twice.)"""

    __slots__ = ("before",)

    def __enter__(self) -> None:
        self.before = torch.is_grad_enabled()
        torch._C._set_grad_enabled(False)

    def __exit__(self, *_: object) -> None:
        torch._C._set_grad_enabled(self.before)


@contextmanager
def hidden() -> Iterator[None]:
    """Nor do modes hear what is done: peers' memory is no memory of this rank, and a tracker must not count it."""
    with unrecorded(), _disable_current_modes():
        yield


def unobserved() -> AbstractContextManager[None]:
    """Neither autograd nor a mode hears what is done inside."""
    return hidden() if torch._C._len_torch_dispatch_stack() else unrecorded()


def overlap(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.data_ptr() < other.data_ptr() + other.nbytes and other.data_ptr() < one.data_ptr() + one.nbytes


class Queues:
    """What all queues of a rank share: the peers, once the others are met, and each other. Threads that make calls at
    once take turns by `lock`, and wait for other ranks without it."""

    of_process: ClassVar[WeakSet[Queues]] = WeakSet()
    """Those of all comms of this process."""

    def __init__(self, open_peers: Callable[[], Peers]) -> None:
        self._open_peers = open_peers
        self.peers: Peers | None = None
        self.closed = False
        self.all: list[CallQueue] = []
        self.lock = RLock()
        self.of_process.add(self)

    def open(self) -> None:
        self.peers = self._open_peers()

    def poll(self) -> None:
        """Do what can be done without waiting, for all groups."""
        with self.lock:
            if self.peers is None:
                return
            self.peers.listen()
            while any([queue.go_on() for queue in self.all]):
                pass

    def sleep(self) -> None:
        """Wait for news of other ranks. Who waits for a call of one comm goes on with those of the others of this
        process: other ranks may wait for these first."""
        others = [queues for queues in self.of_process if queues is not self and queues.has_calls()]
        for queues in others:
            queues.poll()
        if self.peers is not None:
            # Another thread may read what this one waits for, so that nobody sleeps for ever.
            self.peers.sleep(1e-4 if others else 0.02)

    def has_calls(self) -> bool:
        """Whether some of this rank's calls are not over."""
        return any(queue._ahead or queue._behind for queue in self.all)

    def close(self) -> None:
        self.closed = True
        if self.peers is not None:
            self.peers.close()
            self.peers = None


class CallQueue:
    """This rank's calls in one group, in order: the issuer (see `handle.py`) of ranks that share memory. `beside` is
    the queue of the group that this one was split from; without, it is the world's."""

    def __init__(
        self,
        transport: Transport,
        open_peers: Callable[[], Peers],
        announce: Announce,
        beside: CallQueue | None = None,
    ) -> None:
        self._transport = transport
        self._announce = announce
        self._owns = beside is None
        self._queues: Queues = Queues(open_peers) if beside is None else beside._queues
        self._queues.all.append(self)
        self._peers: GroupPeers | None = None
        self._ahead: deque[QueuedCall] = deque()  # our share is to be done
        self._behind: deque[QueuedCall] = deque()  # it is done, and some others' is not
        # Calls that have failed and whose error nobody has heard, the earliest first.
        self._unheard: deque[QueuedCall] = deque()
        self.issued = 0
        self.running: SharedCall
        """That of the call that runs."""

    def issue(self, call: Call, run: Callable[[], None], tensors: list[torch.Tensor], result: Any, now: bool) -> Handle:
        with self._queues.lock:
            if self._queues.closed:
                raise StateError(f"{call.name} was called after comm.close(); close it when all calls are made")
            self.issued += 1
            call = call.numbered(self.issued)
            queued = QueuedCall(self, call, run, tensors)
            if self._queues.peers is None:
                # The others are met for the first time, which takes all of them: a wait, in this call. (A group is made
                # by a call of those that it is made of, so they have met by then.)
                self._enter(queued)
                self._queues.open()
            self._ahead.append(queued)
        if now:
            queued.wait()
        else:
            self.poll()
        return Handle(result, queued)

    def poll(self) -> None:
        """Do what can be done without waiting."""
        self._queues.poll()

    def go_on(self) -> bool:
        """Announce what can be announced and take a step, if one can be taken; whether one was."""
        # When a call ends, a later one may become free to be announced, and others may be waiting for it already. While
        # a rank announces it may read its inbox, too (`Peers.note`), and find news of another group's call there. So an
        # announcement counts as a step, and all groups are looked at once more.
        announced = self._announce_all()
        return self._advance() or announced

    def attend(self, request: Request) -> None:
        """Wait for a message, and meanwhile do what others may wait for before they send it."""
        if not any(queue._ahead for queue in self._queues.all):
            request.wait()
            return
        with ThreadPoolExecutor(1) as aside:
            message = aside.submit(request.wait)
            while not message.done():
                self.poll()
                time.sleep(1e-4)
            message.result()

    def keep(self, queued: QueuedCall, until_over: bool) -> None:
        """Wait until a call's share is done, or until it is over. Raises what its call raised, or an earlier one that
        nobody has waited for."""
        self.poll()
        waited = False
        while not (queued.over if until_over else queued.ran):
            waited = True
            self._wait_for_somebody()
            self.poll()
        if waited:
            self._transport.waits(None)
        if queued.error is not None:
            with suppress(ValueError):
                self._unheard.remove(queued)
            raise queued.error
        self._raise_unheard()

    def _raise_unheard(self) -> None:
        if self._unheard:
            error = self._unheard.popleft().error
            assert error is not None
            raise error

    def close(self) -> None:
        """Do all that others may still wait for. The world's queue, which is closed last, closes what they share."""
        calls = [*self._behind, *self._ahead]
        try:
            if calls:
                calls[-1].wait()
            self._raise_unheard()
        finally:
            if self._owns:
                self._queues.close()

    def _advance(self) -> bool:
        """Do our share of the next call, or end the first, if either can be."""
        if self._ahead and self._is_ready(self._ahead[0]):
            self._do_share(self._ahead.popleft())
        elif self._behind and self._is_over(self._behind[0]):
            self._behind.popleft().end()
        else:
            return False
        return True

    def _announce_all(self) -> bool:
        """Announce what may be announced, in order; whether something was."""
        if not self._ahead or self._ahead[-1].shared is not None:
            return False
        if self._peers is None:
            assert self._queues.peers is not None
            self._peers = GroupPeers(self._queues.peers, self._transport.within)
        earlier, announced = list(self._behind), False
        for queued in self._ahead:
            if queued.shared is None:
                if any(map(queued.must_follow, earlier)):
                    break
                with unrecorded():
                    queued.shared = self._announce(self._peers, queued.call, queued.tensors)
                announced = True
            earlier.append(queued)
        return announced

    def _wait_for_somebody(self) -> None:
        with self._queues.lock:
            shared, kind = None, HERE
            if self._ahead:
                self._enter(self._ahead[0])
                shared = self._ahead[0].shared
            if shared is None and self._behind:
                # What is not announced yet follows one that is not over.
                shared, kind = self._behind[0].shared, DONE
            # Another thread may have ended it just now.
            self._transport.waits(None if shared is None else shared.missing(kind))
        self._queues.sleep()

    def _is_ready(self, queued: QueuedCall) -> bool:
        try:
            return queued.shared is not None and queued.shared.missing(HERE) is None
        except MismatchError as error:
            # Whoever waits for this call hears of it.
            queued.error = error
            return True

    def _is_over(self, queued: QueuedCall) -> bool:
        return queued.shared is not None and queued.shared.missing(DONE) is None

    def _enter(self, queued: QueuedCall) -> None:
        if not queued.entered:
            queued.entered = True
            self._transport.entered(queued.call)

    def _do_share(self, queued: QueuedCall) -> None:
        token = current_call.set(queued.call)
        try:
            self._enter(queued)
            if queued.error is not None:
                raise queued.error
            assert queued.shared is not None
            self.running = queued.shared
            with unobserved():
                queued.run()
            del self.running
            queued.shared.leave()
            self._behind.append(queued)
        except Exception as error:
            queued.error, queued.over = error, True
            self._unheard.append(queued)
        finally:
            queued.ran = True
            self._transport.left(queued.call)
            current_call.reset(token)
