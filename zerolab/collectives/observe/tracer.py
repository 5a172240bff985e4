"""When what ran: spans of collectives and of phases, on the world's clock, and how much of them overlaps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial

from zerolab.collectives.call import Call
from zerolab.collectives.handle import Handle
from zerolab.collectives.transport import Transport, WrappedTransport


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
        """Record a span that is over."""
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
