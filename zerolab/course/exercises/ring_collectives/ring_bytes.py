"""Exercise of lesson 01 that sends nothing: what a ring costs."""

from __future__ import annotations

from random import Random

from zerolab.collectives import wire_bytes
from zerolab.course.judge.case import Case, Observation, plural
from zerolab.course.judge.claims import short
from zerolab.course.judge.exercise import Claim, Exercise, alone


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
    want = [wire_bytes("all_reduce", numel, itemsize, ranks, rank) for rank in range(ranks)]
    got = [record.value for record in seen.records]
    if got == want:
        whole = all(isinstance(nbytes, int) for nbytes in got)
        return (
            None
            if whole
            else f"{case.about}: you say {short(got)}: the numbers are right, but bytes are whole; divide with //"
        )
    what = f"{case.about}: you say {short(got)}, the meter counts {want}"
    if ranks == 1:
        return f"{what}. One rank has nobody to send to: a ring takes N-1 steps"
    if got == [(ranks - 1) * numel * itemsize] * ranks:
        return f"{what}. (N-1) whole tensors is what sending everything to everybody costs; a ring passes chunks"
    if itemsize != 4 and got == [want_ * 4 // itemsize for want_ in want]:
        return f"{what}. You took 4 bytes for an element; `itemsize` says how many it has"
    if got == [want_ // itemsize for want_ in want]:
        return f"{what}. You counted elements; multiply by the bytes of one"
    if got == [sum(want)] * ranks:
        return f"{what}. That is what all ranks together send; one of them is asked for"
    if got == [wire_bytes("reduce_scatter", numel, itemsize, ranks, rank) for rank in range(ranks)]:
        return f"{what}. That is the reduce-scatter alone; the all-gather comes on top"
    close = all(
        isinstance(n, int | float) and abs(n - w) <= 2 * ranks * itemsize for n, w in zip(got, want, strict=True)
    )
    if close and len(set(got)) == 1:
        cut = f", and {got[0]} are not whole elements of {itemsize}" if got[0] % itemsize else ""
        same = f"{what}. You say the same for each rank, as where N divides{cut}: a division rounds"
        return f"{same}. Which one chunk does this rank never send, in each half, and how long is it?"
    if close:
        return f"{what}. Chunks differ by one element: which one does this rank never send, in each half?"
    if got == [8 * nbytes for nbytes in want]:
        return f"{what}. Those are bits: itemsize is in bytes, and so is what is asked for"
    if all(isinstance(n, int | float) and n > w for n, w in zip(got, want, strict=True)):
        return f"{what}. That is more than it sends: each of the two halves leaves out one chunk"
    return what


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
)
