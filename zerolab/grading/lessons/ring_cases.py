"""What the exercises of lesson 01 are tried on, and what they should give.

Data differ by rank and are drawn anew for each check; they are whole numbers, so that any order of addition gives the
same sum. Sizes divide and do not divide, on 1 to 4 ranks. Values, messages, bytes and inputs are judged.
"""

from __future__ import annotations

from itertools import cycle
from random import Random
from typing import Any

import torch

from zerolab.collectives import wire_bytes
from zerolab.flat.layout import chunk_bounds, chunk_sizes
from zerolab.grading.case import Case, Observation, plural
from zerolab.grading.claims import short
from zerolab.grading.draw import about, sizes, whole_numbers
from zerolab.grading.lessons.ring_claims import Expected

Tensor = torch.Tensor


def ring_case(args: list[tuple[Any, ...]], numel: int, world: str, what: str = "", board: bool = False) -> Case:
    return Case(args, world, about(len(args), numel, what), board=board)


BOARD = (4, 4096)
"""Ranks and float32 elements of the case on the scoreboard."""


FLOATS = (torch.float64, torch.float32, torch.float16)
"""In turn, so that each check tries them all: two ranks with a size that divides come first, and there float64 tells
a narrower dtype apart from a whole tensor; the next size does so for a wider one."""
DTYPES = (*FLOATS, torch.int32)


def summands(rng: Random, ranks: int, numel: int, dtype: torch.dtype) -> list[Tensor]:
    # At most 99, because float16 counts to 2048 without a gap.
    return [whole_numbers(rng, numel, dtype, most=99) for _ in range(ranks)]


def total(tensors: list[Tensor]) -> Tensor:
    return torch.stack(tensors).sum(0, dtype=tensors[0].dtype)


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
    if got == [(start, stop - 1) for start, stop in want]:
        return f"{case.about}: your chunks are {got}; stop is the first element that is no longer in the chunk"
    if got == [*want[1:], (numel, numel + numel // ranks)]:
        return f"{case.about}: your chunks are {got}; ranks count from 0, so rank 0's chunk starts at 0"
    if got and got[-1][1] < numel:
        return f"{case.about}: your chunks {got} leave {numel - got[-1][1]} at the end to nobody"
    lengths = [stop - start for start, stop in got]
    if sorted(lengths) == sorted(chunk_sizes(numel, ranks)):
        return f"{case.about}: your chunks are {got}; the longer ones belong to the first ranks"
    if got and got == [(rank * (numel // ranks), (rank + 1) * (numel // ranks)) for rank in range(ranks - 1)] + [
        ((ranks - 1) * (numel // ranks), numel)
    ]:
        return f"{case.about}: your chunks are {got}; the last rank has all the rest, and each rank may have one of it"
    return f"{case.about}: your chunks are {got}; they should be {want}"


# 2. to 4. The ring.


def reduce_scatter_cases(rng: Random) -> list[Case]:
    cases = [
        ring_case([(tensor,) for tensor in summands(rng, ranks, numel, dtype)], numel, world)
        for (ranks, numel, world), dtype in zip(sizes(rng), cycle(DTYPES), strict=False)
    ]
    ranks, numel = BOARD
    args: list[tuple[Any, ...]] = [(whole_numbers(rng, numel),) for _ in range(ranks)]
    return [*cases, ring_case(args, numel, "lockstep", board=True)]


def reduce_scatter_expected(case: Case) -> Expected:
    tensors = [args[0] for args in case.args]
    summed = total(tensors)
    bounds = chunk_bounds(summed.numel(), case.ranks)
    return Expected(
        "reduce_scatter",
        [summed[start:stop] for start, stop in bounds],
        {
            "all of the sum, unsharded: return your own chunk only": [summed] * case.ranks,
            "its own summand, to which nothing was added": [
                tensor[start:stop] for tensor, (start, stop) in zip(tensors, bounds, strict=True)
            ],
            "the next rank's chunk: shift your chunk index by one": rolled(summed, bounds, 1),
            "the previous rank's chunk: shift your chunk index by one": rolled(summed, bounds, -1),
            "the mean: this exercise asks for the sum": [summed[a:b] / case.ranks for a, b in bounds],
        },
        summed.numel(),
        summed.element_size(),
        "print which chunk it adds in each step",
    )


def all_gather_cases(rng: Random) -> list[Case]:
    cases = []
    for (ranks, numel, world), dtype in zip(sizes(rng), cycle(DTYPES), strict=False):
        whole = whole_numbers(rng, numel, dtype)
        cases.append(gather_case(whole, ranks, world))
    ranks, numel = BOARD
    return [*cases, gather_case(whole_numbers(rng, numel), ranks, "lockstep", board=True)]


def gather_case(whole: Tensor, ranks: int, world: str, board: bool = False) -> Case:
    numel = whole.numel()
    shards = [(whole[start:stop].clone(), numel) for start, stop in chunk_bounds(numel, ranks)]
    return ring_case(list(shards), numel, world, board=board)


def all_gather_expected(case: Case) -> Expected:
    shards = [args[0] for args in case.args]
    whole = torch.cat(shards)
    turned = [torch.cat([*shards[rank:], *shards[:rank]]) for rank in range(case.ranks)]
    return Expected(
        "all_gather",
        [whole] * case.ranks,
        {
            "its own shard only": shards,
            "zeros: put your own shard into the whole tensor before the first step": [torch.zeros_like(whole)]
            * case.ranks,
            "all but the right neighbour's shard, which comes last: N ranks need N-1 steps": [
                torch.cat([0 * part if index == (rank + 1) % case.ranks else part for index, part in enumerate(shards)])
                for rank in range(case.ranks)
            ],
            "the shards in the order in which they came: put shard r at the bounds of chunk r": turned,
        },
        whole.numel(),
        whole.element_size(),
        "print which chunk leaves and which one arrives in each step",
    )


def all_reduce_cases(rng: Random) -> list[Case]:
    cases = []
    for (ranks, numel, world), dtype in zip(sizes(rng), cycle(FLOATS), strict=False):
        for average in (False, True):
            # Multiples of 1.5: a mean over 2, 3 or 4 is exact, whether it divides first, last or multiplies by 1/N, and
            # is no whole number, so that // shows.
            tensors = [1.5 * tensor for tensor in summands(rng, ranks, numel, dtype)]
            what = f"{plural(numel, 'element')}, average={average}"
            cases.append(ring_case([(tensor, average) for tensor in tensors], numel, world, what))
    ranks, numel = BOARD
    args: list[tuple[Any, ...]] = [(whole_numbers(rng, numel), True) for _ in range(ranks)]
    return [*cases, ring_case(args, numel, "lockstep", f"{plural(numel, 'element')}, average=True", board=True)]


def all_reduce_expected(case: Case) -> Expected:
    tensors, average = [args[0] for args in case.args], case.args[0][1]
    summed = total(tensors)
    mean = summed / case.ranks
    bounds = chunk_bounds(summed.numel(), case.ranks)
    return Expected(
        "all_reduce",
        [mean if average else summed] * case.ranks,
        {
            "the sum where average=True asks for the mean: divide by comm.size": [summed] * case.ranks,
            "the mean where average=False asks for the sum": [mean] * case.ranks,
            "one chunk only: gather the chunks after you have reduced them": [summed[a:b] for a, b in bounds],
            "its own tensor, to which nothing was added": tensors,
        },
        summed.numel(),
        summed.element_size(),
        "the sums are right, so look at how the mean is made of them" if average else "check each half by itself",
    )


def rolled(summed: Tensor, bounds: list[tuple[int, int]], by: int) -> list[Tensor]:
    turned = [bounds[(rank + by) % len(bounds)] for rank in range(len(bounds))]
    return [summed[start:stop] for start, stop in turned]


# 5. What it costs.


def bytes_cases(rng: Random) -> list[Case]:
    # Elements of 4 bytes come first: of others, one mistake's bytes may be those of another. Then 4 is wrong.
    shapes = [
        (ranks, rng.randint(20, 2000), itemsize) for ranks in (1, 2, 3, 4) for itemsize in (4, rng.choice([2, 8]))
    ]
    shapes += [(4, 10, 4), (3, 12, 2)]
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
    if all(isinstance(n, int | float) and abs(n - w) <= 2 * itemsize for n, w in zip(got, want, strict=True)):
        return f"{what}. Chunks differ by one element: which one does this rank never send, in each half?"
    if got == [wire_bytes("reduce_scatter", numel, itemsize, ranks, rank) for rank in range(ranks)]:
        return f"{what}. That is the reduce-scatter alone; the all-gather comes on top"
    return what


# 6. A broken function, to be mended.


def broadcast_cases(rng: Random) -> list[Case]:
    cases = []
    for ranks, numel, world in sizes(rng):
        for src in {0, ranks - 1, rng.randrange(ranks)}:
            what = f"{plural(numel, 'element')} from rank {src}"
            cases.append(ring_case([(whole_numbers(rng, numel), src) for _ in range(ranks)], 0, world, what))
    return cases


def broadcast_expected(case: Case) -> Expected:
    tensors, src = [args[0] for args in case.args], case.args[0][1]
    return Expected(
        "broadcast",
        [tensors[src]] * case.ranks,
        {
            "rank 0's tensor, whatever src is: `if comm.rank:` means `if comm.rank != 0`": [tensors[0]] * case.ranks,
            "its own tensor, as if nothing had come": tensors,
        },
        tensors[0].numel(),
        tensors[0].element_size(),
        "print who receives from whom",
    )
