"""Transports around a transport: a meter, a link, a check. The one inside is never edited and never knows.

meter   counts calls, and bytes at the place where they go on the wire
link    makes each message take as long as on a wire of given bandwidth and latency
check   compares all ranks' calls before each collective, and names those that differ
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable

import torch

from zerolab.collectives.call import Call, Group, current_call, current_group, current_phase
from zerolab.collectives.cost import RINGS, Link, wire_bytes
from zerolab.collectives.transport import Grouped, Request, Transport, Wrapped
from zerolab.errors import MismatchError

Tensor = torch.Tensor


class Meter(Wrapped):
    """Counts this rank's calls and the bytes it sends, by phase and collective, in all its groups. A message that the
    rank function sends itself counts as "send"."""

    def __init__(self, inner: Transport) -> None:
        super().__init__(inner)
        self.calls: Counter[tuple[str, str]] = Counter()
        self.bytes: Counter[tuple[str, str]] = Counter()
        self.group_bytes: Counter[tuple[str, str]] = Counter()
        """By phase and group; what is not here went through the world's own collectives."""
        self.nominal = False

    def entered(self, call: Call) -> None:
        self.calls[call.phase, call.name] += 1
        if call.nominal:
            self.nominal = True
            if call.name in RINGS:
                rank, size = place_in(call, self)
                nbytes = wire_bytes(call.name, call.numel, call.itemsize, size, rank, call.src)
                self._add((call.phase, call.name), call.group, nbytes)
        super().entered(call)

    def isend(self, tensor: Tensor, dst: int, tag: int = 0) -> Request:
        self._count(tensor.nbytes)
        return super().isend(tensor, dst, tag)

    def exchange(self, outgoing: Tensor, dst: int, incoming: Tensor, src: int, tag: int = 0) -> None:
        self._count(outgoing.nbytes)
        super().exchange(outgoing, dst, incoming, src, tag)

    def moved(self, nbytes: int) -> None:
        self._count(nbytes)
        super().moved(nbytes)

    def _count(self, nbytes: int) -> None:
        call = current_call.get()
        if call is not None:
            self._add((call.phase, call.name), call.group, nbytes)
        else:
            self._add((current_phase.get(), "send"), current_group.get(), nbytes)

    def _add(self, key: tuple[str, str], group: Group | None, nbytes: int) -> None:
        self.bytes[key] += nbytes
        if group is not None:
            self.group_bytes[key[0], group.title] += nbytes

    def reset(self) -> None:
        """Count from zero again."""
        self.calls.clear()
        self.bytes.clear()
        self.group_bytes.clear()

    def calls_by_collective(self, *phases: str) -> dict[str, int]:
        """Calls of each collective, of the named phases or of all."""
        return _by_collective(self.calls, phases)

    def bytes_by_collective(self, *phases: str) -> dict[str, int]:
        """Bytes this rank sent in each collective, of the named phases or of all."""
        return _by_collective(self.bytes, phases)

    def bytes_by_group(self, *phases: str) -> dict[str, int]:
        """Bytes this rank sent in each group, by its name (or by its ranks, as "ranks 0, 2", where it has none), of the
        named phases or of all. "world" is what all ranks sent each other."""
        found = _by_collective(self.group_bytes, phases)
        world = sum(self.bytes_by_collective(*phases).values()) - sum(found.values())
        return {"world": world, **found} if world else found


def place_in(call: Call, transport: Transport) -> tuple[int, int]:
    """This rank among those of a call, and how many those are."""
    if call.group is None:
        return transport.rank, transport.size
    return call.group.ranks.index(transport.rank), call.group.size


def _by_collective(counts: Counter[tuple[str, str]], phases: tuple[str, ...]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for (phase, name), count in counts.items():
        if not phases or phase in phases:
            total[name] += count
    return dict(sorted(total.items()))


class Wire:
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


class Linked(Wrapped):
    """Makes messages take a link's time in real seconds, on a wire out and a wire in: a rank begins to send when its
    message before is on the other side, and either side's `wait` returns only after the link would have delivered
    it. Collectives whose messages are hidden are charged the ring's time as a whole."""

    def __init__(self, inner: Transport, link: Link) -> None:
        super().__init__(inner)
        self.link = link
        self._out, self._in = Wire(), Wire()

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
            time.sleep(self.link.ring_seconds(call.name, call.numel, call.itemsize, place_in(call, self)[1]))
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


class Checked(Wrapped):
    """Before each collective, tells all ranks what this one is about to call; raises where they differ. Costs
    N-1 small messages a call, so it is for tests, lessons and hunting a hang under torchrun."""

    WIDTH = 160

    def entered(self, call: Call) -> None:
        super().entered(call)
        ring = self.inner if call.group is None else Grouped(self.inner, call.group)
        texts = torch.zeros(ring.size, self.WIDTH, dtype=torch.uint8)
        own = str(call).encode()[: self.WIDTH]
        texts[ring.rank, : len(own)] = torch.tensor(list(own), dtype=torch.uint8)
        texts = texts.to(self.device)
        for step in range(ring.size - 1):
            right, left = (ring.rank + 1) % ring.size, (ring.rank - 1) % ring.size
            ring.exchange(texts[ring.rank - step], right, texts[ring.rank - step - 1], left, tag=1)
        seen = [bytes(row.tolist()).rstrip(b"\0").decode(errors="replace") for row in texts.cpu()]
        if any(text != seen[0] for text in seen):
            ranks = range(ring.size) if call.group is None else call.group.ranks
            listed = "; ".join(f"rank {rank} is in {text}" for rank, text in zip(ranks, seen, strict=True))
            raise MismatchError(f"the ranks called different collectives: {listed}; make them call alike")
