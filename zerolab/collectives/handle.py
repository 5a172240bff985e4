"""Handles of calls under way, and the issuer that keeps a rank's calls in order.

All calls of a rank run one at a time, in the order of issue: an asynchronous call goes to the communication
lane, and once a lane is busy ordinary calls queue behind it. Two ranks that issue the same calls in the same
order therefore meet in each of them, whatever their threads do meanwhile.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import torch

from zerolab.collectives.call import Call, current_call
from zerolab.collectives.transport import Lane, Request, Transport


class Pending:
    """A request that knows whether it was waited for. The issuer keeps the last one, so it holds no tensor: a
    buffer must go when its owner lets it go."""

    def __init__(self, request: Request) -> None:
        self._request: Request | None = request

    @property
    def waited(self) -> bool:
        """Whether nothing of the call can still be running."""
        return self._request is None

    def wait(self) -> None:
        if self._request is not None:
            self._request.wait()
            self._request = None


class Handle:
    """A collective under way. `wait` returns its result; the call's tensors may not be touched before."""

    def __init__(self, result: Any, pending: Pending | None = None, done: torch.cuda.Event | None = None) -> None:
        self._result = result
        self._pending = pending
        self._done = done

    def wait(self) -> Any:
        """Block until the call has ended; raises what the call raised. May be called again."""
        if self._pending is not None:
            self._pending.wait()
        if self._done is not None:
            torch.cuda.current_stream().wait_event(self._done)
        return self._result


class Issuer:
    """Runs a rank's calls in order, on its lane or at once."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._lane: Lane | None = None
        self._last: Pending | None = None
        self._stream: torch.cuda.Stream | None = None
        self.issued = 0

    def issue(self, call: Call, run: Callable[[], None], tensors: list[torch.Tensor], result: Any, now: bool) -> Handle:
        """Run the call, or put it in line. `tensors` are those it reads and writes."""
        self.issued += 1
        call = replace(call, number=self.issued)
        if now and (self._last is None or self._last.waited):
            self._run(call, run)
            return Handle(result)
        if self._lane is None:
            self._lane = self._transport.lane()
        work, done = run, None
        if tensors and tensors[0].is_cuda:
            work, done = self._on_stream(run, tensors)
        carried = carry_context(lambda: self._run(call, work))
        self._last = Pending(self._lane.submit(carried))
        return Handle(result, self._last, done)

    def _run(self, call: Call, run: Callable[[], None]) -> None:
        token = current_call.set(call)
        try:
            self._transport.entered(call)
            with torch.no_grad():
                run()
        finally:
            self._transport.left(call)
            current_call.reset(token)

    def _on_stream(
        self, run: Callable[[], None], tensors: list[torch.Tensor]
    ) -> tuple[Callable[[], None], torch.cuda.Event]:
        """CUDA: run on a stream of the lane's own, after what the caller's stream has queued so far. The handle's
        event makes the waiting stream, not the host, wait; the allocator learns who still uses the tensor."""
        device = tensors[0].device
        if self._stream is None:
            self._stream = torch.cuda.Stream(device)
        stream, ready, done = self._stream, torch.cuda.Event(), torch.cuda.Event()
        ready.record(torch.cuda.current_stream(device))
        for tensor in tensors:
            tensor.record_stream(stream)

        def work() -> None:
            with torch.cuda.device(device), torch.cuda.stream(stream):
                stream.wait_event(ready)
                run()
                done.record(stream)

        return work, done

    def close(self) -> None:
        """End the lane once what was issued has run: other ranks may wait for it. Raises what its last call raised."""
        lane, self._lane = self._lane, None
        if lane is None:
            return
        try:
            if self._last is not None:
                self._last.wait()
        finally:
            lane.close()


def carry_context(run: Callable[[], None]) -> Callable[[], None]:
    """`run` as if called here: with the caller's context variables (the phase) and torch dispatch modes (a memory
    tracker), both of which belong to a thread and would otherwise be lost on the lane."""
    from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

    context = contextvars.copy_context()
    modes = list(_get_current_dispatch_mode_stack())

    def carried() -> None:
        with ExitStack() as stack:
            for mode in modes:
                stack.enter_context(mode)
            run()

    return lambda: context.run(carried)
