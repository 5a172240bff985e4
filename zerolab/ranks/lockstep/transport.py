"""Messages between ranks that take turns in one process, and the lane of such a rank.

A message passes when both its send and its receive have been posted, straight from memory to memory. On the virtual
clock it begins when both wires are free, too (`wires.py`), and ends link.seconds(bytes) later, for both sides.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes, _len_torch_dispatch_stack

from zerolab.collectives import Link
from zerolab.collectives.call import Call, Group, mismatch
from zerolab.collectives.transport import INTS_TAG, Request
from zerolab.errors import MismatchError
from zerolab.ranks.board import LANE
from zerolab.ranks.lockstep.scheduler import Scheduler, Stopped, Task
from zerolab.ranks.lockstep.wires import Wires
from zerolab.ranks.messages import MessageTransport, PendingMessage, as_bytes


@dataclass(frozen=True)
class Event:
    """Something that happened, in the one order in which everything happens in lockstep.

    `kind` is "send", "receive", "enter" or "leave" (a collective, named by `call`). `lane` 0 is the rank's main line.
    Virtual seconds: `start` is when a message was posted, `out` when it set out, and `end` when it arrived.
    """

    order: int
    rank: int
    lane: int
    kind: str
    start: float
    end: float
    call: str
    peer: int = -1
    nbytes: int = 0
    tag: int = 0
    out: float = 0.0


class Awaited:
    """What ends at a time of the virtual clock, and which a task may wait for."""

    def __init__(self, world: LockstepWorld) -> None:
        self.world = world
        self.task = world.running()
        self.start = self.task.clock
        self.end: float | None = None
        self._waiting: Task | None = None

    def finish(self, at: float) -> None:
        self.end = at
        if self._waiting is not None:
            self.world.wake(self._waiting)

    def wait_as(self, kind: int, peer: int = -1, nbytes: int = 0) -> None:
        """Let others run until it has ended."""
        task = self.world.running()
        if self.end is None:
            self._waiting = task
            self.world.wait(kind, peer, nbytes)
        assert self.end is not None
        task.clock = max(task.clock, self.end)


class LockstepMessage(PendingMessage, Awaited):
    """One side of a message, until it is matched with the other."""

    def __init__(self, transport: LockstepTransport, sends: bool, tensor: torch.Tensor, peer: int, tag: int) -> None:
        PendingMessage.__init__(self, transport, sends, tensor, peer, tag)
        Awaited.__init__(self, transport.world)
        self.transport, self.tensor = transport, tensor
        self.call = str(self.task.calls[-1]) if self.task.calls else ""
        self.world.post(self)

    def wait(self) -> None:
        self.transport.open.pop(self, None)
        self.wait_as(self.kind, self.peer, self.nbytes)

    def arrive(self, out: float, end: float) -> None:
        """It set out and arrived at these times."""
        kind = "send" if self.sends else "receive"
        about = {"peer": self.peer, "nbytes": self.nbytes, "tag": self.tag, "out": out}
        self.world.record(self.task, kind, self.start, end, self.call, **about)
        self.finish(end)


class LockstepWorld(Scheduler):
    """What the transports of all ranks share: turns, messages, events, and calls to compare."""

    def __init__(self, switched: Callable[[int], None], size: int, link: Link | None) -> None:
        super().__init__(switched)
        self.size = size
        self.link = link
        self._wires = Wires()
        self.events: list[Event] = []
        self._posted: dict[tuple[int, int, int], deque[LockstepMessage]] = defaultdict(deque)
        # By group (None is the world) and number: who have come, and with what.
        self._calls: dict[tuple[Group | None, int], tuple[list[int], str]] = {}

    def post(self, message: LockstepMessage) -> None:
        """Match a message with the oldest of the other kind between the same ranks with its tag, or keep it."""
        src, dst = (message.rank, message.peer) if message.sends else (message.peer, message.rank)
        queue = self._posted[src, dst, message.tag]
        if not queue or queue[0].sends == message.sends:
            queue.append(message)
            return
        other = queue.popleft()
        send, receive = (message, other) if message.sends else (other, message)
        if send.nbytes != receive.nbytes:
            self.refuse(MismatchError(receive.sizes_differ(send.nbytes)))
        # A memory tracker of one rank must not count the other's tensor.
        with _disable_current_modes() if _len_torch_dispatch_stack() else nullcontext():
            as_bytes(receive.tensor).copy_(as_bytes(send.tensor))
        seconds = self.link.seconds(send.nbytes) if self.link and message.tag != INTS_TAG else 0.0
        out, end = self._wires.carry(src, dst, max(send.start, receive.start), seconds)
        send.arrive(out, end)
        receive.arrive(out, end)

    def enter(self, rank: int, call: Call) -> None:
        """Compare a call with the other ranks' of the same group and number."""
        key = call.group, call.number
        came, what = self._calls.setdefault(key, ([], str(call)))
        came.append(rank)
        if what != str(call):
            self.refuse(MismatchError(mismatch(came[0], what, rank, str(call))))
        if len(came) == (self.size if call.group is None else call.group.size):
            del self._calls[key]

    def refuse(self, error: MismatchError) -> None:
        self.fail(error)
        raise Stopped

    def record(self, task: Task, kind: str, start: float, end: float, call: str, **about: Any) -> None:
        self.events.append(Event(len(self.events), task.rank, task.lane, kind, start, end, call, **about))


class LockstepTransport(MessageTransport):
    """One rank's messages in a lockstep world."""

    kind = LockstepMessage
    real_clock = False

    def __init__(self, world: LockstepWorld, rank: int) -> None:
        super().__init__(rank, world.size, torch.device("cpu"))
        self.world = world
        self._lanes = 0

    def lane(self) -> LockstepLane:
        self._lanes += 1
        return LockstepLane(self.world, Task(self.rank, self._lanes))

    def entered(self, call: Call) -> None:
        task = self.world.running()
        task.calls.append(call)
        self.world.record(task, "enter", task.clock, task.clock, str(call))
        self.world.enter(self.rank, call)

    def left(self, call: Call) -> None:
        # Also called while a failed launch unwinds, when nothing runs any more.
        task = self.world.current
        if task is not None and call in task.calls:
            task.calls.remove(call)
            self.world.record(task, "leave", task.clock, task.clock, str(call))

    def now(self) -> float:
        return self.world.running().clock


class LockstepLane:
    """A lane as one more task of its rank, which runs when others wait."""

    def __init__(self, world: LockstepWorld, task: Task) -> None:
        self._world = world
        self._task = task
        self._queue: deque[LaneRequest | None] = deque()
        self._asleep = True
        world.add(task, self._serve, ready=False)

    def submit(self, call: Callable[[], Any]) -> Request:
        request = LaneRequest(self._world, call)
        self._put(request)
        return request

    def close(self) -> None:
        self._queue.clear()
        self._put(None)

    def _put(self, request: LaneRequest | None) -> None:
        self._queue.append(request)
        if self._asleep:
            self._asleep = False
            self._world.wake(self._task)

    def _serve(self) -> None:
        while True:
            while not self._queue:
                self._asleep = True
                self._world.wait()
            request = self._queue.popleft()
            if request is None:
                return
            request.run(self._task)


class LaneRequest(Awaited):
    """A call in a lane. It starts when its lane is free, and not before it was submitted."""

    def __init__(self, world: LockstepWorld, call: Callable[[], Any]) -> None:
        super().__init__(world)
        self._call = [call]
        self._error: Exception | None = None

    def run(self, task: Task) -> None:
        task.clock = max(task.clock, self.start)
        try:
            # Once it has run, nobody who keeps this request keeps the call's tensors with it.
            self._call.pop()()
        except Exception as error:
            self._error = error
        self.finish(task.clock)

    def wait(self) -> None:
        self.wait_as(LANE)
        if self._error is not None:
            raise self._error
