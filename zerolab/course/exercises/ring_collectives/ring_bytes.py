"""Exercise of lesson 01 that sends nothing: what a ring costs."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

from zerolab.collectives import wire_bytes
from zerolab.course.exercises.ring_collectives.chunk_bounds import chunk_bounds
from zerolab.course.judge.case import Case, Observation, plural
from zerolab.course.judge.exercise import Claim, Exercise, alone
from zerolab.course.judge.mistakes import named
from zerolab.course.judge.same import is_whole, short

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


def bytes_cases(rng: Random) -> list[Case]:
    # Elements of 4 bytes come first: of others, one mistake's bytes may be those of another. Then 4 is wrong.
    shapes = [
        (ranks, rng.randint(20, 2000), itemsize) for ranks in (1, 2, 3, 4) for itemsize in (4, rng.choice([2, 8]))
    ]
    # The first three differ in one thing from each to the next: what an answer keeps by the others shows.
    shapes += [(4, 10, 4), (4, 10, 8), (3, 10, 8), (3, 12, 2), (4, 3, 8), (3, 1, 4), (3, 0, 4)]
    return [
        Case(
            [(numel, itemsize, ranks, rank) for rank in range(ranks)],
            about=f"{plural(numel, 'element')} of {itemsize} bytes over {plural(ranks, 'rank')}",
        )
        for ranks, numel, itemsize in shapes
    ]


def bytes_are_right(case: Case, seen: Observation) -> str | None:
    numel, itemsize, ranks, _ = case.args[0]
    want, halves = (
        [wire_bytes(name, numel, itemsize, ranks, rank) for rank in range(ranks)]
        for name in ("all_reduce", "reduce_scatter")
    )
    got = [record.value for record in seen.records]
    if got == want:
        whole = all(isinstance(nbytes, int) for nbytes in got)
        return None if whole else f"you say {short(got)}: the numbers are right, but bytes are whole; divide with //"
    mistakes: dict[str, bool | list[Any]] = {
        "One rank has nobody to send to: a ring takes N-1 steps": ranks == 1,
        "(N-1) whole tensors is what sending everything to everybody costs; a ring passes chunks": (
            [(ranks - 1) * numel * itemsize] * ranks
        ),
        "You took 4 bytes for an element; `itemsize` says how many it has": [each * 4 // itemsize for each in want],
        "You counted elements; multiply by the bytes of one": [each // itemsize for each in want],
        "That is what all ranks together send; one of them is asked for": [sum(want)] * ranks,
        "That is the reduce-scatter alone; the all-gather comes on top": halves,
        same_for_all(got, itemsize): close(got, want, itemsize) and len(set(got)) == 1,
        "Chunks differ by one element: which one does this rank never send, in each half?": close(got, want, itemsize),
        "Those are bits: itemsize is in bytes, and so is what is asked for": [8 * nbytes for nbytes in want],
        "That is more than it sends: each of the two halves leaves out one chunk": (
            all(isinstance(n, int | float) and n > due for n, due in zip(got, want, strict=True))
        ),
    }
    said = f"you say {short(got)}, the meter counts {want}"
    why = named(mistakes, lambda gives: gives if isinstance(gives, bool) else got == gives)
    return f"{said}. {why}" if why else said


def close(got: Sequence[Any], want: Sequence[int], itemsize: int) -> bool:
    near = 2 * len(want) * itemsize
    return all(isinstance(n, int | float) and abs(n - due) <= near for n, due in zip(got, want, strict=True))


def same_for_all(got: Sequence[Any], itemsize: int) -> str:
    cut = f", and {got[0]} are not whole elements of {itemsize}" if is_whole(got[0]) and got[0] % itemsize else ""
    said = f"You say the same for each rank, as where N divides{cut}: a division rounds"
    return f"{said}. Which one chunk does this rank never send, in each half, and how long is it?"


EXERCISE = Exercise(
    "ring_bytes",
    bytes_cases,
    (Claim("what you predict is what the meter counts", bytes_are_right),),
    run=alone,
    hints=(
        "In each half a rank sends every chunk but one, so the cost is two tensors less two chunks.",
        "In the reduce-scatter a rank never sends the chunk that ends with it.",
        "In the all-gather it never sends the chunk that its right neighbour began with: ask chunk_bounds for "
        "both, the index modulo ranks.",
    ),
    text=TEXT,
    answer=(ring_bytes,),
    points=1,
)
