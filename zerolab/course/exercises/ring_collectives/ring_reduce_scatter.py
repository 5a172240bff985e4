"""Exercise of lesson 01: a reduce-scatter that goes round."""

from __future__ import annotations

from random import Random

import torch

from zerolab.course.exercises.ring_collectives import ring
from zerolab.course.exercises.ring_collectives.given import chunk, pass_on
from zerolab.course.judge.case import Case
from zerolab.course.judge.draw import whole_numbers

TEXT = """
Reduce-scatter

Every rank brings a 1-D tensor of the same length, of any dtype. Rank r returns chunk r of their sum, and only that.

Take N-1 steps. In each, pass one chunk to the right, and add your own numbers to the chunk that comes from the left.
Chunk c sets out from rank c+1, so that after N-1 steps it stands, complete, at rank c:

| 3 ranks | step 0 | step 1 | ends with |
| --- | --- | --- | --- |
| rank 0 | sends chunk 2 | sends chunk 1 | chunk 0 |
| rank 1 | sends chunk 0 | sends chunk 2 | chunk 1 |
| rank 2 | sends chunk 1 | sends chunk 0 | chunk 2 |

Read a row to find which chunk leaves in step s, and the row above to find which one arrives. Leave the input as it
is. About seven lines. The scoreboard allows one copy of the tensor and two chunks.

The check draws contiguous tensors of float64, float32, float16, bfloat16, int64 and int32, with numbers that no
narrower dtype holds; one element, or none; NaN and inf on any rank; and a second call with other data.
"""


def ring_reduce_scatter(comm, tensor: torch.Tensor) -> torch.Tensor:
    """Chunk `comm.rank` of the sum of all ranks' tensors."""
    ### BEGIN SOLUTION
    travelling = chunk(tensor, comm.rank - 1, comm.size).clone()
    for step in range(comm.size - 1):
        mine = chunk(tensor, comm.rank - 2 - step, comm.size)
        arrived = torch.empty_like(mine)
        pass_on(comm, travelling, arrived)
        # What has left is not needed any more: two chunks at a time, and no copy of the whole.
        travelling = arrived.add_(mine)
    return travelling
    ### END SOLUTION


MISTAKES = r"""
its own summand, to which nothing was added
    arrived.add_(mine) => mine
the right neighbour's summand, passed on and never added to
    arrived.add_(mine) => arrived
a neighbour's chunk: shift your chunk index by one
    comm.rank - 1 => comm.rank
    comm.rank - 2 => comm.rank - 1
the sum with its own summand in it twice: is it added once more at the end?
    return travelling => return travelling + chunk(tensor, comm.rank, comm.size)
the mean: this exercise asks for the sum
    return travelling => return travelling / comm.size
what is nearly right, and nearly right is not right: it was rounded to float32 on the way
    arrived.add_(mine) => (arrived.float() + mine.float()).to(mine.dtype)
"""


def reduce_scatter_cases(rng: Random) -> list[Case]:
    return [
        *(
            Case([(tensor,) for tensor in ring.each_ranks(rng, ranks, numel, dtype, poisoned)], world)
            for ranks, numel, world, dtype, poisoned in ring.draws(rng)
        ),
        ring.board_case([whole_numbers(rng, ring.BOARD[1]) for _ in range(ring.BOARD[0])]),
    ]


EXERCISE = ring.ring_exercise(
    "ring_reduce_scatter",
    reduce_scatter_cases,
    ring.right_values("rank r returns chunk r of the sum", "print which chunk it adds in each step, and its dtype"),
    look="one copy of the tensor is enough, and a chunk that arrived is used up when added",
    chunks=2,
    hints=(
        "Take the table for rank 0 and write down, for each step, which chunk leaves and which one arrives.",
        "In step s rank r sends chunk r - 1 - s; its left neighbour does the same with its own r.",
        "Work on a copy: what arrives is added to a chunk of it, and in the next step that chunk leaves.",
    ),
    mistakes=MISTAKES,
    text=TEXT,
    answer=(ring_reduce_scatter,),
    points=3,
)
