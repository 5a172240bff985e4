"""A simulated wire: each message takes as long as on one of given bandwidth and latency."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import torch

from zerolab.collectives.call import Call
from zerolab.collectives.cost import Link
from zerolab.collectives.transport import Request, Transport, WrappedTransport

Tensor = torch.Tensor


class RealWire:
    """Carries one message after the other, in real seconds."""

    def __init__(self) -> None:
        self._free = 0.0
        self._lock = threading.Lock()

    def take(self, seconds: float) -> tuple[float, float]:
        """From when until when it carries the next message; a lane's messages take it, too."""
        with self._lock:
            start = max(time.perf_counter(), self._free)
            self._free = start + seconds
            return start, self._free


class Linked(WrappedTransport):
    """Makes messages take a link's time in real seconds, on a wire out and a wire in: a rank begins to send when its
    message before is on the other side, and either side's `wait` returns only after the link would have delivered
    it. Collectives whose messages are hidden are charged the ring's time as a whole."""

    def __init__(self, inner: Transport, link: Link) -> None:
        super().__init__(inner)
        self.link = link
        self._out, self._in = RealWire(), RealWire()

    def isend(self, tensor: Tensor, dst: int, tag: int = 0) -> Request:
        gone = self._wait_to_send(tensor)
        return Then(super().isend(tensor, dst, tag), lambda: sleep_until(gone))

    def irecv(self, tensor: Tensor, src: int, tag: int = 0) -> Request:
        request = super().irecv(tensor, src, tag)
        return Then(request, lambda: self._hold(tensor))

    def exchange(self, outgoing: Tensor, dst: int, incoming: Tensor, src: int, tag: int = 0) -> None:
        gone = self._wait_to_send(outgoing)
        super().exchange(outgoing, dst, incoming, src, tag)
        self._hold(incoming)
        sleep_until(gone)

    def moved(self, nbytes: int) -> None:
        super().moved(nbytes)
        time.sleep(self.link.seconds(nbytes))

    def left(self, call: Call) -> None:
        if call.nominal:
            time.sleep(
                self.link.ring_seconds(call.name, call.numel, call.itemsize, call.place_of(self.rank, self.size)[1])
            )
        super().left(call)

    def _wait_to_send(self, leaving: Tensor) -> float:
        """Return when a message may leave; the value is when it will be on the other side."""
        start, stop = self._out.take(self._seconds(leaving))
        sleep_until(start)
        return stop

    def _hold(self, arrived: Tensor) -> None:
        _, stop = self._in.take(self._seconds(arrived))
        sleep_until(stop)

    def _seconds(self, message: Tensor) -> float:
        return self.link.seconds(message.numel() * message.element_size())


def sleep_until(moment: float) -> None:
    time.sleep(max(0.0, moment - time.perf_counter()))


class Then:
    """A request followed by something else."""

    def __init__(self, request: Request, afterwards: Callable[[], None]) -> None:
        self._request = request
        self._afterwards: Callable[[], None] | None = afterwards

    def wait(self) -> None:
        self._request.wait()
        # Only the first wait has to wait for it.
        afterwards, self._afterwards = self._afterwards, None
        if afterwards is not None:
            afterwards()
