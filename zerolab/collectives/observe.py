"""What looks at calls from outside: transports around transports, which a rank's calls pass on their way.

Meter    what a rank calls and sends, counted at the place where bytes go on the wire
Tracer   when what ran: spans of collectives and of phases, on the world's clock
Linked   a simulated wire: each message takes as long as on one of given bandwidth and latency
Checked  all ranks' calls compared before each collective; those that differ are named
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cache, partial
from types import SimpleNamespace
from typing import Any

import torch

from zerolab.collectives.call import Call, Group, current_call, current_group, current_phase
from zerolab.collectives.contract import Collectives
from zerolab.collectives.cost import RINGS, Link, wire_bytes
from zerolab.collectives.handle import Handle
from zerolab.collectives.transport import Request, Transport, WrappedTransport
from zerolab.errors import MismatchError

Tensor = torch.Tensor


class Meter(WrappedTransport):
    """Counts this rank's calls and bytes, by phase and collective; what the rank function sends itself is "send"."""

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
                rank, size = call.place_of(self.rank, self.size)
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
        """Bytes this rank sent in each group, by its name or its ranks ("ranks 0, 2"), and in the "world"."""
        found = _by_collective(self.group_bytes, phases)
        world = sum(self.bytes_by_collective(*phases).values()) - sum(found.values())
        return {"world": world, **found} if world else found


def _by_collective(counts: Counter[tuple[str, str]], phases: tuple[str, ...]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for (phase, name), count in counts.items():
        if not phases or phase in phases:
            total[name] += count
    return dict(sorted(total.items()))


@dataclass(frozen=True)
class Span:
    """`[start, stop)` in seconds on the clock of the world. `kind` is "collective", "compute", "transfer" (to or from a
    disk), or "wait" for a call; `group` is the name or the ranks of a collective's group, "" for the world."""

    rank: int
    kind: str
    name: str
    start: float
    stop: float
    group: str = field(default="", kw_only=True)

    @property
    def seconds(self) -> float:
        return self.stop - self.start


class Tracer(WrappedTransport):
    """Records a span for each collective, and with `record_waits` for each wait for one; a rank function adds its own
    with `span`. While `recording` is off, nothing is kept."""

    def __init__(self, inner: Transport) -> None:
        super().__init__(inner)
        self.spans: list[Span] = []
        self.recording = True
        self.record_waits = False
        self._entered: dict[Call, float] = {}

    def entered(self, call: Call) -> None:
        self._entered[call] = self.now()
        super().entered(call)

    def left(self, call: Call) -> None:
        super().left(call)
        group = call.group.title if call.group is not None else ""
        self.note("collective", call.name, self._entered.pop(call), self.now(), group)

    def note(self, kind: str, name: str, start: float, stop: float, group: str = "") -> None:
        if self.recording:
            self.spans.append(Span(self.rank, kind, name, start, stop, group=group))

    def watched(self, issue: Callable[[], Handle], name: str, now: bool) -> Handle:
        """Issue a call of this name. With `record_waits` waits for it are recorded; one that runs `now` is a wait."""
        if not self.record_waits:
            return issue()
        wait = partial(self.span, name, "wait")
        with wait() if now else nullcontext():
            handle = issue()
        handle.watch = wait
        return handle

    @contextmanager
    def span(self, name: str, kind: str = "compute") -> Iterator[None]:
        """Record what happens inside; a wait only if it took time."""
        start = self.now()
        try:
            yield
        finally:
            stop = self.now()
            if stop > start or kind != "wait":
                self.note(kind, name, start, stop)


def merge(spans: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Intervals, sorted, with those that touch made one."""
    merged: list[tuple[float, float]] = []
    for start, stop in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(stop, merged[-1][1]))
        else:
            merged.append((start, stop))
    return merged


def overlap_seconds(one: Iterable[tuple[float, float]], other: Iterable[tuple[float, float]]) -> float:
    """How long something of `one` and something of `other` ran at once: intervals intersected, not subtracted."""
    left, right = merge(one), merge(other)
    return sum(max(0.0, min(a[1], b[1]) - max(a[0], b[0])) for a in left for b in right)


class Linked(WrappedTransport):
    """Makes messages take a link's time, on a wire out and a wire in: a rank begins to send when its message before is
    on the other side. Collectives whose messages are hidden are charged the ring's time as a whole."""

    def __init__(self, inner: Transport, link: Link) -> None:
        super().__init__(inner)
        self.link = link
        self._lock = threading.Lock()
        # Until when each wire carries a message.
        self._until = {"out": 0.0, "in": 0.0}

    def isend(self, tensor: Tensor, dst: int, tag: int = 0) -> Request:
        gone = self._leave(tensor)
        return follow_by(super().isend(tensor, dst, tag), lambda: sleep_until(gone))

    def irecv(self, tensor: Tensor, src: int, tag: int = 0) -> Request:
        return follow_by(super().irecv(tensor, src, tag), lambda: sleep_until(self._take("in", tensor)))

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


def follow_by(request: Request, afterwards: Callable[[], None]) -> Request:
    @cache
    def wait() -> None:
        request.wait()
        afterwards()

    return SimpleNamespace(wait=wait)


class Checked(WrappedTransport):
    """Before each collective, tells all ranks what this one is about to call; raises where they differ."""

    def entered(self, call: Call) -> None:
        super().entered(call)
        ranks = range(self.size) if call.group is None else call.group.ranks
        seen = self.all_gather_text(str(call), call.group)
        if any(said != seen[0] for said in seen):
            listed = "; ".join(f"rank {rank} is in {said}" for rank, said in zip(ranks, seen, strict=True))
            raise MismatchError(f"the ranks called different collectives: {listed}; make them call alike")


def gather_records(comm: Collectives, record: Any) -> list[Any]:
    """Every rank's record (anything that JSON can hold), in rank order, on every rank."""
    texts = comm.all_gather_text(json.dumps(record))
    # In a virtual world a thousand ranks say the same.
    parsed = {text: json.loads(text) for text in {*texts}}
    return [parsed[text] for text in texts]
