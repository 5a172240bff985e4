"""The layout of a flat buffer in plain integers: no tensor, no process.

A bucket is one flat buffer. It holds whole parameters end to end, and it is cut into N equal shards:

    parameters       w (6 elements)      b (3)         align = 4, ranks = 2
    offsets          0 1 2 3 4 5 . .     8 9 10 . . . . .
                     |--- w ---|pad      |-b-| |--pad---|
    shards           |---- rank 0 ----|  |--- rank 1 ---|       16 elements, 8 a rank

Invariants, which the tests hold for every input:
  * each slot starts at a multiple of `align`, in the order in which the parameters were given;
  * the length is a multiple of `ranks * align`, so all shards are equally long and equally aligned;
  * every element lies in exactly one shard, and every real element in exactly one slot.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

from zerolab.errors import InputError

ALIGN = 16
"""Elements: 64 bytes in fp32, one AVX-512 register. A kernel may round the last elements of a tensor, those that fill
no register, differently from the rest. Where slots and shards end with a register, a shard is updated to the bits of
the whole."""


def round_up(count: int, multiple: int) -> int:
    """The smallest multiple of `multiple` that is not below `count`."""
    return -(-count // multiple) * multiple


def chunk_bounds(numel: int, ranks: int) -> list[tuple[int, int]]:
    """The ranges `[start, stop)` of all ranks' chunks, by the rule of `torch.tensor_split`: sizes differ by at most
    one, larger ones first."""
    check_count("numel", numel, least=0)
    check_count("ranks", ranks)
    return [chunk_bound(numel, ranks, rank) for rank in range(ranks)]


def chunk_bound(numel: int, ranks: int, rank: int) -> tuple[int, int]:
    """One of the `chunk_bounds`: that of `rank`."""
    short, longer = divmod(numel, ranks)
    start = short * rank + min(rank, longer)
    return start, start + short + (rank < longer)


def chunk_sizes(numel: int, ranks: int) -> list[int]:
    """How many of `numel` elements each rank's chunk has."""
    return [stop - start for start, stop in chunk_bounds(numel, ranks)]


@dataclass(frozen=True)
class Slot:
    """The place of one parameter in a bucket."""

    name: str
    shape: tuple[int, ...]
    start: int

    @cached_property
    def numel(self) -> int:
        return prod(self.shape)

    @cached_property
    def stop(self) -> int:
        return self.start + self.numel


@dataclass(frozen=True)
class Piece:
    """The part `[start, stop)` of a bucket that holds elements of one parameter; never padding, never empty."""

    slot: Slot
    start: int
    stop: int

    @property
    def numel(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True)
class Segment:
    """A run `[start, stop)` of neighbouring pieces of one optimizer group, with the padding behind each: one kernel
    call serves the run."""

    group: Hashable
    start: int
    stop: int

    @property
    def numel(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True)
class Layout:
    """The geometry of one bucket, for all ranks."""

    slots: tuple[Slot, ...]
    numel: int
    ranks: int
    align: int

    @property
    def used(self) -> int:
        """Elements of parameters, padding left out."""
        return sum(slot.numel for slot in self.slots)

    @cached_property
    def shard_numel(self) -> int:
        return self.numel // self.ranks

    def shard(self, rank: int) -> tuple[int, int]:
        """The range `[start, stop)` that `rank` owns."""
        if not 0 <= rank < self.ranks:
            raise InputError(f"this layout has no rank {rank}; it is cut for ranks 0 to {self.ranks - 1}")
        return rank * self.shard_numel, (rank + 1) * self.shard_numel

    def pieces(self, rank: int | None) -> list[Piece]:
        """What `rank` owns of which parameter, in order; None: all of them, whole."""
        first, last = (0, self.numel) if rank is None else self.shard(rank)
        cut = ((slot, max(slot.start, first), min(slot.stop, last)) for slot in self.slots)
        return [Piece(slot, start, stop) for slot, start, stop in cut if start < stop]

    def gaps(self) -> list[tuple[int, int]]:
        """The padding: ranges that belong to no slot."""
        edges = [0, *(edge for slot in self.slots for edge in (slot.start, slot.stop)), self.numel]
        return [(start, stop) for start, stop in zip(edges[::2], edges[1::2], strict=True) if start < stop]


@dataclass(frozen=True)
class BucketPlan:
    """A bucket and what ledgers need of it. Stage 3 keeps a `persistent` one whole on every rank."""

    unit: str
    layout: Layout
    itemsize: int
    trainable: bool
    groups: tuple[Hashable, ...]
    persistent: bool = False

    def segments(self, rank: int | None = None) -> list[Segment]:
        """What one optimizer updates, of `rank`'s shard or of the whole bucket."""
        group_of = dict(zip((slot.name for slot in self.layout.slots), self.groups, strict=True))
        merged: list[Segment] = []
        for piece in self.layout.pieces(rank) if self.trainable else []:
            group, start = group_of[piece.slot.name], piece.start
            if merged and merged[-1].group == group:
                start = merged.pop().start
            merged.append(Segment(group, start, round_up(piece.stop, self.layout.align)))
        return merged


def lay_out(shapes: Mapping[str, Sequence[int]], ranks: int, align: int = ALIGN) -> Layout:
    """Lay parameters end to end, in the mapping's order, and pad the whole for `ranks` equal shards."""
    check_count("ranks", ranks)
    check_count("align", align)
    slots, end = [], 0
    for name, shape in shapes.items():
        for size in shape:
            check_count(f"a size in the shape {tuple(shape)} of {name!r}", size, least=0)
        slots.append(Slot(name, tuple(shape), round_up(end, align)))
        end = slots[-1].stop
    return Layout(tuple(slots), round_up(end, ranks * align), ranks, align)


def split_by_size(numels: Iterable[tuple[str, int]], limit: int | None) -> list[list[str]]:
    """Names in order, cut into runs of at most `limit` elements; a larger parameter has a run of its own."""
    if limit is not None:
        check_count("limit", limit)
    runs: list[list[str]] = []
    filled = 0
    for name, numel in numels:
        if not runs or (limit is not None and filled + numel > limit):
            runs.append([])
            filled = 0
        runs[-1].append(name)
        filled += numel
    return runs


def check_count(what: str, value: int, least: int = 1) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InputError(f"{what} is {value!r}; give a whole number of at least {least}")
