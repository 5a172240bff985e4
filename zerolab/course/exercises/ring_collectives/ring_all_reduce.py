"""Exercise of lesson 01: an all-reduce made of both."""

from __future__ import annotations

import torch

from zerolab.course.exercises.ring_collectives.cases import BOARD, all_reduce_cases, all_reduce_expected
from zerolab.course.exercises.ring_collectives.ring import ring_exercise, ring_scores
from zerolab.course.exercises.ring_collectives.ring_all_gather import ring_all_gather
from zerolab.course.exercises.ring_collectives.ring_reduce_scatter import ring_reduce_scatter
from zerolab.course.judge.case import Case, Observation
from zerolab.course.judge.claims import most_held

TEXT = """
All-reduce

Every rank returns the whole sum, or the whole mean if `average` is true. You have both halves. About three lines. The
scoreboard allows what exercise 2 needs: both halves are never there at once. It is measured with `average=True`. The
check draws what it draws in exercise 2; a mean is asked of floating-point numbers only, and `average` may be left
out.
"""


def ring_all_reduce(comm, tensor: torch.Tensor, average: bool = False) -> torch.Tensor:
    """The sum of all ranks' tensors, or their mean; the input stays as it was."""
    ### BEGIN SOLUTION
    shard = ring_reduce_scatter(comm, tensor)
    if average:
        shard /= comm.size
    return ring_all_gather(comm, shard, tensor.numel())
    ### END SOLUTION


def two_wholes(case: Case, seen: Observation) -> str:
    """Where an all-reduce that holds too much may do so. A mean in a tensor of its own makes two whole ones."""
    if most_held(case, seen) == 2 * 4 * BOARD[1]:
        return (
            "two whole tensors at once: is the mean made in a new one, where dividing in place, or a chunk, would do?"
        )
    return (
        "a copy of the whole tensor that you make before the first half, such as tensor / comm.size or tensor.clone(), "
        "lives on beside both: the halves need none, and there is least to divide between them"
    )


EXERCISE = ring_exercise(
    "ring_all_reduce",
    all_reduce_cases,
    all_reduce_expected,
    "every rank returns the sum, or the mean",
    (
        "After a reduce-scatter each rank has a finished chunk; who needs it?",
        "The second half needs the length of the whole: tensor.numel().",
        "Divide where there is least to divide: between the halves, by comm.size.",
    ),
    ring_scores("all_reduce", 2, two_wholes),
    text=TEXT,
    answer=(ring_all_reduce,),
    points=2,
)
