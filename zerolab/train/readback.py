"""Numbers on their way to the host, which goes on meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from zerolab.collectives.handle import Handle
from zerolab.flat.views import numbers
from zerolab.gpu import door


class Reader:
    """Brings results of asynchronous calls on `device` to the host. On a GPU a stream of its own copies them to
    page-locked memory: what is computed there neither waits for the call nor is waited for."""

    def __init__(self, device: torch.device) -> None:
        self._stream = door.stream(device) if door.drives(device) else None

    def begin(self, handle: Handle) -> Readback:
        """Bring the result of `handle`, a 1-D tensor, as soon as it is there."""
        if self._stream is None:
            return Readback(handle)
        with door.on(self._stream):
            result = handle.wait()
            copied = door.locked(result.numel(), result.dtype).copy_(result, non_blocking=True)
            arrived = door.event()
            door.record(arrived, self._stream)
        return Readback(Handle(copied), arrived)


class Readback:
    """A result that comes to the host."""

    def __init__(self, handle: Handle, arrived: torch.cuda.Event | None = None) -> None:
        self._handle, self._arrived = handle, arrived

    def numbers(self, instead: Sequence[Any]) -> list[Any]:
        """Its elements, once they are here; `instead` where there are no values."""
        if self._arrived is not None:
            door.finish(self._arrived)
        return numbers(self._handle.wait(), instead)
