"""Exercise of lesson 01: an all-gather that goes round."""

from __future__ import annotations

import torch

from zerolab.course.exercises.ring_collectives.cases import all_gather_cases, all_gather_expected
from zerolab.course.exercises.ring_collectives.given import chunk, pass_on
from zerolab.course.exercises.ring_collectives.ring import ring_exercise, ring_scores

TEXT = """
All-gather

The way back. Every rank brings its shard, which is chunk r of a tensor of `numel` elements. Every rank returns the
whole tensor. In the first step you pass on your own shard, and after that always what came last. Let each chunk
arrive where it belongs, and keep nothing twice. About five lines. The scoreboard allows the tensor that you return,
and nothing beside it. The check draws what it draws in exercise 2.
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


EXERCISE = ring_exercise(
    "ring_all_gather",
    all_gather_cases,
    all_gather_expected,
    "every rank returns all shards in order",
    (
        "Make the whole tensor first (shard.new_empty), and put your shard where it belongs.",
        "In step 0 rank r sends chunk r and gets the left neighbour's. A step later both are one chunk back.",
        "A chunk is a view, so pass_on can receive straight into its place in the whole tensor.",
    ),
    ring_scores("all_gather", 0, "receive each chunk where it belongs in the whole tensor, then nothing is kept twice"),
    text=TEXT,
    answer=(ring_all_gather,),
    points=2,
)
