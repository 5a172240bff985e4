"""Asynchronous calls without a second thread: announced when they are issued, done when all have announced theirs.

A call in shared memory is work for a processor, not for a wire: a thread of its own would take that processor from the
computation beside it. So a call is announced at once; the rank computes on, and does its share of the call when it
comes by again and finds the others announced, or at the latest when somebody waits for the result.

Calls of a group run in the order of issue, as everywhere. One that touches what an earlier one writes or the others
read is announced when that is over. A rank that waits for a call goes on with those of all its groups.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes, _len_torch_dispatch_stack

from zerolab.collectives.call import Call, current_call, mismatch
from zerolab.collectives.contract import Collectives
from zerolab.collectives.handle import Handle
from zerolab.collectives.shared.peers import DONE, HERE, WORDS, Peers
from zerolab.collectives.transport import Request
from zerolab.errors import MismatchError, StateError

Place = Callable[[Call, list[torch.Tensor]], torch.Tensor]
"""Finds or makes the tensor in the arena that stands for what a call reads, given what it reads and writes."""


class SharedCall:
    """A rank's part in a call, in four steps: it announces its tensor, meets the others, does its share with all
    tensors in view, and takes its leave. The call is over when all others have left, too."""

    def __init__(self, queue: CallQueue, call: Call, run: Callable[[], None], tensors: list[torch.Tensor]) -> None:
        self.queue, self.call, self.run, self.tensors = queue, call, run, tensors
        self.words = str(call).encode("ascii", "replace")[:WORDS].decode()
        self.announced: torch.Tensor | None = None
        """This rank's tensor in its arena, which the others know of."""
        self.at_the_end: Callable[[], object] | None = None
        """What this rank does when all others have left."""
        self.entered = self.ran = self.over = False
        self.error: Exception | None = None
        # By kind of note and rank of the world: where its tensor begins.
        self._known: tuple[dict[int, int], dict[int, int]] = {}, {}

    def announce(self) -> None:
        with torch.no_grad():
            self.announced = self.queue.place(self.call, self.tensors) if self.tensors else torch.empty(0)
        self.write(HERE, self.queue.peers.arena.offset(self.announced) or 0)

    def write(self, kind: int, offset: int = 0) -> None:
        self.queue.peers.write(kind, self.queue.number, offset, self.words, self.queue.others)

    def missing(self, kind: int) -> int | None:
        """A rank that is not known to be here (or to have left, if `kind` is DONE); None if all are."""
        queue, known = self.queue, self._known[kind]
        for rank in queue.others if len(known) < len(queue.others) else ():
            if rank not in known:
                notes = queue.peers.notes[rank, kind, queue.number]
                if not notes:
                    return rank
                known[rank], theirs = notes.popleft()
                if theirs != self.words:
                    (one, this), (other, that) = sorted([(queue.peers.rank, self.words), (rank, theirs)])
                    raise MismatchError(mismatch(one, this, other, that))
        return None

    def views(self, start: int, stop: int) -> list[torch.Tensor]:
        """Elements `[start, stop)` of all ranks' tensors, in the ring's order of addition, our own last."""
        assert self.announced is not None
        return [*(self.view(rank, start, stop) for rank in self.queue.others), self.announced[start:stop]]

    def view(self, rank: int, start: int, stop: int) -> torch.Tensor:
        """Those of another rank of the world."""
        assert self.announced is not None
        if start == stop:
            return self.announced[start:stop]
        dtype = self.announced.dtype
        return self.queue.peers.view(rank, self._known[HERE][rank] + start * dtype.itemsize, stop - start, dtype)

    def end(self) -> None:
        """The call is over for everybody. Its tensors are let go at once, whoever keeps the handle."""
        if self.at_the_end is not None:
            with torch.inference_mode() if self.tensors[0].is_inference() else torch.no_grad():
                self.at_the_end()
        self.over = True
        self.announced, self.tensors, self.at_the_end, self.run = None, [], None, lambda: None

    def must_follow(self, earlier: SharedCall) -> bool:
        """Whether this call may not even be announced before the earlier one is over."""
        if earlier.announced is None:
            return True
        theirs = [earlier.announced, *earlier.tensors[-1:]]
        return any(overlap(mine, other) for mine in self.tensors for other in theirs)

    # What a handle asks.

    def arrive(self) -> None:
        """Return when the result is here: when this rank has done its share, but for an all-reduce."""
        self.queue.wait(self, until_over=self.call.name == "all_reduce")

    def wait(self) -> None:
        """Return when everybody has done theirs."""
        self.queue.wait(self, until_over=True)


def overlap(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.data_ptr() < other.data_ptr() + other.nbytes and other.data_ptr() < one.data_ptr() + one.nbytes


class CallQueue:
    """This rank's calls in one group, in order: the issuer (see `handle.py`) of ranks that share memory."""

    def __init__(self, comm: Collectives, peers: Peers, place: Place) -> None:
        self._transport, self.peers, self.place = comm.transport, peers, place
        self.number = 0 if comm.within is None else comm.within.number
        self.others = [*comm.ranks[comm.rank + 1 :], *comm.ranks[: comm.rank]]
        """In the ring's order, in the world's numbers."""
        self._ahead: deque[SharedCall] = deque()  # our share is to be done
        self._behind: deque[SharedCall] = deque()  # it is done, and some others' is not
        # Of failed calls for which nobody has waited, the earliest first.
        self._unheard: list[Exception] = []
        self.running: SharedCall
        """The call that runs."""
        peers.queues.append(self)

    def issue(self, call: Call, run: Callable[[], None], tensors: list[torch.Tensor], result: Any, now: bool) -> Handle:
        with self.peers.lock:
            if self.peers.closed:
                raise StateError(f"{call.name} was called after comm.close(); close it when all calls are made")
            queued = SharedCall(self, call, run, tensors)
            if not self.peers.is_open:
                # The others are met for the first time: a wait, in this call.
                self._enter(queued)
                self.peers.open()
            self._ahead.append(queued)
        if now:
            queued.wait()
        else:
            self.peers.poll()
        return Handle(result, queued)

    def go_on(self) -> bool:
        """Announce what can be announced and take a step, if one can be taken; whether one was."""
        # While a rank announces it may find news of another group's call in its inbox: so that counts as a step.
        announced = self._announce_all()
        if self._ahead and self._has_run(self._ahead[0]):
            self._ahead.popleft()
        elif self._behind and self._behind[0].missing(DONE) is None:
            self._behind.popleft().end()
        else:
            return announced
        return True

    def attend(self, request: Request) -> None:
        """Wait for a message, and meanwhile do what others may wait for before they send it."""
        if not any(queue._ahead for queue in self.peers.queues):
            request.wait()
            return
        with ThreadPoolExecutor(1) as aside:
            message = aside.submit(request.wait)
            while not message.done():
                self.peers.poll()
                time.sleep(1e-4)
            message.result()

    def wait(self, queued: SharedCall, until_over: bool) -> None:
        """Wait until our share of a call is done, or until it is over. Raises the call's error, or an unheard one."""
        self.peers.poll()
        waited = False
        while not (queued.over if until_over else queued.ran):
            waited = True
            self._wait_for_somebody()
            self.peers.poll()
        if waited:
            self._transport.waits(None)
        if queued.error is not None or self._unheard:
            self._raise(queued.error)

    def close(self) -> None:
        calls = [*self._behind, *self._ahead]
        if calls:
            calls[-1].wait()
        self._raise(None)

    def _raise(self, error: Exception | None) -> None:
        """Raise an error, or else the first that nobody has heard."""
        if error is None and self._unheard:
            error = self._unheard[0]
        if error is not None:
            self._unheard = [other for other in self._unheard if other is not error]
            raise error

    def _announce_all(self) -> bool:
        """Announce what may be announced, in order; whether something was."""
        if not self._ahead or self._ahead[-1].announced is not None:
            return False
        earlier, some = list(self._behind), False
        for queued in self._ahead:
            if queued.announced is None:
                if any(map(queued.must_follow, earlier)):
                    break
                queued.announce()
                some = True
            earlier.append(queued)
        return some

    def _wait_for_somebody(self) -> None:
        with self.peers.lock:
            peer = None
            if self._ahead:
                self._enter(self._ahead[0])
            if self._ahead and self._ahead[0].announced is not None:
                peer = self._ahead[0].missing(HERE)
            elif self._behind:
                # What is not announced yet follows one that is not over.
                peer = self._behind[0].missing(DONE)
            # Another thread may have ended it just now.
            self._transport.waits(peer)
        # Another thread may read what this one waits for, so that nobody sleeps for ever.
        self.peers.sleep(0.02)

    def _enter(self, queued: SharedCall) -> None:
        if not queued.entered:
            queued.entered = True
            self._transport.entered(queued.call)

    def _has_run(self, queued: SharedCall) -> bool:
        """Do our share of a call, once all others are here. Whoever waits for it hears of an error."""
        try:
            if queued.announced is None or queued.missing(HERE) is not None:
                return False
            self._run(queued)
            self._behind.append(queued)
        except Exception as error:
            queued.error, queued.over = error, True
            self._unheard.append(error)
        queued.ran = True
        return True

    def _run(self, queued: SharedCall) -> None:
        token = current_call.set(queued.call)
        try:
            self._enter(queued)
            self.running = queued
            # Peers' memory is no memory of this rank, and a tracker must not count it.
            with torch.no_grad(), _disable_current_modes() if _len_torch_dispatch_stack() else nullcontext():
                queued.run()
            queued.write(DONE)
        finally:
            self._transport.left(queued.call)
            current_call.reset(token)
