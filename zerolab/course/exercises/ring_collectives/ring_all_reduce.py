"""Exercise of lesson 01: an all-reduce made of both."""

from __future__ import annotations

from random import Random

import torch

from zerolab.course.exercises.ring_collectives import ring
from zerolab.course.exercises.ring_collectives.ring_all_gather import ring_all_gather
from zerolab.course.exercises.ring_collectives.ring_reduce_scatter import ring_reduce_scatter
from zerolab.course.judge.case import Case
from zerolab.course.judge.draw import whole_numbers

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


MISTAKES = r"""
the sum where average=True asks for the mean: divide by comm.size
    if average: => if False:
the mean where average=False asks for the sum
    if average: => if True:
    shard /= comm.size => shard = (shard / comm.size).to(shard.dtype)
the mean where average is left out, and then the sum is due
    average: bool = False => average: bool = True
the mean cut to whole numbers: divide with / and not with //
    /= => //=
one chunk only: gather the chunks after you have reduced them
    return ring_all_gather(comm, shard, tensor.numel()) => return shard
its own tensor, to which nothing was added
    return ring_all_gather(comm, shard, tensor.numel()) => return tensor
"""


def all_reduce_cases(rng: Random) -> list[Case]:
    cases = []
    for ranks, numel, world, dtype, poisoned in ring.draws(rng):
        for average in (False, True) if dtype.is_floating_point else (False,):
            tensors = ring.each_ranks(rng, ranks, numel, dtype, poisoned)
            if dtype.is_floating_point:
                # Multiples of 1.5: a mean over 2, 3 or 4 is exact, whether it divides first, last or multiplies by
                # 1/N, and is no whole number, so that // shows.
                tensors = [1.5 * tensor for tensor in tensors]
            cases.append(Case([(tensor, average) for tensor in tensors], world))
    cases.append(Case([(ring.numbers(rng, 7, torch.float32),) for _ in range(rng.randint(2, 4))]))
    return [*cases, ring.board_case([whole_numbers(rng, ring.BOARD[1]) for _ in range(ring.BOARD[0])], True)]


EXERCISE = ring.ring_exercise(
    "ring_all_reduce",
    all_reduce_cases,
    ring.right_values(
        "every rank returns the sum, or the mean", "check each half by itself, its dtype, and how the mean is made"
    ),
    "is there a second whole tensor, such as tensor.clone(), or tensor / comm.size before or after both halves? Divide "
    "between them, where there is least to divide",
    chunks=2,
    hints=(
        "After a reduce-scatter each rank has a finished chunk; who needs it?",
        "The second half needs the length of the whole: tensor.numel().",
        "Divide where there is least to divide: between the halves, by comm.size.",
    ),
    mistakes=MISTAKES,
    text=TEXT,
    answer=(ring_all_reduce,),
    points=2,
)
