"""Exercise of lesson 01 that sends nothing: what a ring costs."""

from __future__ import annotations

from random import Random

from zerolab.course.exercises.ring_collectives.chunk_bounds import chunk_bounds
from zerolab.course.judge.case import Case
from zerolab.course.judge.exercise import Claim, Exercise, alone
from zerolab.course.judge.model import Gives
from zerolab.course.judge.same import short

TEXT = """
The cost, before you pay it

How many bytes does rank `rank` *send* in your all-reduce of `numel` elements of `itemsize` bytes? To the byte, where
the ranks do not divide the tensor as well. Ask for each half: which one chunk does this rank never send? About four
lines. The check draws up to 2,000 elements of 2, 4 or 8 bytes, also none and fewer than ranks.
"""


def ring_bytes(numel: int, itemsize: int, ranks: int, rank: int) -> int:
    """Bytes that `rank` puts on the wire in one ring all-reduce."""

    ### BEGIN SOLUTION
    def length(index: int) -> int:
        start, stop = chunk_bounds(numel, ranks, index % ranks)
        return stop - start

    # The reduce-scatter keeps our own chunk here; the all-gather need not tell the right neighbour its own.
    return (2 * numel - length(rank) - length(rank + 1)) * itemsize
    ### END SOLUTION


MISTAKES = r"""
One rank has nobody to send to: a ring takes N-1 steps
    2 * numel - length(rank) - length(rank + 1) => 2 * numel
(N-1) whole tensors is what sending everything to everybody costs; a ring passes chunks
    (2 * numel - length(rank) - length(rank + 1)) => (ranks - 1) * numel
You took 4 bytes for an element; `itemsize` says how many it has
    * itemsize => * 4
You counted elements; multiply by the bytes of one
    * itemsize =>
That is what all ranks together send; one of them is asked for
    (2 * numel - length(rank) - length(rank + 1)) => 2 * (ranks - 1) * numel
That is the reduce-scatter alone; the all-gather comes on top
    2 * numel - length(rank) - length(rank + 1) => numel - length(rank)
That is more than it sends: each of the two halves leaves out one chunk
    - length(rank + 1) => - length(rank + 1) * (ranks == 1)
Chunks differ by one element, and in each half this rank never sends another one
    length(rank + 1) => length(rank)
You say the same for each rank, as where N divides: a division rounds. Which one chunk does this rank never send?
    (2 * numel - length(rank) - length(rank + 1)) => round(2 * (ranks - 1) / ranks * numel)
That need not be whole elements: a division rounds. Which one chunk does this rank never send, in each half?
    (2 * numel - length(rank) - length(rank + 1)) * itemsize => 2 * (ranks - 1) * numel * itemsize // ranks
"""


def bytes_cases(rng: Random) -> list[Case]:
    # Elements of 4 bytes come first: of others, one mistake's bytes may be those of another. Then 4 is wrong.
    shapes = [(ranks, rng.randint(20, 2000), itemsize) for ranks in (1, 2, 3, 4) for itemsize in (4, 2, 8)]
    # The first three differ in one thing from each to the next: what an answer keeps by the others shows.
    shapes += [(4, 10, 4), (4, 10, 8), (3, 10, 8), (3, 12, 2), (4, 3, 8), (3, 1, 4), (3, 0, 4)]
    return [Case([(numel, itemsize, ranks, rank) for rank in range(ranks)]) for ranks, numel, itemsize in shapes]


EXERCISE = Exercise(
    "ring_bytes",
    bytes_cases,
    (
        Claim(
            "what you predict is what the meter counts",
            Gives(
                look="Which one chunk does this rank never send, in each half, and how long is it?",
                say=lambda args, got, want: f"you say {short(got)} bytes, and the meter counts {want}",
            ),
        ),
    ),
    run=alone,
    hints=(
        "In each half a rank sends every chunk but one, so the cost is two tensors less two chunks.",
        "In the reduce-scatter a rank never sends the chunk that ends with it.",
        "In the all-gather it never sends the chunk that its right neighbour began with: ask chunk_bounds for "
        "both, the index modulo ranks.",
    ),
    mistakes=MISTAKES,
    text=TEXT,
    answer=(ring_bytes,),
    points=1,
)
