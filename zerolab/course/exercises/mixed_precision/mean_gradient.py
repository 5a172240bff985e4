"""The exercise of lesson 06 on sums: 16-bit gradients of several micro-batches and ranks, added up in another dtype."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import reduce
from random import Random
from typing import Any

import torch

from zerolab.collectives import Collectives
from zerolab.course.judge.case import DTYPES, Case, Observation, Record, plural
from zerolab.course.judge.claims import (
    calls_are,
    each_rank,
    leaves_nothing,
    most_held,
    most_in_a_ring,
    most_sent,
    ring_bytes,
)
from zerolab.course.judge.draw import signed, sizes
from zerolab.course.judge.exercise import Claim, Exercise, Score
from zerolab.course.judge.mistakes import Wanted, right

TEXT = """
Sums

`gradients` is an iterator over the bf16 gradients of `micro_batches` micro-batches, which come one by one, as from
backward; each is yours when it comes. Return this rank's shard of their mean over micro-batches *and* ranks.

- Add them up in the dtype `add`, over micro-batches and over ranks: the sum travels in `add`, too. Reduce once, by a
  `reduce_scatter`: nobody needs all of the mean.
- Return the shard in the dtype `keep`, converted at the very end: fp16, say, may have the mean, and not the sum.

The scoreboard counts, on 4 ranks, what you send and what you hold: one sum, and in bf16 the gradient at hand and the
next. When you have returned, nothing is left but the shard.

The check draws 1 to 4 ranks, 1 to 8 micro-batches, dtypes to add in and to keep, gradients of which a sum in bf16
loses most, and sums beyond fp16 whose mean fp16 has. About five lines.
"""


def mean_gradient(comm, gradients, micro_batches: int, add: torch.dtype, keep: torch.dtype) -> torch.Tensor:
    """This rank's shard of the mean gradient, in the dtype `keep`."""
    ### BEGIN SOLUTION
    total = next(gradients).to(add)
    for gradient in gradients:
        total += gradient
    mean = comm.reduce_scatter(total, average=True) / micro_batches
    return mean.to(keep)
    ### END SOLUTION


Tensor = torch.Tensor
SHORT = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
BOARD_NUMEL, BOARD_BATCHES = 1024, 6
MANY = 8
LARGE = (20_000, 25_000)
"""Between what: fp16 has such gradients, and no sum of MANY of them."""
LOOK = "add up two micro-batches by hand, and print the dtype of the sum"
LOOSE, TIGHT = 2.0**-7, 1e-5
"""How far off a mean may be, by what it is kept in: bf16 rounds it once, by up to 2**-9 of it."""


def one_case(
    rng: Random,
    ranks: int,
    numel: int,
    add: str,
    keep: str,
    batches: int,
    uneven: bool,
    world: str = "lockstep",
    board: bool = False,
) -> Case:
    """With `uneven`, the first gradient is so large that bf16 loses most of those after it."""
    args: list[tuple[Any, ...]] = []
    signs = signed(rng, numel).sign()
    for _ in range(ranks):
        gradients = [signed(rng, numel, torch.bfloat16, most=3) for _ in range(batches)]
        if uneven:
            large = [[rng.randint(130, 240) * 2.0 for _ in range(numel)]]
            # bf16 keeps every fourth of them.
            small = [[rng.randint(9, 15) / 16 if at % 4 else 2.0 for _ in range(numel)] for at in range(1, batches)]
            gradients = [(torch.tensor(row) * signs).bfloat16() for row in large + small]
        args.append((gradients, batches, add, keep))
    what = f"{plural(batches, 'micro-batch').replace('batchs', 'batches')} of {plural(numel, 'element')}"
    said = f"on {plural(ranks, 'rank')}, {what}, added in {SHORT[add]}, kept in {SHORT[keep]}"
    return Case(args, world, said, board=board)


def cases(rng: Random) -> list[Case]:
    wide, narrow = "float32", "bfloat16"
    drawn = [
        one_case(rng, 4, BOARD_NUMEL, wide, narrow, BOARD_BATCHES, uneven=False, board=True),
        one_case(rng, 2, 40, wide, wide, MANY, uneven=True),
        one_case(rng, 2, 12, wide, wide, MANY - 1, uneven=True),
        one_case(rng, 2, 9, wide, narrow, MANY, uneven=True),
        one_case(rng, 2, 7, narrow, narrow, 3, uneven=False),
        one_case(rng, 3, 10, narrow, wide, 2, uneven=False),
        one_case(rng, 2, 5, wide, narrow, 1, uneven=False),
    ]
    drawn.append(too_large(rng))
    for ranks, numel, world in sizes(rng):
        drawn.append(one_case(rng, ranks, numel, wide, rng.choice((wide, narrow)), MANY, True, world))
    return drawn


def too_large(rng: Random) -> Case:
    """Sums that `keep` does not have, though it has their mean."""
    case = one_case(rng, 2, 6, "float32", "float16", MANY, uneven=False)
    args = [
        ([torch.tensor([float(rng.randint(*LARGE)) for _ in range(6)]).bfloat16() for _ in gradients], *rest)
        for gradients, *rest in case.args
    ]
    return replace(case, args=args)


def as_they_come(gradients: Sequence[Tensor]) -> Iterator[Tensor]:
    """What backward brings, one by one: each belongs to whoever takes it."""
    for gradient in gradients:
        yield gradient.clone()


def run_sums(
    fn: Callable[..., Any], comm: Collectives, gradients: list[Tensor], batches: int, add: str, keep: str
) -> Any:
    return fn(comm, as_they_come(gradients), batches, DTYPES[add], DTYPES[keep])


def total(gradients: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    """Their sum, one after the other, in a dtype."""
    return reduce(lambda sofar, gradient: sofar + gradient.to(dtype), gradients[1:], gradients[0].to(dtype))


def mean_of(case: Case, local: torch.dtype, across: torch.dtype, by: float = 0.0) -> Tensor:
    """The mean, in fp64, of sums that were made in these dtypes."""
    own = [total(args[0], local).to(across) for args in case.args]
    return total(own, across).double() / (by or case.ranks * case.args[0][1])


def near(rows: Sequence[Any], good: Sequence[Tensor], share: float) -> bool:
    """Whether any rank's tensor is so near to the right one that rounding may be taken for the mistake."""
    pairs = [(row, part) for row, part in zip(rows, good, strict=True) if row.shape == part.shape and part.numel()]
    return any(torch.allclose(row.float(), part.float(), rtol=share, atol=0.0) for row, part in pairs)


def wanted(case: Case) -> Wanted:
    _, batches, add, keep = case.args[0]
    dtype, narrow, wide = DTYPES[keep], torch.bfloat16, torch.float32
    good = mean_of(case, torch.float64, torch.float64)

    def shards(whole: Tensor) -> list[Tensor]:
        return list(whole.to(dtype).tensor_split(case.ranks))

    own = [total(args[0], wide) / batches for args in case.args]
    early = [total([gradient / batches for gradient in args[0]], wide) for args in case.args]
    first, last = (torch.stack([args[0][at].float() for args in case.args]).mean(0) for at in (0, -1))
    mistakes: dict[str, Sequence[Any]] = {
        "the whole mean: a rank keeps its shard": [good.to(dtype)] * case.ranks,
        "the sum over the micro-batches: take the mean over them, too": shards(good * batches),
        "the sum over the ranks: take the mean over them, too": shards(good * case.ranks),
        "the sum over micro-batches and ranks: take the mean over both": shards(good * batches * case.ranks),
        "a mean that is divided by N twice: average=True has divided it already": shards(good / case.ranks),
        "the mean of its own gradients: nobody else's are in": [
            part.to(dtype).tensor_split(case.ranks)[rank] for rank, part in enumerate(own)
        ],
        "what the first micro-batch alone gives, divided by all": shards(first.double() / batches),
        "what the last micro-batch alone gives, divided by all": shards(last.double() / batches),
        "what the last micro-batch alone gives": shards(last.double()),
        "a mean that is divided by one micro-batch too few": shards(good * batches / max(batches - 1, 1)),
        "a mean without the last micro-batch: does the loop end too early?": shards(good - last.double() / batches),
        "a mean without the first micro-batch: an iterator gives each gradient once": shards(
            good - first.double() / batches
        ),
    }
    if add == "float32":
        mistakes |= {
            "what a sum in bf16 gives: micro-batches that come late are rounded away": shards(
                mean_of(case, narrow, wide)
            ),
            "what sums in bf16 give, over micro-batches and over ranks": shards(mean_of(case, narrow, narrow)),
            "what sums give that are rounded to bf16 before the ranks add them: over ranks it is a sum, too": shards(
                mean_of(case, wide, narrow)
            ),
            "what gradients give that are divided in bf16, before they are added: divide the sum": shards(
                torch.stack(early).double().mean(0)
            ),
        }
        if keep == "float32":
            mistakes["a mean that was rounded to bf16 on its way: `keep` says what to keep it in"] = shards(
                good.to(narrow)
            )
    if keep != "float32":
        # In few bits a first or last micro-batch can be less than what rounding takes.
        mistakes = {says: rows for says, rows in mistakes.items() if not near(rows, shards(good), 4 * LOOSE)}
    return Wanted(shards(good), mistakes, LOOK)


def sums_right(case: Case, seen: Observation) -> str | None:
    keep = DTYPES[case.args[0][3]]
    for rank, record in enumerate(seen.records):
        if isinstance(record.value, Tensor) and record.value.dtype != keep:
            said = f"rank {rank} returned {record.value.dtype}, and {keep} is due"
            return f"{said}: `add` is for the sum, `keep` for what comes of it"
        if isinstance(record.value, Tensor) and record.value.isinf().any():
            said = f"rank {rank} returned inf: {SHORT[case.args[0][3]]} has this mean, and not the sum"
            return width(case, seen) or f"{said}: when is it converted, before or after the last division?"
    exact = keep == torch.float32 and case.args[0][2] == "float32"
    hint = right(wanted, TIGHT if exact else LOOSE)(case, seen)
    narrow = hint and hint.endswith(LOOK) and all(record.calls for record in seen.records)
    # Where no mistake is known by its numbers, the bytes may tell.
    return width(case, seen) or hint if narrow else hint


@each_rank
def width(case: Case, rank: int, record: Record) -> str | None:
    """Gradients travel in the dtype in which they are added."""
    gradients, _, add, _ = case.args[0]
    due = ring_bytes([("reduce_scatter", gradients[0].numel())], DTYPES[add].itemsize, case.ranks, rank)
    said = f"rank {rank} sends {record.nbytes:,} bytes, and {due:,} are due"
    if record.nbytes < due:
        return f"{said}: a ring adds up in the dtype that it sends"
    return f"{said}: what is added in {SHORT[add]} travels in it" if record.nbytes > due else None


def sent_target(case: Case) -> int:
    return most_in_a_ring([("reduce_scatter", BOARD_NUMEL)], 4, case.ranks)


def held_target(case: Case) -> int:
    """While gradients come: the sum, the one at hand and the next. When they are reduced: the sum, the last, the shard
    and what a ring receives into."""
    return max(8 * BOARD_NUMEL, 6 * BOARD_NUMEL + 12 * BOARD_NUMEL // case.ranks) + 64


EXERCISE = Exercise(
    "mean_gradient",
    cases,
    (
        Claim("every rank returns its shard of the mean, in the dtype to keep", sums_right),
        Claim(
            "one reduce_scatter, after the last micro-batch",
            calls_are(
                lambda case, rank: [("reduce_scatter", case.args[0][0][0].numel())],
                "add up what is yours first, then reduce the sum, once",
            ),
        ),
        Claim("gradients travel in the dtype in which they are added", width),
        Claim("beside the shard that it returns, nothing stays alive", leaves_nothing),
    ),
    scores=(
        Score("bytes a rank sends", most_sent, sent_target, "reduce once, in `add`"),
        Score(
            "bytes held at the worst moment",
            most_held,
            held_target,
            "are there two sums at once, a list of gradients, or a wide copy of one? `+=` converts by itself",
        ),
    ),
    hints=(
        "The first gradient, converted to `add`, is a sum to begin with; next(gradients) gives it.",
        "`sum += gradient` keeps the dtype of the sum.",
        "Convert to `keep` at the very end, when everything has been added and divided.",
    ),
    run=run_sums,
    memory=True,
    text=TEXT,
    answer=(mean_gradient,),
    points=2,
)
