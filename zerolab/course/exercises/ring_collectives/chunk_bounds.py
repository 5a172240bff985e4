"""Exercise of lesson 01 that sends nothing: where a rank's chunk lies."""

from __future__ import annotations

from random import Random

from zerolab.course.judge.case import Case
from zerolab.course.judge.exercise import Claim, Exercise, alone
from zerolab.course.judge.model import Gives

TEXT = """
Chunks

A tensor of `numel` elements is cut into one chunk for each rank, end to end, empty ones, too. Where the ranks do not
divide it, the first ranks take one element more: 10 elements over 4 ranks make chunks of 3, 3, 2 and 2. This is the
rule of `torch.tensor_split`.

Return the half-open range `(start, stop)` of rank `rank`'s chunk. About three lines. The check draws up to 40
elements, also none and fewer than ranks.
"""


def chunk_bounds(numel: int, ranks: int, rank: int) -> tuple[int, int]:
    """Where the chunk of `rank` starts, and where the next one starts."""
    ### BEGIN SOLUTION
    short, longer = divmod(numel, ranks)
    start = rank * short + min(rank, longer)
    return start, start + short + (rank < longer)
    ### END SOLUTION


MISTAKES = r"""
`stop` is the first element that is no longer in the chunk
    (rank < longer) => (rank < longer) - 1
The second number is a length; where does the chunk stop?
    start, start + => start,
Ranks count from 0, so rank 0's chunk starts at 0
    short, longer => rank += 1\n    short, longer
The last rank has all the rest, and each rank may have one of it
    start = rank * short + min(rank, longer) => start = rank * short
    (rank < longer) => longer * (rank == ranks - 1)
They leave the rest at the end to nobody: each of the first ranks has one of it
    + min(rank, longer) =>
    + (rank < longer) =>
The longer ones belong to the first ranks
    def chunk_bounds(numel, ranks, rank):
        return rank * numel // ranks, (rank + 1) * numel // ranks
No two lengths may differ by more than one: not every chunk is as long as the longest
    def chunk_bounds(numel, ranks, rank):
        each = -(-numel // ranks)
        return min(numel, rank * each), min(numel, (rank + 1) * each)
It starts before the one before it stops: how many longer ones lie before it?
    + min(rank, longer) =>
Which ranks have one more? There are numel % ranks of them, rank 0 the first
    (rank < longer) => (rank <= longer and longer > 0)
"""


def bounds_cases(rng: Random) -> list[Case]:
    # 11 over 4: a rest of three tells mistakes apart.
    numels = [(1, rng.randint(1, 40)), (4, 11)]
    numels += [(ranks, rng.randint(0, 40)) for ranks in (1, 2, 3, 4, 2, 3)]
    # As many elements on other ranks: what an answer keeps by their number shows.
    numels += [(4, 2), (3, 9), (4, 10), (3, 10), (3, 0)]
    return [Case([(numel, ranks, rank) for rank in range(ranks)]) for ranks, numel in numels]


EXERCISE = Exercise(
    "chunk_bounds",
    bounds_cases,
    (Claim("chunks lie end to end, the longer ones first", Gives(look="Write down all chunks, with their lengths")),),
    run=alone,
    hints=(
        "divmod(numel, ranks) gives the length of a short chunk, and how many chunks are one longer.",
        "A chunk's start is the length of all chunks before it: how many of those are longer ones?",
        "Before rank r lie r chunks, and min(r, the number of longer ones) of them have one element more.",
    ),
    mistakes=MISTAKES,
    text=TEXT,
    answer=(chunk_bounds,),
    points=1,
)
