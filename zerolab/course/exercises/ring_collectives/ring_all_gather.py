"""Exercise of lesson 01: an all-gather that goes round."""

from __future__ import annotations

from random import Random

import torch

from zerolab.course.exercises.ring_collectives import ring
from zerolab.course.exercises.ring_collectives.given import chunk, pass_on
from zerolab.course.judge.case import Case
from zerolab.course.judge.draw import whole_numbers

TEXT = """
All-gather

The way back. Every rank brings its shard, which is chunk r of a tensor of `numel` elements. Every rank returns the
whole tensor. In the first step you pass your own shard to the right, and after that always what came last. Let each
chunk arrive where it belongs, and keep nothing twice. About five lines. The scoreboard allows the tensor that you
return, and nothing beside it. The check draws what it draws in exercise 2.
"""


def ring_all_gather(comm, shard: torch.Tensor, numel: int) -> torch.Tensor:
    """All ranks' shards, end to end: `numel` elements."""
    ### BEGIN SOLUTION
    whole = shard.new_empty(numel)
    chunk(whole, comm.rank, comm.size).copy_(shard)
    for step in range(comm.size - 1):
        pass_on(comm, chunk(whole, comm.rank - step, comm.size), chunk(whole, comm.rank - step - 1, comm.size))
    return whole
    ### END SOLUTION


MISTAKES = r"""
its own shard only
    return whole => return shard
zeros: does every rank put its own shard into the whole tensor before the first step?
    new_empty => new_zeros
    chunk(whole, comm.rank, comm.size).copy_(shard) => pass
the shards in the order in which they came: put shard r at the bounds of chunk r
    return whole => return torch.cat([chunk(whole, comm.rank - i, comm.size) for i in range(comm.size)])
its own shard is missing: put it where it belongs in the whole tensor
    new_empty => new_zeros
    return whole => chunk(whole, comm.rank, comm.size).zero_()\n    return whole
the right neighbour's shard, which comes last, is missing: N ranks need N-1 steps, and each one receives into the
whole tensor itself
    new_empty => new_zeros
    comm.size - 1 => comm.size - 2
"""


def all_gather_cases(rng: Random) -> list[Case]:
    cases = []
    for ranks, numel, world, dtype, poisoned in ring.draws(rng):
        whole = ring.each_ranks(rng, ranks, numel, dtype, poisoned)[0]
        cases.append(Case([(shard.clone(), numel) for shard in whole.tensor_split(ranks)], world))
    ranks, numel = ring.BOARD
    shards = [whole_numbers(rng, numel // ranks) for _ in range(ranks)]
    return [*cases, ring.board_case(shards, numel)]


EXERCISE = ring.ring_exercise(
    "ring_all_gather",
    all_gather_cases,
    ring.right_values(
        "every rank returns all shards in order",
        "print which chunk leaves and which one arrives in each step, and their dtypes",
    ),
    look="receive each chunk where it belongs in the whole tensor, then nothing is kept twice",
    hints=(
        "Make the whole tensor first (shard.new_empty), and put your shard where it belongs.",
        "In step 0 rank r sends chunk r and gets the left neighbour's. A step later both are one chunk back.",
        "A chunk is a view, so pass_on can receive straight into its place in the whole tensor.",
    ),
    mistakes=MISTAKES,
    text=TEXT,
    answer=(ring_all_gather,),
    points=2,
)
