"""Copies between a GPU and the host's page-locked memory, beside what is computed.

They run on a stream of their own. The device's side is ordered by events, and the host goes on at once: what was copied
to the host it may read, and what is copied from it write, only after `finish`. A copy keeps the dtype: torch takes one
that changes it through memory that is not locked, and the host waits.
"""

from __future__ import annotations

from collections import deque
from contextlib import AbstractContextManager
from functools import cached_property
from typing import NamedTuple

import torch

from zerolab.gpu import door

Tensor = torch.Tensor

AHEAD = 2
"""Tensors on their way to the host at once that nobody else keeps: memory of the device until they have come."""
LANDING = 4
"""Further ones that the host has not added up: beyond these it waits for the first. Memory of the host."""


class _Coming(NamedTuple):
    """A tensor that comes to the host, and the sum that it is added to, if it is."""

    source: Tensor | None
    into: Tensor
    total: Tensor | None
    came: torch.cuda.Event

    def add(self) -> None:
        if self.total is not None:
            self.total.add_(self.into)


class Copies:
    """The copies of one rank, to and from its GPU `device`, or on the CPU at once. As a context: what is queued inside
    runs on the stream of the copies, after all that was queued before."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._on: AbstractContextManager[None] | None = None
        # When the last copy has ended; None once the host has waited for it.
        self._last: torch.cuda.Event | None = None
        self._coming: deque[_Coming] = deque()
        # To be added up; the device has its memory back.
        self._landing: deque[_Coming] = deque()

    @cached_property
    def _stream(self) -> torch.cuda.Stream:
        return door.stream(self._device)

    def __enter__(self) -> None:
        ready = door.event()
        door.record(ready, door.current(self._device))
        self._on = door.on(self._stream)
        self._on.__enter__()
        door.wait(self._stream, ready)

    def __exit__(self, *exc_info: object) -> None:
        assert self._on is not None
        self._last = door.event()
        door.record(self._last, self._stream)
        on, self._on = self._on, None
        on.__exit__(None, None, None)

    def move(self, target: Tensor, source: Tensor) -> torch.cuda.Event:
        """Queue a copy, one way or the other, and return the event of its end. Neither tensor may change until then,
        and they have one dtype."""
        with self:
            target.copy_(source, non_blocking=True)
        assert self._last is not None
        return self._last

    def put(self, target: Tensor, values: Tensor, stays: bool) -> None:
        """New values for a target, wherever the two lie; `stays`: nobody overwrites `values`, or lets them go, before
        `finish`."""
        if door.holds(target) == door.holds(values):
            target.copy_(values)
        elif door.holds(values):
            sent = values.to(target.dtype)
            came = self.move(target, sent)
            if not stays or sent is not values:
                # Detached, it keeps this memory even if `values` is given another.
                self._hold(_Coming(sent.detach(), target, None, came))
        elif stays and values.dtype == target.dtype:
            self.move(target, values)
        else:
            # Locked memory that is let go is not handed out before the copies of it have ended.
            self.move(target, door.locked(values.numel(), target.dtype).copy_(values))

    def bring(self, total: Tensor, more: Tensor, begun: bool) -> None:
        """Add a tensor of the device, which may be let go, to a sum on the host; or begin it."""
        more = more if begun else more.to(total.dtype)
        into = door.locked(more.numel(), more.dtype) if begun else total
        came = self.move(into, more)
        self._hold(_Coming(more, into, total if begun else None, came))

    def _hold(self, coming: _Coming) -> None:
        """Keep what is on its way to the host until it has come; from `AHEAD` on the device waits for the first."""
        self._coming.append(coming)
        if len(self._coming) > AHEAD:
            # Its memory goes back to the stream that computes.
            first = self._coming.popleft()
            door.wait(door.current(self._device), first.came)
            if first.total is not None:
                self._landing.append(first._replace(source=None))
        while self._landing and (len(self._landing) > LANDING or door.happened(self._landing[0].came)):
            first = self._landing.popleft()
            door.finish(first.came)
            first.add()

    def finish(self) -> None:
        """Return to the host once all copies have ended, those so far in an open context, too."""
        if self._on is not None:
            self._last = door.event()
            door.record(self._last, self._stream)
        if self._last is not None:
            door.finish(self._last)
            self._last = None
        for queue in (self._landing, self._coming):
            while queue:
                queue.popleft().add()
