"""What collectives cost on links of two levels: inside a node, and between nodes by shared network cards.

    network = Network(Link(3600, 3), Link(400, 12), node_size=8, cards=8)
    network.ring_seconds("all_gather", numel, itemsize=2, size=64)

Ring          one ring through all ranks, node after node, a share of each message on every card. A chunk passes N-1
              links, of which one a node leads out of it, at the pace of the slower kind; each adds its latency.
Hierarchical  rings between nodes, each with its share of the cards, and a ring inside each node. Fewer messages leave
              a node one after the other, and nothing else travels less.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from zerolab.collectives.cost import RINGS, Link
from zerolab.errors import InputError
from zerolab.flat.layout import check_count, chunk_sizes

ALGORITHMS = ("ring", "hierarchical", "best")


@dataclass(frozen=True)
class Network:
    """Links of two levels.

    inside      a rank's link to another of its node, in one direction
    between     one network card's link to another node, in one direction; None: there is one node only
    node_size   ranks of a node; ranks are numbered node by node
    cards       network cards of a node, which its ranks share
    algorithm   "ring", "hierarchical", or "best": whichever is quicker
    """

    inside: Link
    between: Link | None = None
    node_size: int | None = None
    cards: int = 1
    algorithm: str = "ring"

    def __post_init__(self) -> None:
        check_count("cards", self.cards)
        if self.node_size is not None:
            check_count("node_size", self.node_size)
        if (self.between is None) != (self.node_size is None):
            raise InputError(f"between is {self.between!r} and node_size is {self.node_size!r}; give both, or neither")
        if self.algorithm not in ALGORITHMS:
            raise InputError(f"algorithm is {self.algorithm!r}; choose one of {', '.join(ALGORITHMS)}")

    def nodes(self, size: int) -> int:
        """How many nodes `size` ranks take."""
        return 1 if self.node_size is None else ceil(size / self.node_size)

    def ring_seconds(self, name: str, numel: int, itemsize: int, size: int) -> float:
        """Seconds of a collective over `numel` elements in all; what is none of `RINGS` takes none."""
        if self.nodes(size) == 1:
            return self.inside.ring_seconds(name, numel, itemsize, size)
        # A barrier is an all-reduce of a byte for each rank.
        chunk = 1 if name == "barrier" else chunk_sizes(numel, size)[0] * itemsize
        ways = {"ring": self._ring, "hierarchical": self._hierarchical}
        chosen = [ways[self.algorithm]] if self.algorithm in ways else list(ways.values())
        return RINGS.get(name, 0) * min(way(chunk, size) for way in chosen)

    def _ring(self, chunk: int, size: int) -> float:
        assert self.between is not None
        out = self.nodes(size) - 1
        latency = (size - 1 - out) * self.inside.latency_us + out * self.between.latency_us
        pace = min(self.inside.gbit_per_s, self.between.gbit_per_s * self.cards)
        return latency * 1e-6 + (size - 1) * chunk * 8 / (pace * 1e9)

    def _hierarchical(self, chunk: int, size: int) -> float:
        assert self.between is not None and self.node_size is not None
        nodes, ranks = self.nodes(size), min(self.node_size, size)
        share = self.between.gbit_per_s * self.cards / ranks
        out = self.between.latency_us * 1e-6 + chunk * 8 / (share * 1e9)
        around = self.inside.seconds(chunk * nodes)
        return (nodes - 1) * out + (ranks - 1) * around
