"""What the collectives of lesson 01 are tried on, and what they should give.

Data differ by rank and are drawn anew for each check; they are whole numbers, so that any order of addition gives the
same sum, and as large as their dtype allows, so that a narrower one shows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import cycle
from random import Random
from typing import Any

import torch

from zerolab.collectives import wire_bytes
from zerolab.course.exercises.ring_collectives.claims import Expected
from zerolab.course.judge.case import Case, plural
from zerolab.course.judge.draw import about, sizes, torch_generator, whole_numbers
from zerolab.flat.layout import chunk_bounds

Tensor = torch.Tensor

BOARD = (4, 4096)
"""Ranks and float32 elements of the case on the scoreboard."""

FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
DTYPES = (torch.float64, torch.float32, torch.int64, torch.bfloat16, torch.float16, torch.int32)
"""In turn, so that each check tries them all: two ranks with a size that divides come first, and there float64 tells
a narrower dtype apart from a whole tensor; the next size does so for a wider one."""

MOST = {
    torch.float64: 2**40,
    torch.float32: 2**20,
    torch.float16: 99,
    torch.bfloat16: 20,
    torch.int64: 2**60,
    torch.int32: 2**27,
}
"""The largest number of each dtype that is drawn: the sum of four, halved and quartered, and half as much again, is
still exact. float32 cannot hold those of float64 and int64."""


def numbers(rng: Random, numel: int, dtype: torch.dtype) -> Tensor:
    """Whole numbers of either sign, and zeros; those of bfloat16 are larger than any of float16."""
    most = MOST[dtype]
    drawn = torch.randint(-most, most + 1, (numel,), generator=torch_generator(rng)).to(dtype)
    return drawn * 2**20 if dtype == torch.bfloat16 else drawn


def poison(rng: Random, tensors: Sequence[Tensor]) -> None:
    """Put a NaN and an inf into them, each in any place of any tensor."""
    for value in (torch.nan, torch.inf):
        tensor = rng.choice([tensor for tensor in tensors if tensor.numel()])
        tensor[rng.randrange(tensor.numel())] = value


def poison_each(tensors: Sequence[Tensor]) -> None:
    """Put a NaN and an inf of each rank into each chunk, where no other rank has one: whoever begins a sum, passes it
    on or ends it, none may be lost."""
    ranks = len(tensors)
    for start, stop in chunk_bounds(tensors[0].numel(), ranks):
        assert stop - start >= 2 * ranks
        for rank, tensor in enumerate(tensors):
            tensor[start + rank], tensor[start + ranks + rank] = torch.nan, torch.inf


def draws(rng: Random, dtypes: Sequence[torch.dtype]) -> Iterator[tuple[int, int, str, torch.dtype, bool]]:
    """(ranks, elements, world, dtype, whether to poison): the usual sizes, then one element, none, and poison."""
    for (ranks, numel, world), dtype in zip(sizes(rng), cycle(dtypes), strict=False):
        yield ranks, numel, world, dtype, False
    yield rng.randint(2, 4), 1, "lockstep", rng.choice(dtypes), False
    yield rng.randint(2, 4), 0, "lockstep", rng.choice(dtypes), False
    ranks = rng.randint(2, 4)
    yield ranks, ranks * rng.randint(2 * ranks, 9) + 1, "lockstep", rng.choice(FLOATS), True


def ring_case(
    tensors: list[Tensor], others: Sequence[Tensor | None], rest: Any, numel: int, world: str, what: str = ""
) -> Case:
    """Each rank's tensor, that of its second call, and what both calls take beside it. Two ranks, which come first,
    call once: what goes wrong at the end of a call should not show in the next one."""
    once = len(tensors) == 2
    args = [(tensor, None if once else other, *rest) for tensor, other in zip(tensors, others, strict=True)]
    return Case(args, world, about(len(args), numel, what))


def board_case(tensors: list[Tensor], *rest: Any) -> Case:
    """The case on the scoreboard, which is called once."""
    ranks, numel = BOARD
    said = plural(numel, "element") + (", average=True" if True in rest else "")
    return Case([(tensor, None, *rest) for tensor in tensors], about=about(ranks, numel, said), board=True)


def total(tensors: list[Tensor]) -> Tensor:
    return torch.stack(tensors).sum(0, dtype=tensors[0].dtype)


def wires(collective: str, whole: Tensor, ranks: int) -> list[int]:
    """Bytes that each rank sends in a ring."""
    return [wire_bytes(collective, whole.numel(), whole.element_size(), ranks, rank) for rank in range(ranks)]


def named(world: str, dtype: torch.dtype, numel: int, poisoned: bool = False) -> str:
    """Such as "10 elements of int64", with what is special about the case."""
    name = f"{plural(numel, 'element')} of {str(dtype).removeprefix('torch.')}"
    name += ", some of them NaN and some inf" if poisoned else ""
    return name if world == "lockstep" else f"{name}, real processes"


# Reduce-scatter.


def reduce_scatter_cases(rng: Random) -> list[Case]:
    cases = []
    for ranks, numel, world, dtype, poisoned in draws(rng, DTYPES):
        tensors, others = ([numbers(rng, numel, dtype) for _ in range(ranks)] for _ in range(2))
        if poisoned:
            poison_each(tensors)
        cases.append(ring_case(tensors, others, (), numel, world, named(world, dtype, numel, poisoned)))
    return [*cases, board_case([whole_numbers(rng, BOARD[1]) for _ in range(BOARD[0])])]


def reduce_scatter_expected(case: Case, call: int) -> Expected:
    tensors = [args[call] for args in case.args]
    summed = total(tensors)
    bounds = chunk_bounds(summed.numel(), case.ranks)
    return Expected(
        [summed[start:stop] for start, stop in bounds],
        {
            "all of the sum, unsharded: return your own chunk only": [summed] * case.ranks,
            "its own summand, to which nothing was added": [
                tensor[start:stop] for tensor, (start, stop) in zip(tensors, bounds, strict=True)
            ],
            "the right neighbour's summand, passed on and never added to": [
                tensors[(rank + 1) % case.ranks][start:stop] for rank, (start, stop) in enumerate(bounds)
            ],
            "the next rank's chunk: shift your chunk index by one": rolled(summed, bounds, 1),
            "the previous rank's chunk: shift your chunk index by one": rolled(summed, bounds, -1),
            "the sum with its own summand in it twice: is it added once more at the end?": [
                summed[start:stop] + tensor[start:stop] for tensor, (start, stop) in zip(tensors, bounds, strict=True)
            ],
            "the mean: this exercise asks for the sum": [meaned(summed, case.ranks)[a:b] for a, b in bounds],
        },
        "print which chunk it adds in each step",
        whole=summed.nbytes,
        wire=wires("reduce_scatter", summed, case.ranks),
    )


def meaned(summed: Tensor, ranks: int) -> Tensor:
    return (summed / ranks).to(summed.dtype)


def rolled(summed: Tensor, bounds: list[tuple[int, int]], by: int) -> list[Tensor]:
    turned = [bounds[(rank + by) % len(bounds)] for rank in range(len(bounds))]
    return [summed[start:stop] for start, stop in turned]


# All-gather.


def all_gather_cases(rng: Random) -> list[Case]:
    cases = []
    for ranks, numel, world, dtype, poisoned in draws(rng, DTYPES):
        whole, other = numbers(rng, numel, dtype), numbers(rng, numel, dtype)
        if poisoned:
            poison(rng, [whole])
        shards, others = cut(whole, ranks), cut(other, ranks)
        cases.append(ring_case(shards, others, (numel,), numel, world, named(world, dtype, numel, poisoned)))
    ranks, numel = BOARD
    return [*cases, board_case(cut(whole_numbers(rng, numel), ranks), numel)]


def cut(whole: Tensor, ranks: int) -> list[Tensor]:
    return [whole[start:stop].clone() for start, stop in chunk_bounds(whole.numel(), ranks)]


OWN_IS_MISSING = "its own shard is missing: put it where it belongs in the whole tensor"
LAST_IS_MISSING = (
    "the right neighbour's shard, which comes last, is missing: N ranks need N-1 steps, and each one receives into the "
    "whole tensor itself"
)


def all_gather_expected(case: Case, call: int) -> Expected:
    shards = [args[call] for args in case.args]
    whole = torch.cat(shards)
    turned = [torch.cat([*shards[rank:], *shards[:rank]]) for rank in range(case.ranks)]
    return Expected(
        [whole] * case.ranks,
        {
            "its own shard only": shards,
            "zeros: put your own shard into the whole tensor before the first step": [torch.zeros_like(whole)]
            * case.ranks,
            "the shards in the order in which they came: put shard r at the bounds of chunk r": turned,
        },
        "print which chunk leaves and which one arrives in each step",
        whole=whole.nbytes,
        wire=wires("all_gather", whole, case.ranks),
        chunks=(OWN_IS_MISSING, LAST_IS_MISSING),
    )


# All-reduce.


def all_reduce_cases(rng: Random) -> list[Case]:
    cases = []
    for ranks, numel, world, dtype, poisoned in draws(rng, DTYPES):
        for average in (False, True):
            if average and not dtype.is_floating_point:
                continue
            tensors, others = ([numbers(rng, numel, dtype) for _ in range(ranks)] for _ in range(2))
            if dtype.is_floating_point:
                # Multiples of 1.5: a mean over 2, 3 or 4 is exact, whether it divides first, last or multiplies by
                # 1/N, and is no whole number, so that // shows.
                tensors, others = ([1.5 * tensor for tensor in drawn] for drawn in (tensors, others))
            if poisoned:
                poison_each(tensors)
            what = f"{named(world, dtype, numel, poisoned)}, average={average}"
            cases.append(ring_case(tensors, others, (average,), numel, world, what))
    ranks, numel = rng.randint(2, 4), 7
    tensors, others = ([numbers(rng, numel, torch.float32) for _ in range(ranks)] for _ in range(2))
    cases.append(ring_case(tensors, others, (), numel, "lockstep", "7 elements, average left out"))
    return [*cases, board_case([whole_numbers(rng, BOARD[1]) for _ in range(BOARD[0])], True)]


def all_reduce_expected(case: Case, call: int) -> Expected:
    tensors, average = [args[call] for args in case.args], True in case.args[0][2:]
    summed = total(tensors)
    mean = meaned(summed, case.ranks)
    bounds = chunk_bounds(summed.numel(), case.ranks)
    return Expected(
        [mean if average else summed] * case.ranks,
        {
            "the sum where average=True asks for the mean: divide by comm.size": [summed] * case.ranks,
            "the mean where average=False asks for the sum": [mean] * case.ranks,
            "the mean cut to whole numbers: divide with / and not with //": [summed // case.ranks] * case.ranks,
            "one chunk only: gather the chunks after you have reduced them": [summed[a:b] for a, b in bounds],
            "one chunk of the mean: gather the chunks after you have reduced them": [mean[a:b] for a, b in bounds],
            "its own tensor, to which nothing was added": tensors,
        },
        "the sums are right, so look at how the mean is made of them" if average else "check each half by itself",
        whole=summed.nbytes,
        wire=wires("all_reduce", summed, case.ranks),
    )


# A broken function, to be mended.


def broadcast_cases(rng: Random) -> list[Case]:
    cases = []
    for ranks, numel, world, dtype, poisoned in draws(rng, DTYPES):
        for src in {0, ranks - 1, rng.randrange(ranks)} if numel > 1 and not poisoned else {rng.randrange(ranks)}:
            # No rank's tensor has a negative number, with which the caller overwrites it.
            tensors, others = ([numbers(rng, numel, dtype).abs() for _ in range(ranks)] for _ in range(2))
            if numel % 2 == 0:
                tensors, others = ([each.view(2, -1) for each in drawn] for drawn in (tensors, others))
            if poisoned:
                # Also into what is overwritten: no arithmetic with it is harmless.
                for tensor in tensors:
                    poison(rng, [tensor.view(-1)])
            what = f"{named(world, dtype, numel, poisoned)} from rank {src}"
            cases.append(ring_case(tensors, others, (src,), 0, world, what))
    ranks = rng.randint(2, 4)
    src = rng.randrange(ranks)
    tensors = [numbers(rng, 5, torch.float32).abs() * (rank != src) for rank in range(ranks)]
    others = [numbers(rng, 5, torch.float32).abs() for _ in range(ranks)]
    return [*cases, ring_case(tensors, others, (src,), 0, "lockstep", f"5 zeros from rank {src}")]


def broadcast_expected(case: Case, call: int) -> Expected:
    tensors, src = [args[call] for args in case.args], case.args[0][2]
    last = (src - 1) % case.ranks

    def passed_on(taken: Callable[[Tensor, Tensor], Tensor]) -> list[Tensor]:
        """What ranks end with if each takes less than what comes to it."""
        ends = list(tensors)
        for rank in ((src + step) % case.ranks for step in range(1, case.ranks)):
            ends[rank] = taken(ends[rank - 1], tensors[rank])
        return ends

    return Expected(
        [tensors[src]] * case.ranks,
        {
            "rank 0's tensor, whatever src is: `if comm.rank:` means `if comm.rank != 0`": [tensors[0]] * case.ranks,
            "its own tensor, as if nothing had come": tensors,
            "the sum of what lies on the way: overwrite, and do not add": [
                total([tensors[(src + step) % case.ranks] for step in range((rank - src) % case.ranks + 1)])
                for rank in range(case.ranks)
            ],
            "the left neighbour's own tensor: receive before you send on": [
                tensors[src if rank == src else rank - 1] for rank in range(case.ranks)
            ],
            "what came but for its zeros, in whose places its own numbers stand: zeros are numbers, too": passed_on(
                lambda came, own: torch.where(came != 0, came, own)
            ),
            "the first row alone of what came, and of its own tensor the rest: overwrite all of it": passed_on(
                lambda came, own: torch.cat([came[:1], own[1:]])
            ),
        },
        "print who receives from whom",
        whole=tensors[src].nbytes,
        wire=[0 if rank == last else tensors[src].nbytes for rank in range(case.ranks)],
    )
