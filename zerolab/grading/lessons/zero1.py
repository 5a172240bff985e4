"""Exercises of lesson 03: ZeRO-1. What they should give, and what else people make of them, is in `zero1_claims`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import torch

from zerolab.collectives import Collectives, Link, wire_bytes
from zerolab.grading.case import Case, Observation, plural
from zerolab.grading.claims import alike, microseconds, most_held, most_sent, number_of_calls, right, untouched
from zerolab.grading.draw import about, signed, sizes
from zerolab.grading.exercise import Claim, Exercise, Score, alone
from zerolab.grading.lessons.zero1_claims import (
    bucket_calls,
    buckets_right,
    cost_right,
    fullest,
    fullest_mistakes,
    fullest_right,
    grouped_calls,
    stage1_wanted,
)
from zerolab.grading.lessons.zero1_mended import MENDED
from zerolab.ranks import spend

Tensor = torch.Tensor
STEPS = 3
BOARD_NUMEL = 4096


# 1. Whole tensors.


def fullest_cases(rng: Random) -> list[Case]:
    drawn = [(telling(rng, ranks), ranks) for ranks in (3, 4)]
    drawn += [([rng.randint(1, 60) for _ in range(ranks + rng.randint(0, 6))], ranks) for ranks in (2, 3, 4, 8, 1)]
    # On the last, another way to share comes to less.
    drawn += [([100, 3, 2, 1], 4), ([3, 3, 2, 2, 2], 2)]
    return [Case([args], about=f"tensors of {args[0]} elements, {plural(args[1], 'rank')}") for args in drawn]


def telling(rng: Random, ranks: int) -> list[int]:
    """Sizes of tensors on which all mistakes give different numbers, so that a hint names the one that was made."""
    while True:
        numels = [rng.randint(1, 60) for _ in range(2 * ranks + 2)]
        answers = [fullest(numels, ranks), *fullest_mistakes(numels, ranks).values()]
        if len(set(answers)) == len(answers):
            return numels


# 2. Stage 1. Every rank has a gradient of its own for each step.


def training_case(
    rng: Random, ranks: int, numel: int, world: str, board: bool = False, link: Link | None = None
) -> Case:
    row = signed(rng, numel)
    gradients = [[signed(rng, numel) for _ in range(STEPS)] for _ in range(ranks)]
    args: list[tuple[Any, ...]] = [(row, gradients[rank]) for rank in range(ranks)]
    return Case(args, world, about(ranks, numel, f"a row of {plural(numel, 'element')}"), link, board)


def training_cases(rng: Random) -> list[Case]:
    cases = [training_case(rng, ranks, numel, world) for ranks, numel, world in sizes(rng)]
    return [training_case(rng, 4, BOARD_NUMEL, "lockstep", board=True), *cases]


def steps_sent(name: str) -> Callable[[Case], int]:
    def target(case: Case) -> int:
        numel = case.args[0][0].numel()
        return STEPS * max(
            wire_bytes(name, numel, 4, case.ranks, rank) + wire_bytes("all_gather", numel, 4, case.ranks, rank)
            for rank in range(case.ranks)
        )

    return target


def state_target(case: Case) -> int:
    """The row, and a gathered one; of a shard two states, the gradient of the last step and of this one, and the ring's
    two chunks."""
    nbytes = case.args[0][0].nbytes
    return 2 * nbytes + 6 * nbytes // case.ranks + 64


HELD = Score(
    "bytes held at the worst moment",
    most_held,
    state_target,
    "does the optimizer know more than the shard, or is a whole gradient kept?",
)


def run_again(fn: Callable[..., Any], comm: Collectives, row: Tensor, gradients: list[Tensor]) -> Any:
    """What two calls return; one alone where it is measured."""
    first = fn(comm, row, gradients)
    return [first, None if row.numel() >= BOARD_NUMEL else fn(comm, row.clone(), gradients)]


def first_right(case: Case, seen: Observation) -> str | None:
    records = [replace(record, value=record.value[0]) for record in seen.records]
    return right(stage1_wanted)(case, replace(seen, records=records))


def second_right(case: Case, seen: Observation) -> str | None:
    for rank, record in enumerate(seen.records):
        first, second = record.value
        if second is not None and not alike(second, first, 1e-5):
            said = f"{case.about}: rank {rank} returned something else when it was called again with the same numbers"
            return f"{said}: what does a call leave behind for the next?"
    return None


def full_width(case: Case, seen: Observation) -> str | None:
    for rank, record in enumerate(seen.records):
        known = [call for call in record.calls if call[0] in ("reduce_scatter", "all_gather", "all_reduce")]
        if record.nbytes < sum(wire_bytes(name, numel, 4, case.ranks, rank) for name, numel in known):
            said = f"rank {rank} sends {record.nbytes:,} bytes, too few for fp32"
            return f"{case.about}: {said}: gradients and parameters travel in their own dtype"
    return None


STAGE1 = Exercise(
    "train_sharded",
    training_cases,
    (
        Claim("every rank returns the row that one optimizer would have trained", first_right),
        Claim("its inputs stay as they were", untouched(0, 1)),
        Claim("a second call begins anew", second_right),
        Claim("what travels keeps its dtype", full_width),
    ),
    scores=(
        Score(
            f"bytes a rank sends in {STEPS} steps",
            most_sent,
            steps_sent("reduce_scatter"),
            "an all-reduce hands everybody gradients that nobody uses; which collective stops halfway?",
        ),
        Score("calls of collectives", number_of_calls, lambda case: 2 * STEPS, "two calls a step are enough"),
        HELD,
    ),
    hints=(
        "A rank's shard is row.tensor_split(comm.size)[comm.rank], a view: what an optimizer does to it, it does to "
        "the row.",
        "Each step: a mean of gradients that arrives as a shard, an update of the shard, and the shards end to end.",
        "comm.all_gather(shard, out=row) writes all shards into the row; it knows the length from out.",
    ),
    run=run_again,
    memory=True,
)


# 3. Several buckets, and what travels while something computes.

LINK = Link(gbit_per_s=1, latency_us=100)
UPDATE_SECONDS = 1e-3


def run_step(
    fn: Callable[..., Any], comm: Collectives, rows: list[Tensor], gradients: list[Tensor], rate: float
) -> Any:
    """One step, with a plain SGD that takes a millisecond for each shard. [The rows, how often it was called]."""
    updates = 0

    def update(shard: Tensor, gradient: Tensor) -> None:
        nonlocal updates
        updates += 1
        spend(UPDATE_SECONDS)
        shard.sub_(rate * gradient)

    return [fn(comm, rows, gradients, update), updates]


def bucket_case(rng: Random, ranks: int, buckets: int, numel: int, world: str, board: bool = False) -> Case:
    rows = [signed(rng, numel) for _ in range(buckets)]
    rate = rng.choice((0.0625, 0.125, 0.25, 0.5))
    args: list[tuple[Any, ...]] = [(rows, [signed(rng, numel) for _ in rows], rate) for _ in range(ranks)]
    what = f"{plural(buckets, 'bucket')} of {plural(numel, 'element')}"
    return Case(args, world, about(ranks, numel, what), LINK if world == "lockstep" else None, board)


def bucket_cases(rng: Random) -> list[Case]:
    shapes = [(2, 2, 8), (3, 3, 10), (4, 2, 3), (1, 2, 5)]
    cases = [bucket_case(rng, ranks, buckets, numel, "lockstep") for ranks, buckets, numel in shapes]
    cases.append(bucket_case(rng, 2, 3, rng.randint(5, 20), "processes"))
    return [bucket_case(rng, 4, 4, 4096, "lockstep", board=True), *cases]


def overlapped_target(case: Case) -> int:
    """Updates take longer than the wire: before the first there is a reduction, after the last a gather, and nothing
    else stands still."""
    rows = case.args[0][0]
    half = LINK.ring_seconds("all_gather", rows[0].numel(), 4, case.ranks)
    return round(1e6 * (2 * half + len(rows) * UPDATE_SECONDS)) + 1


def stands_still(case: Case, seen: Observation) -> str:
    """Where the ranks wait for the wire."""
    rows, calls = case.args[0][0], [name for name, _ in seen.records[0].calls]
    first = calls.index("all_gather")
    if first < len(rows):
        return f"bucket {first}'s reduce_scatter starts only after bucket 0's all_gather: what could already travel?"
    half = LINK.ring_seconds("all_gather", rows[0].numel(), 4, case.ranks)
    if seen.seconds < (len(rows) + 1) * half + len(rows) * UPDATE_SECONDS + half / 8:
        return "before the first update all reductions have ended: for which of them must it wait?"
    return "after an update the rank waits until its all_gather has ended: who needs that row before the end?"


OVERLAPPED = Exercise(
    "step_overlapped",
    bucket_cases,
    (
        Claim("every rank returns all rows, updated everywhere", buckets_right),
        Claim("the rows and gradients it is given stay as they were", untouched(0, 1)),
        Claim("one reduce_scatter, one update and one all_gather for each bucket", bucket_calls),
    ),
    scores=(
        Score(
            "microseconds on the virtual clock",
            microseconds,
            overlapped_target,
            stands_still,
        ),
    ),
    hints=(
        "reduce_scatter_async and all_gather_async return a handle at once; handle.wait() gives the result.",
        "Nothing keeps you from starting all reduce_scatters before you wait for the first.",
        "A bucket's all_gather can travel while the next bucket is updated: keep its handle, and wait at the very end.",
    ),
    run=run_step,
)


# 4. Groups whose borders are not the shards'.


def group_case(rng: Random, ranks: int, numel: int, world: str, borders: Sequence[int] = ()) -> Case:
    borders = borders or sorted({0, numel, *(rng.randint(0, numel) for _ in range(3))})
    decays = rng.sample([0.0, 0.5, 1.0, 2.0, 4.0], len(borders) - 1) if len(borders) < 6 else []
    groups = list(zip(borders[:-1], borders[1:], decays, strict=True))
    row = signed(rng, numel)
    args: list[tuple[Any, ...]] = [(row, [signed(rng, numel) for _ in range(STEPS)], groups) for _ in range(ranks)]
    return Case(args, world, about(ranks, numel, f"a row of {plural(numel, 'element')}, groups {groups}"))


def grouped_sizes(rng: Random) -> list[Case]:
    # On the first, all mistakes give different rows.
    first = group_case(rng, 2, 8, "lockstep", (0, 2, 5, 8))
    cases = [group_case(rng, ranks, numel, world) for ranks, numel, world in sizes(rng)]
    board = group_case(rng, 4, BOARD_NUMEL, "lockstep", (0, 1000, 1500, BOARD_NUMEL))
    said = about(4, BOARD_NUMEL, f"a row of {BOARD_NUMEL} elements, three groups")
    return [first, *cases, replace(board, about=said, board=True)]


GROUPED = Exercise(
    "train_grouped",
    grouped_sizes,
    (
        Claim(
            "every rank returns the row that one optimizer with these groups would have trained", right(stage1_wanted)
        ),
        Claim("its inputs stay as they were", untouched(0, 1)),
        Claim("it reduces once a step, and gathers as often or at the end", grouped_calls),
    ),
    scores=(HELD,),
    hints=(
        "Which part of a group [start, stop) lies in a shard [first, last)? max(start, first) to min(stop, last), if "
        "that is not empty.",
        "An optimizer for each group's part of your shard, made once, before the first step.",
        "A rank may own no part of a group, and then has no optimizer for it.",
    ),
    memory=True,
)


# 6. The cost.


def cost_cases(rng: Random) -> list[Case]:
    cases = []
    for ranks in (5, 4, 3, 2, 1):
        for way in ("stage 0", "stage 1, all-reduce", "stage 1, reduce-scatter"):
            numel = ranks * rng.randint(2, 3000)
            cases.append(
                Case([(numel, ranks, way)], about=f"{plural(numel, 'parameter')}, {plural(ranks, 'rank')}, {way}")
            )
    return cases


EXERCISES = (
    Exercise(
        "fullest_rank",
        fullest_cases,
        (
            Claim("it finds the load of the fullest rank", fullest_right),
            Claim("the list it is given stays as it was", untouched(0)),
        ),
        run=alone,
        hints=(
            "Sort the tensors, the largest first.",
            "Keep a list of what each rank has; the next tensor goes to the one that has least.",
        ),
    ),
    STAGE1,
    OVERLAPPED,
    GROUPED,
    MENDED,
    Exercise(
        "step_bytes",
        cost_cases,
        (Claim("what you predict is what the meter counts", cost_right),),
        run=alone,
        hints=(
            "A reduce-scatter or an all-gather sends (N-1)/N of the tensor, an all-reduce twice that.",
            "Write down the collectives of one step of each way; section 5 of the lesson measured them.",
        ),
    ),
)
