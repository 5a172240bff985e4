"""When what ran: spans of collectives and of phases, on the world's clock, and how much of them overlaps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from zerolab.collectives.call import Call
from zerolab.collectives.transport import Transport, WrappedTransport


@dataclass(frozen=True)
class Span:
    """`[start, stop)` in seconds on the clock of the world. `kind` is "collective" or "compute"; `group` is the name of
    a collective's group (its ranks, where it has none), "" for the world."""

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
    """Records a span for each collective; the rank function adds its own with `span`."""

    def __init__(self, inner: Transport) -> None:
        super().__init__(inner)
        self.spans: list[Span] = []
        self._entered: dict[Call, float] = {}

    def entered(self, call: Call) -> None:
        self._entered[call] = self.now()
        super().entered(call)

    def left(self, call: Call) -> None:
        super().left(call)
        group = call.group.title if call.group is not None else ""
        start = self._entered.pop(call)
        self.spans.append(Span(self.rank, "collective", call.name, start, self.now(), group=group))

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        """Record what happens inside as a span of computing."""
        start = self.now()
        try:
            yield
        finally:
            self.spans.append(Span(self.rank, "compute", name, start, self.now()))


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
