"""Exercise of lesson 01 that sends nothing: where a rank's chunk lies."""

from __future__ import annotations

from random import Random

from zerolab.course.judge.case import Case, Observation, Record, plural
from zerolab.course.judge.claims import each_rank
from zerolab.course.judge.exercise import Claim, Exercise, alone
from zerolab.course.judge.same import short
from zerolab.flat.layout import chunk_bounds as right_bounds
from zerolab.flat.layout import chunk_sizes

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


def bounds_cases(rng: Random) -> list[Case]:
    # 11 over 4: a rest of three tells mistakes apart.
    numels = [(1, rng.randint(1, 40)), (4, 11)]
    numels += [(ranks, rng.randint(0, 40)) for ranks in (1, 2, 3, 4) for _ in range(2)]
    # As many elements on other ranks: what an answer keeps by their number shows.
    numels += [(4, 2), (3, 9), (4, 10), (3, 10), (3, 0)]
    return [
        Case(
            [(numel, ranks, rank) for rank in range(ranks)],
            about=f"{plural(numel, 'element')} over {plural(ranks, 'rank')}",
        )
        for ranks, numel in numels
    ]


@each_rank
def bounds_are_pairs(case: Case, rank: int, record: Record) -> str | None:
    value = record.value
    if isinstance(value, list) and len(value) == 2 and all(isinstance(edge, int) for edge in value):
        return None
    return f"chunk_bounds{case.args[rank]} returned {short(value)}: return two whole numbers, (start, stop)"


def bounds_are_right(case: Case, seen: Observation) -> str | None:
    numel, ranks, _ = case.args[0]
    got = [tuple(record.value) for record in seen.records]
    want = right_bounds(numel, ranks)
    if got == want:
        return None
    return f"your chunks are {got}; {why_bounds(got, numel, ranks)}"


def why_bounds(got: list[tuple[int, int]], numel: int, ranks: int) -> str:
    """What gave these bounds, if it is a known mistake."""
    want, short_one = right_bounds(numel, ranks), numel // ranks
    if got == [(start, stop - 1) for start, stop in want]:
        return "stop is the first element that is no longer in the chunk"
    if got == [(start, stop - start) for start, stop in want]:
        return "the second number is a length; where does the chunk stop?"
    if got == [*want[1:], (numel, numel + short_one)]:
        return "ranks count from 0, so rank 0's chunk starts at 0"
    for rank in range(1, ranks):
        if got[rank][0] < got[rank - 1][1]:
            return f"rank {rank}'s starts before rank {rank - 1}'s stops: how many longer ones lie before it?"
    if got[-1][1] < numel:
        return f"they leave {numel - got[-1][1]} at the end to nobody"
    if got[-1][1] > numel:
        return f"the last one stops at {got[-1][1]}, and there are {numel} elements: which ranks have one more?"
    if got == [(rank * short_one, (rank + 1) * short_one) for rank in range(ranks - 1)] + [
        ((ranks - 1) * short_one, numel)
    ]:
        return "the last rank has all the rest, and each rank may have one of it"
    lengths = [stop - start for start, stop in got]
    if sorted(lengths) == sorted(chunk_sizes(numel, ranks)):
        return "the longer ones belong to the first ranks"
    if max(lengths) == -(-numel // ranks):
        return "no two lengths may differ by more than one: not every chunk is as long as the longest"
    if max(lengths) - min(lengths) > 1:
        return "no two lengths may differ by more than one: each of the first ranks has one of what is left over"
    return f"they should be {want}"


EXERCISE = Exercise(
    "chunk_bounds",
    bounds_cases,
    (
        Claim("it returns a start and a stop", bounds_are_pairs),
        Claim("chunks lie end to end, the longer ones first", bounds_are_right),
    ),
    run=alone,
    hints=(
        "divmod(numel, ranks) gives the length of a short chunk, and how many chunks are one longer.",
        "A chunk's start is the length of all chunks before it: how many of those are longer ones?",
        "Before rank r lie r chunks, and min(r, the number of longer ones) of them have one element more.",
    ),
    text=TEXT,
    answer=(chunk_bounds,),
    points=1,
)
