"""What a collective costs: bytes on the wire, and seconds on a link of given bandwidth and latency.

Ring costs after Thakur et al. (2005): with latency a, N ranks and n bytes, a reduce-scatter and an all-gather take
(N-1)(a + n/N/bandwidth) each, an all-reduce and a broadcast their sum.
"""

from __future__ import annotations

from dataclasses import dataclass

from zerolab.errors import InputError
from zerolab.flat.layout import chunk_bound

RINGS = {"all_reduce": 2, "reduce_scatter": 1, "all_gather": 1, "broadcast": 2, "barrier": 2}
"""How many rounds of N-1 steps each collective takes. A barrier is an all-reduce of a byte for each rank."""


def wire_bytes(name: str, numel: int, itemsize: int, size: int, rank: int, src: int = 0) -> int:
    """Bytes that `rank` puts on the wire in a ring collective, one of `RINGS`, over the whole of `numel` elements: what
    `RingCollectives` sends, to the byte. `src` is the rank that a broadcast comes from, which sends nearly two tensors
    while the others send less than one. A barrier sends 2(N-1) bytes, whatever `numel` is."""
    if name not in RINGS:
        raise InputError(f"no wire cost is known for {name!r}; name one of {', '.join(RINGS)}")
    if name == "barrier":
        numel, itemsize = size, 1
    # A reduce-scatter passes on every chunk but our own; an all-gather every chunk but our right neighbour's.
    (first, last), (start, stop) = chunk_bound(numel, size, rank), chunk_bound(numel, size, (rank + 1) % size)
    scattered, gathered = numel - (last - first), numel - (stop - start)
    if name == "all_gather" or (name == "broadcast" and rank != src):
        scattered = 0
    return itemsize * (scattered if name == "reduce_scatter" else scattered + gathered)


@dataclass(frozen=True)
class Link:
    """A wire between ranks. `gbit_per_s`: gigabits (10^9 bits) a second; `latency_us`: microseconds a message."""

    gbit_per_s: float
    latency_us: float = 0.0

    def __post_init__(self) -> None:
        if not (isinstance(self.gbit_per_s, int | float) and self.gbit_per_s > 0):
            raise InputError(f"gbit_per_s is {self.gbit_per_s!r}; give a bandwidth above 0, in gigabits a second")
        if not (isinstance(self.latency_us, int | float) and self.latency_us >= 0):
            raise InputError(f"latency_us is {self.latency_us!r}; give 0 or more microseconds")

    def seconds(self, nbytes: int) -> float:
        """How long a message of `nbytes` bytes takes."""
        return self.latency_us * 1e-6 + nbytes * 8 / (self.gbit_per_s * 1e9)

    def ring_seconds(self, name: str, numel: int, itemsize: int, size: int) -> float:
        """How long a ring collective takes if all its steps last as long as that of the longest chunk."""
        longest = 1 if name == "barrier" else chunk_bound(numel, size, 0)[1] * itemsize
        return RINGS.get(name, 0) * (size - 1) * self.seconds(longest)
