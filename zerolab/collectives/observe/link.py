"""A simulated wire: each message takes as long as on one of given bandwidth and latency."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import cache
from types import SimpleNamespace

import torch

from zerolab.collectives.call import Call
from zerolab.collectives.cost import Link
from zerolab.collectives.transport import Request, Transport, WrappedTransport

Tensor = torch.Tensor


class Linked(WrappedTransport):
    """Makes messages take a link's time in real seconds, on a wire out and a wire in: a rank begins to send when its
    message before is on the other side, and `wait` returns only after the link would have delivered it. Collectives
    whose messages are hidden are charged the ring's time as a whole."""

    def __init__(self, inner: Transport, link: Link) -> None:
        super().__init__(inner)
        self.link = link
        self._lock = threading.Lock()
        # Until when each wire carries a message.
        self._until = {"out": 0.0, "in": 0.0}

    def isend(self, tensor: Tensor, dst: int, tag: int = 0) -> Request:
        gone = self._leave(tensor)
        return then(super().isend(tensor, dst, tag), lambda: sleep_until(gone))

    def irecv(self, tensor: Tensor, src: int, tag: int = 0) -> Request:
        return then(super().irecv(tensor, src, tag), lambda: sleep_until(self._take("in", tensor)))

    def exchange(self, outgoing: Tensor, dst: int, incoming: Tensor, src: int, tag: int = 0) -> None:
        gone = self._leave(outgoing)
        super().exchange(outgoing, dst, incoming, src, tag)
        sleep_until(self._take("in", incoming))
        sleep_until(gone)

    def moved(self, nbytes: int) -> None:
        super().moved(nbytes)
        time.sleep(self.link.seconds(nbytes))

    def left(self, call: Call) -> None:
        if call.nominal:
            size = call.place_of(self.rank, self.size)[1]
            time.sleep(self.link.ring_seconds(call.name, call.numel, call.itemsize, size))
        super().left(call)

    def _leave(self, message: Tensor) -> float:
        """Return when a message may leave; the value is when it will be on the other side."""
        gone = self._take("out", message)
        sleep_until(gone - self.link.seconds(message.nbytes))
        return gone

    def _take(self, wire: str, message: Tensor) -> float:
        """Until when a wire carries its next message."""
        with self._lock:
            self._until[wire] = max(time.perf_counter(), self._until[wire]) + self.link.seconds(message.nbytes)
            return self._until[wire]


def sleep_until(moment: float) -> None:
    time.sleep(max(0.0, moment - time.perf_counter()))


def then(request: Request, afterwards: Callable[[], None]) -> Request:
    """A request followed by something else, in the first wait."""

    @cache
    def wait() -> None:
        request.wait()
        afterwards()

    return SimpleNamespace(wait=wait)
