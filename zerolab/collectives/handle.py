"""Handles of calls under way, and the issuer that keeps a rank's calls in order.

All calls of a rank run one at a time, in the order of issue: an asynchronous call goes to the communication lane, and
once a lane is busy ordinary calls queue behind it.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from typing import Any, Protocol

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from zerolab.collectives.call import Call, current_call
from zerolab.collectives.transport import CommLane, Transport
from zerolab.gpu import door


class Order(Protocol):
    """Keeps a rank's calls in order. `tensors` are those that a call reads and writes."""

    def issue(
        self, call: Call, run: Callable[[], None], tensors: list[torch.Tensor], result: Any, now: bool
    ) -> Handle: ...

    def close(self) -> None: ...


class Handle:
    """A collective under way. `wait` returns its result; the call's tensors may not be touched before. What is pending
    has `wait`, for when no rank needs its tensors, and `arrive`, for when its result is here."""

    watch: Callable[[], AbstractContextManager[None]] = nullcontext
    """What a tracer puts around each wait."""

    def __init__(self, result: Any, pending: Any = None) -> None:
        self._result = result
        self._pending = pending

    @property
    def queued(self) -> bool:
        """Whether the call is queued on a GPU and the host need not wait for it: then `behind` may be called."""
        return isinstance(self._pending, Streamed) and self._pending.pending is None

    def behind(self, stream: torch.cuda.Stream) -> Any:
        """What `stream` does from now on comes after the call. Returns the result for use on that stream."""
        door.wait(stream, self._pending.done)
        return self._result

    def arrived(self) -> Any:
        """The result as soon as it is here. Other ranks may still read what was given, until `wait`."""
        if self._pending is not None:
            with self.watch():
                self._pending.arrive()
        return self._result

    def wait(self) -> Any:
        """Block until the call has ended; raises what the call raised. May be called again."""
        if self._pending is not None:
            with self.watch():
                self._pending.wait()
        return self._result


class Pending:
    """A call in a lane. An error of the call is raised by each `wait`, and is `unheard` until the first."""

    def __init__(self, lane: CommLane, run: Callable[[], None], unheard: list[Exception]) -> None:
        self._run: Callable[[], None] | None = run
        self._error: Exception | None = None
        self._unheard = unheard
        self.waited = False
        """Whether nothing of the call can still be running."""
        self._request = lane.submit(self._start)

    def wait(self) -> None:
        self._request.wait()
        self.waited = True
        if self._error is not None:
            with suppress(ValueError):
                self._unheard.remove(self._error)
            raise self._error

    arrive = wait

    def _start(self) -> None:
        run, self._run = self._run, None
        assert run is not None
        try:
            run()
        except Exception as error:
            self._error = error
            self._unheard.append(error)


class Streamed:
    """CUDA: a call on the lane's own stream, and the tensors that it reads and writes.

    They stay alive until somebody waits. The allocator is told to hold their memory back for another stream in two
    cases only: nobody has waited, or the stream that waits is not the one that asked for the call and owns the memory.
    """

    def __init__(self, stream: torch.cuda.Stream, asking: torch.cuda.Stream, tensors: list[torch.Tensor]) -> None:
        self.stream = stream
        self.done = door.event()
        self.pending: Pending | None = None
        """The lane that queues it, if no library does."""
        self._asking = asking
        self._tensors = [*tensors]

    def wait(self) -> None:
        if self.pending is not None:
            self.pending.wait()
        current = follow(self.stream.device, self.done)
        if current != self._asking:
            for tensor in self._tensors:
                door.keep(tensor, current)
        self._tensors = []

    arrive = wait

    def __del__(self) -> None:
        for tensor in self._tensors:
            door.keep(tensor, self.stream)


def follow(device: torch.device, done: torch.cuda.Event) -> torch.cuda.Stream:
    """What the current stream does from now on comes after the event. Returns the stream."""
    current = door.current(device)
    door.wait(current, done)
    return current


class Issuer:
    """Runs a rank's calls in order, on its lane or at once. `queues`: calls on a GPU only queue their work there, as
    NCCL's do, so the caller itself queues them on the lane's stream, and no thread is needed."""

    def __init__(self, transport: Transport, queues: bool = False) -> None:
        self._transport = transport
        self._queues = queues
        self._lane: CommLane | None = None
        self._last: Pending | None = None
        # Of calls that nobody has waited for, the earliest first.
        self._unheard: list[Exception] = []
        self._stream: torch.cuda.Stream | None = None
        self._done: torch.cuda.Event | None = None

    def issue(self, call: Call, run: Callable[[], None], tensors: list[torch.Tensor], result: Any, now: bool) -> Handle:
        """Run the call, or put it in line."""
        if now and (self._last is None or self._last.waited):
            if self._stream is not None and self._done is not None:
                follow(self._stream.device, self._done)
            self._run(call, run)
            return Handle(result)
        streamed = None
        if tensors and door.holds(tensors[0]):
            run, streamed = self._on_stream(run, tensors)
            if self._queues:
                self._run(call, run)
                return Handle(result, streamed)
        if self._lane is None:
            self._lane = self._transport.lane()
        self._last = Pending(self._lane, carry_context(lambda: self._run(call, run)), self._unheard)
        if streamed is None:
            return Handle(result, self._last)
        streamed.pending = self._last
        return Handle(result, streamed)

    def _run(self, call: Call, run: Callable[[], None]) -> None:
        token = current_call.set(call)
        try:
            self._transport.entered(call)
            with torch.no_grad():
                run()
        finally:
            self._transport.left(call)
            current_call.reset(token)

    def _on_stream(self, run: Callable[[], None], tensors: list[torch.Tensor]) -> tuple[Callable[[], None], Streamed]:
        """CUDA: run on a stream of the lane's own, after what the caller's stream has queued so far."""
        device = tensors[0].device
        if self._stream is None:
            self._stream = door.stream(device)
        stream, ready, asking = self._stream, door.event(), door.current(device)
        streamed = Streamed(stream, asking, tensors)
        done = self._done = streamed.done
        door.record(ready, asking)

        def work() -> None:
            with door.on(stream):
                door.wait(stream, ready)
                run()
                door.record(done, stream)

        return work, streamed

    def close(self) -> None:
        """End the lane once all calls have run: other ranks may wait for them. Raises the first unheard error."""
        lane, self._lane = self._lane, None
        if lane is None:
            return
        try:
            lane.submit(lambda: None).wait()
        finally:
            lane.close()
        if self._unheard:
            raise self._unheard[0]


def carry_context(run: Callable[[], None]) -> Callable[[], None]:
    """`run` as if on this thread: with its context variables (the phase) and torch dispatch modes (a tracker)."""
    context, modes = contextvars.copy_context(), [*_get_current_dispatch_mode_stack()]

    def carried() -> None:
        with ExitStack() as stack:
            for mode in modes:
                stack.enter_context(mode)
            run()

    return lambda: context.run(carried)
