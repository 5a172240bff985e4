"""Messages between ranks that take turns in one process, and the lane of such a rank.

A message is a rendezvous: it passes when both its send and its receive have been posted, from the sender's memory
straight to the receiver's. On the virtual clock it begins when both are posted and the sender's wire out and the
receiver's wire in are free (`wires.py`), and ends link.seconds(bytes) later, for both sides. Without a link, messages
take no time.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import _disable_current_modes, _len_torch_dispatch_stack

from zerolab.collectives.call import Call, Group, mismatch
from zerolab.collectives.transport import INTS_TAG, Request, Transport
from zerolab.errors import MismatchError
from zerolab.ranks.failure import OpenRequests, check_message
from zerolab.ranks.lockstep.scheduler import Scheduler, Stopped, Task
from zerolab.ranks.lockstep.wires import Wires

if TYPE_CHECKING:
    from zerolab.collectives import Link


@dataclass(frozen=True)
class Event:
    """Something that happened, in the one order in which everything happens in lockstep.

    `kind` is "send", "receive", "enter" or "leave" (a collective). `lane` 0 is the rank's main line. `start` and
    `end` are virtual seconds: from the posting of a message to its arrival; `out` is when it set out. `call` names the
    collective, or is "".
    """

    order: int
    rank: int
    lane: int
    kind: str
    peer: int
    nbytes: int
    tag: int
    start: float
    end: float
    call: str
    out: float = 0.0


class Post:
    """One side of a message, a send or a receive, until it is matched with the other."""

    def __init__(self, transport: LockstepTransport, kind: str, tensor: torch.Tensor, peer: int, tag: int) -> None:
        self._open = transport.open
        self._open.add(self, kind == "send", peer, tensor.nbytes)
        self._world = world = transport.world
        self.kind = kind
        self.tensor = tensor
        self.peer = peer
        self.tag = tag
        self.task = world.scheduler.running()
        self.call = str(self.task.calls[-1]) if self.task.calls else ""
        self.start = self.task.clock
        self.end: float | None = None
        self._waiting: Task | None = None

    def wait(self) -> None:
        """Let others run until the message has passed."""
        self._open.drop(self)
        scheduler = self._world.scheduler
        task = scheduler.running()
        if self.end is None:
            self._waiting = task
            verb = "send to" if self.kind == "send" else "receive from"
            scheduler.wait(verb, self.peer, self.tensor.nbytes)
        assert self.end is not None
        task.clock = max(task.clock, self.end)

    def finish(self, out: float, end: float) -> None:
        self.end = end
        nbytes = self.tensor.nbytes
        self._world.record(self.task, self.kind, self.start, end, self.call, self.peer, nbytes, self.tag, out)
        if self._waiting is not None:
            self._world.scheduler.wake(self._waiting)


class LockstepWorld:
    """What the transports of all ranks share: messages posted and not matched, events, and calls to compare."""

    def __init__(self, scheduler: Scheduler, size: int, link: Link | None) -> None:
        self.scheduler = scheduler
        self.size = size
        self.link = link
        self._wires = Wires(size)
        self.events: list[Event] = []
        self._posted: dict[tuple[int, int, int], deque[Post]] = defaultdict(deque)
        # By group (None is the world) and number: who came first, and with what.
        self._calls: dict[tuple[Group | None, int], tuple[int, str]] = {}
        self._entered: dict[tuple[Group | None, int], int] = defaultdict(int)

    def post(self, post: Post, src: int, dst: int) -> Post:
        """Match a post with the oldest of the other kind from `src` to `dst` with its tag, or keep it."""
        queue = self._posted[src, dst, post.tag]
        if not queue or queue[0].kind == post.kind:
            queue.append(post)
            return post
        other = queue.popleft()
        send, receive = (post, other) if post.kind == "send" else (other, post)
        self._pass(send, receive)
        return post

    def _pass(self, send: Post, receive: Post) -> None:
        nbytes = send.tensor.nbytes
        if nbytes != receive.tensor.nbytes:
            self.fail(
                MismatchError(
                    f"rank {receive.peer} sends {nbytes} bytes to rank {send.peer}, which receives "
                    f"{receive.tensor.nbytes}; make both tensors alike"
                )
            )
        # A message is no operation of either rank: a memory tracker of one must not count the other's tensor. To ask
        # whether there is one is quicker than to put all aside.
        with _disable_current_modes() if _len_torch_dispatch_stack() else nullcontext():
            _as_bytes(receive.tensor).copy_(_as_bytes(send.tensor))
        seconds = self.link.seconds(nbytes) if self.link and send.tag != INTS_TAG else 0.0
        out, end = self._wires.carry(receive.peer, send.peer, max(send.start, receive.start), seconds)
        send.finish(out, end)
        receive.finish(out, end)

    def enter(self, rank: int, call: Call) -> None:
        """Compare a call with the other ranks' of the same group and number."""
        key = call.group, call.number
        other, what = self._calls.setdefault(key, (rank, str(call)))
        if what != str(call):
            self.fail(MismatchError(mismatch(other, what, rank, str(call))))
        self._entered[key] += 1
        if self._entered[key] == (self.size if call.group is None else call.group.size):
            del self._calls[key], self._entered[key]

    def fail(self, error: MismatchError) -> None:
        self.scheduler.fail(error)
        raise Stopped

    def record(
        self,
        task: Task,
        kind: str,
        start: float,
        end: float,
        call: str,
        peer: int = -1,
        nbytes: int = 0,
        tag: int = 0,
        out: float = 0.0,
    ) -> None:
        order = len(self.events)
        self.events.append(Event(order, task.rank, task.lane, kind, peer, nbytes, tag, start, end, call, out))


class LockstepTransport(Transport):
    """One rank's messages in a lockstep world."""

    real_clock = False

    def __init__(self, world: LockstepWorld, rank: int, device: torch.device) -> None:
        self.world = world
        self.rank = rank
        self.size = world.size
        self.device = device
        self.open = OpenRequests()
        self._lanes = 0

    def isend(self, tensor: torch.Tensor, dst: int, tag: int = 0) -> Request:
        check_message(self, tensor, dst)
        return self.world.post(Post(self, "send", tensor, dst, tag), self.rank, dst)

    def irecv(self, tensor: torch.Tensor, src: int, tag: int = 0) -> Request:
        check_message(self, tensor, src)
        return self.world.post(Post(self, "receive", tensor, src, tag), src, self.rank)

    def lane(self) -> LockstepLane:
        self._lanes += 1
        return LockstepLane(self.world.scheduler, Task(self.rank, self._lanes))

    def entered(self, call: Call) -> None:
        task = self.world.scheduler.running()
        task.calls.append(call)
        self.world.record(task, "enter", task.clock, task.clock, str(call))
        self.world.enter(self.rank, call)

    def left(self, call: Call) -> None:
        # Also called while a failed launch unwinds, when nothing runs any more.
        task = self.world.scheduler.current
        if task is not None and call in task.calls:
            task.calls.remove(call)
            self.world.record(task, "leave", task.clock, task.clock, str(call))

    def check_waited(self) -> None:
        self.open.check()

    def now(self) -> float:
        return self.world.scheduler.running().clock


class LockstepLane:
    """A lane as one more task of its rank, which runs when others wait."""

    def __init__(self, scheduler: Scheduler, task: Task) -> None:
        self._scheduler = scheduler
        self._task = task
        self._queue: deque[LaneRequest] = deque()
        self._asleep = True
        self._closed = False
        scheduler.add(task, self._serve, ready=False)

    def submit(self, call: Callable[[], Any]) -> Request:
        request = LaneRequest(self._scheduler, call)
        self._queue.append(request)
        self._wake()
        return request

    def close(self) -> None:
        self._closed = True
        self._queue.clear()
        self._wake()

    def _wake(self) -> None:
        if self._asleep:
            self._asleep = False
            self._scheduler.wake(self._task)

    def _serve(self) -> None:
        while not self._closed:
            if self._queue:
                self._queue.popleft().run(self._task)
            else:
                self._asleep = True
                self._scheduler.wait()


class LaneRequest:
    """A call in a lane. It starts when its lane is free, and not before it was submitted."""

    def __init__(self, scheduler: Scheduler, call: Callable[[], Any]) -> None:
        self._scheduler = scheduler
        self._call: Callable[[], Any] | None = call
        self._submitted = scheduler.running().clock
        self._end: float | None = None
        self._error: Exception | None = None
        self._waiting: Task | None = None

    def run(self, task: Task) -> None:
        task.clock = max(task.clock, self._submitted)
        # Once it has run, nobody who keeps this request keeps the call's tensors with it.
        call, self._call = self._call, None
        assert call is not None
        try:
            call()
        except Exception as error:
            self._error = error
        del call
        self._end = task.clock
        if self._waiting is not None:
            self._scheduler.wake(self._waiting)

    def wait(self) -> None:
        task = self._scheduler.running()
        if self._end is None:
            self._waiting = task
            self._scheduler.wait("wait for its own communication lane")
        assert self._end is not None
        task.clock = max(task.clock, self._end)
        if self._error is not None:
            raise self._error


def _as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().view(-1).view(torch.uint8)
