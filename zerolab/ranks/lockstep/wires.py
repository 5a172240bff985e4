"""When messages pass on the virtual clock: each rank has one wire out and one wire in.

A message takes the sender's wire out and the receiver's wire in, both at once, for as long as the link says: the
one-port model of a full-duplex link, in which ring costs are commonly given (`collectives/cost.py`).
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from operator import itemgetter

# Two sums of the same times may differ by rounding: no message waits for a picosecond.
ROUNDING = 1e-12


class Wire:
    """What one wire carries when, in seconds."""

    def __init__(self) -> None:
        # The spans in which it is busy: in order, apart from each other.
        self.busy: list[tuple[float, float]] = []

    def free(self, ready: float, seconds: float) -> float:
        """The first moment, not before `ready`, from which it is free for so many seconds. Ranks take turns, so what
        comes later in the order of events may come earlier on the clock, into a gap."""
        for start, stop in self.busy[bisect_right(self.busy, ready + ROUNDING, key=itemgetter(1)) :]:
            if ready + seconds <= start + ROUNDING:
                break
            ready = max(ready, stop)
        return ready

    def take(self, start: float, stop: float) -> None:
        """Carry a message; spans that touch are joined."""
        at = bisect_right(self.busy, (start, math.inf))
        before = at > 0 and start - self.busy[at - 1][1] <= ROUNDING
        after = at < len(self.busy) and self.busy[at][0] - stop <= ROUNDING
        joined = slice(at - before, at + after)
        spans = [(start, stop), *self.busy[joined]]
        self.busy[joined] = [(min(spans)[0], max(spans)[1])]


class Wires:
    """All wires of a world, made when a message first takes them: a virtual world of thousands of ranks has none."""

    def __init__(self) -> None:
        self._out: defaultdict[int, Wire] = defaultdict(Wire)
        self._in: defaultdict[int, Wire] = defaultdict(Wire)

    def carry(self, src: int, dst: int, ready: float, seconds: float) -> tuple[float, float]:
        """When a message that both sides are ready for at `ready` sets out, and when it has passed."""
        if seconds == 0:
            return ready, ready
        out, into = self._out[src], self._in[dst]
        start, before = ready, -math.inf
        while start != before:
            before = start
            start = into.free(out.free(start, seconds), seconds)
        out.take(start, start + seconds)
        into.take(start, start + seconds)
        return start, start + seconds
