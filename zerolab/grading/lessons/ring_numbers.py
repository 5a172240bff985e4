"""Exercises of lesson 01 that send nothing: where a chunk lies, and what a ring costs."""

from __future__ import annotations

from random import Random

from zerolab.collectives import wire_bytes
from zerolab.flat.layout import chunk_bounds, chunk_sizes
from zerolab.grading.case import Case, Observation, plural
from zerolab.grading.claims import short

# 1. Where a rank's chunk lies.


def bounds_cases(rng: Random) -> list[Case]:
    # 11 over 4: a rest of three tells mistakes apart.
    numels = [(1, rng.randint(1, 40)), (4, 11)]
    numels += [(ranks, rng.randint(0, 40)) for ranks in (1, 2, 3, 4) for _ in range(2)]
    numels += [(4, 2), (3, 9), (4, 10), (3, 0)]
    return [
        Case(
            [(numel, ranks, rank) for rank in range(ranks)],
            about=f"{plural(numel, 'element')} over {plural(ranks, 'rank')}",
        )
        for ranks, numel in numels
    ]


def bounds_are_pairs(case: Case, seen: Observation) -> str | None:
    for rank, record in enumerate(seen.records):
        value = record.value
        if not (isinstance(value, list) and len(value) == 2 and all(isinstance(edge, int) for edge in value)):
            return f"chunk_bounds{case.args[rank]} returned {short(value)}: return two whole numbers, (start, stop)"
    return None


def bounds_are_right(case: Case, seen: Observation) -> str | None:
    numel, ranks, _ = case.args[0]
    got = [tuple(record.value) for record in seen.records]
    want = chunk_bounds(numel, ranks)
    if got == want:
        return None
    return f"{case.about}: your chunks are {got}; {why_bounds(got, numel, ranks)}"


def why_bounds(got: list[tuple[int, int]], numel: int, ranks: int) -> str:
    """What gave these bounds, if it is a known mistake."""
    want, short_one = chunk_bounds(numel, ranks), numel // ranks
    if got == [(start, stop - 1) for start, stop in want]:
        return "stop is the first element that is no longer in the chunk"
    if got == [(start, stop - start) for start, stop in want]:
        return "the second number is a length; where does the chunk stop?"
    if got == [*want[1:], (numel, numel + short_one)]:
        return "ranks count from 0, so rank 0's chunk starts at 0"
    for rank in range(1, ranks):
        if got[rank][0] < got[rank - 1][1]:
            return f"rank {rank}'s starts before rank {rank - 1}'s stops: how many longer ones lie before it?"
    if got[-1][1] < numel:
        return f"they leave {numel - got[-1][1]} at the end to nobody"
    if got[-1][1] > numel:
        return f"the last one stops at {got[-1][1]}, and there are {numel} elements: which ranks have one more?"
    if got == [(rank * short_one, (rank + 1) * short_one) for rank in range(ranks - 1)] + [
        ((ranks - 1) * short_one, numel)
    ]:
        return "the last rank has all the rest, and each rank may have one of it"
    lengths = [stop - start for start, stop in got]
    if sorted(lengths) == sorted(chunk_sizes(numel, ranks)):
        return "the longer ones belong to the first ranks"
    if max(lengths) == -(-numel // ranks):
        return "no two lengths may differ by more than one: not every chunk is as long as the longest"
    if max(lengths) - min(lengths) > 1:
        return "no two lengths may differ by more than one: each of the first ranks has one of what is left over"
    return f"they should be {want}"


# 5. What it costs.


def bytes_cases(rng: Random) -> list[Case]:
    # Elements of 4 bytes come first: of others, one mistake's bytes may be those of another. Then 4 is wrong.
    shapes = [
        (ranks, rng.randint(20, 2000), itemsize) for ranks in (1, 2, 3, 4) for itemsize in (4, rng.choice([2, 8]))
    ]
    shapes += [(4, 10, 4), (3, 12, 2), (4, 3, 8), (3, 1, 4), (3, 0, 4)]
    return [
        Case(
            [(numel, itemsize, ranks, rank) for rank in range(ranks)],
            about=f"{plural(numel, 'element')} of {itemsize} bytes over {plural(ranks, 'rank')}",
        )
        for ranks, numel, itemsize in shapes
    ]


def bytes_are_right(case: Case, seen: Observation) -> str | None:
    numel, itemsize, ranks, _ = case.args[0]
    want = [wire_bytes("all_reduce", numel, itemsize, ranks, rank) for rank in range(ranks)]
    got = [record.value for record in seen.records]
    if got == want:
        whole = all(isinstance(nbytes, int) for nbytes in got)
        return (
            None
            if whole
            else f"{case.about}: you say {short(got)}: the numbers are right, but bytes are whole; divide with //"
        )
    what = f"{case.about}: you say {short(got)}, the meter counts {want}"
    if ranks == 1:
        return f"{what}. One rank has nobody to send to: a ring takes N-1 steps"
    if got == [(ranks - 1) * numel * itemsize] * ranks:
        return f"{what}. (N-1) whole tensors is what sending everything to everybody costs; a ring passes chunks"
    if itemsize != 4 and got == [want_ * 4 // itemsize for want_ in want]:
        return f"{what}. You took 4 bytes for an element; `itemsize` says how many it has"
    if got == [want_ // itemsize for want_ in want]:
        return f"{what}. You counted elements; multiply by the bytes of one"
    if got == [sum(want)] * ranks:
        return f"{what}. That is what all ranks together send; one of them is asked for"
    if got == [wire_bytes("reduce_scatter", numel, itemsize, ranks, rank) for rank in range(ranks)]:
        return f"{what}. That is the reduce-scatter alone; the all-gather comes on top"
    close = all(
        isinstance(n, int | float) and abs(n - w) <= 2 * ranks * itemsize for n, w in zip(got, want, strict=True)
    )
    if close and len(set(got)) == 1:
        cut = f", and {got[0]} are not whole elements of {itemsize}" if got[0] % itemsize else ""
        same = f"{what}. You say the same for each rank, as where N divides{cut}: a division rounds"
        return f"{same}. Which one chunk does this rank never send, in each half, and how long is it?"
    if close:
        return f"{what}. Chunks differ by one element: which one does this rank never send, in each half?"
    if got == [8 * nbytes for nbytes in want]:
        return f"{what}. Those are bits: itemsize is in bytes, and so is what is asked for"
    if all(isinstance(n, int | float) and n > w for n, w in zip(got, want, strict=True)):
        return f"{what}. That is more than it sends: each of the two halves leaves out one chunk"
    return what
