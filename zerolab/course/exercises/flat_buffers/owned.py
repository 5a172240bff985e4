"""Exercise of lesson 02: who owns what of a row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from zerolab.course.exercises.flat_buffers.lay_out import lay_out
from zerolab.course.exercises.twice import LEAVES_ITS_INPUT, REMEMBERS, in_turn, twice
from zerolab.course.judge.case import Case, plural
from zerolab.course.judge.claims import part
from zerolab.course.judge.exercise import Claim, Exercise
from zerolab.course.judge.mistakes import Mistakes, answers, you_say

TEXT = """
Who owns what

The row is cut into `ranks` equal shards, in order of rank. Which elements of which parameters does the shard of
`rank` hold? Return a list of `(number, start, stop)`: the number of the parameter, and the range `[start, stop)` of
*its* elements, counted from its own first one.

The pieces come in order. Pieces without elements are left out, and padding never appears. `starts` and `length` are
as in exercise 1; `length` is a multiple of `ranks`. The check draws rows of all kinds, also one without parameters.
About seven lines.
"""


def owned(starts: list[int], numels: list[int], length: int, ranks: int, rank: int) -> list[tuple[int, int, int]]:
    """(number, start, stop) of each piece of a parameter in this rank's shard."""
    ### BEGIN SOLUTION
    shard = length // ranks
    pieces = []
    for number, (begin, numel) in enumerate(zip(starts, numels, strict=True)):
        start = max(rank * shard - begin, 0)
        stop = min((rank + 1) * shard - begin, numel)
        if start < stop:
            pieces.append((number, start, stop))
    return pieces
    ### END SOLUTION


def owned_cases(rng: Random) -> list[Case]:
    shapes = [([6, 3], 2, 4), ([7, 0, 30], 3, 2), ([3], 4, 1), ([8, 8], 2, 8), ([], 3, 4)]
    for ranks in (2, 3, 4, 1):
        numels = [rng.randint(0, 40) for _ in range(rng.randint(2, 5))]
        shapes.append((numels, ranks, rng.choice((1, 2, 4))))
    cases = []
    for numels, ranks, align in shapes:
        starts, length = lay_out(numels, ranks, align)
        what = f"starts {starts}, sizes {numels}, a row of {length} on {plural(ranks, 'rank')}"
        cases.append(Case([(starts, numels, length, ranks, rank) for rank in range(ranks)], about=what))
    return [*cases, *in_turn([Case([args], about=row_about(*args)) for args in CHAIN])]


def row_about(starts: Sequence[int], numels: Sequence[int], length: int, ranks: int, rank: int) -> str:
    return f"starts {list(starts)}, sizes {list(numels)}, a row of {length} on {plural(ranks, 'rank')}, rank {rank}"


# From each to the next one argument differs; of sizes, their sum, beginning or end stay.
CHAIN = (
    ([0, 8], [6, 7], 16, 2, 0),
    ([0, 8], [6, 7], 16, 2, 1),
    ([0, 8], [6, 7], 16, 4, 1),
    ([0, 6], [6, 7], 16, 4, 1),
    ([0, 8], [6, 7], 16, 4, 1),
    ([0, 8], [6, 7], 32, 4, 1),
    ([0, 8], [6, 7], 16, 4, 1),
    ([0, 8], [7, 6], 16, 4, 1),
    ([0, 8], [5, 6], 16, 4, 1),
    ([0, 8], [5, 6], 16, 4, 3),
    ([0, 8], [5, 7], 16, 4, 3),
)


def right_owned(starts: Sequence[int], numels: Sequence[int], length: int, ranks: int, rank: int) -> list[Any]:
    return [
        (number, a - starts[number], b - starts[number]) for number, a, b in cut(starts, numels, length, ranks, rank)
    ]


def cut(
    starts: Sequence[int], numels: Sequence[int], length: int, ranks: int, rank: int, least: int = 1
) -> list[tuple[int, int, int]]:
    """(parameter, start, stop) of what a rank owns, counted in the row."""
    first, last = rank * (length // ranks), (rank + 1) * (length // ranks)
    spans = enumerate(zip(starts, numels, strict=True))
    clipped = [(number, max(start, first), min(start + numel, last)) for number, (start, numel) in spans]
    return [piece for piece in clipped if piece[2] - piece[1] >= least]


def with_padding(starts: Sequence[int], numels: Sequence[int], length: int, ranks: int, rank: int) -> list[Any]:
    padded = [stop - start for start, stop in zip(starts, [*starts[1:], length], strict=True)]
    return right_owned(starts, padded, length, ranks, rank)


def whole_parameters(starts: Sequence[int], numels: Sequence[int], length: int, ranks: int, rank: int) -> list[Any]:
    shard = max(length // ranks, 1)
    at = enumerate(zip(starts, numels, strict=True))
    return [(number, 0, numel) for number, (start, numel) in at if start // shard == rank and numel]


def with_empty(least: int) -> Callable[..., Any]:
    """`owned` that leaves out only what is shorter than `least`."""

    def pieces(starts: Sequence[int], numels: Sequence[int], length: int, ranks: int, rank: int) -> list[Any]:
        return [(n, a - starts[n], b - starts[n]) for n, a, b in cut(starts, numels, length, ranks, rank, least)]

    return pieces


OWNED_WRONG: Mistakes = {
    "You count from the start of the row; start and stop count from the start of the parameter": cut,
    "You count from the start of the shard; start and stop count from the start of the parameter": (
        lambda *args: [(n, *(at - args[4] * (args[2] // args[3]) for at in ab)) for n, *ab in cut(*args)]
    ),
    "Padding belongs to nobody: a parameter stops after its own elements, not where the next one starts": with_padding,
    "A parameter does not belong whole to the rank in whose shard it starts; shards cut through it": whole_parameters,
    "A piece of no elements does not appear: what must hold between start and stop?": with_empty(0),
    "You list every parameter; those that the shard does not meet come out with a stop before their start": (
        with_empty(-(10**9))
    ),
    "You cut each parameter into equal parts; it is the row that is cut, once": (
        lambda starts, numels, length, ranks, rank: [
            (number, rank * numel // ranks, (rank + 1) * numel // ranks)
            for number, numel in enumerate(numels) if rank * numel // ranks < (rank + 1) * numel // ranks
        ]
    ),
    "Stop is one past the last element, as in range and in slices": (
        lambda *args: [(number, start, stop - 1) for number, start, stop in right_owned(*args)]
    ),
}  # fmt: skip
EXERCISE = Exercise(
    "owned",
    owned_cases,
    (
        Claim(
            "each rank gets the pieces that lie in its shard, and nothing else",
            part("first", answers(owned, OWNED_WRONG, "Draw the row, and the borders of the shards on it", you_say)),
        ),
        REMEMBERS,
        LEAVES_ITS_INPUT,
    ),
    run=twice,
    hints=(
        "The shard of a rank is a range [first, last) of the row. What does it share with [start, start + numel)?",
        "Two ranges share max(starts) to min(stops), if that is not empty. Then count from the parameter's start.",
    ),
    text=TEXT,
    answer=(owned,),
    points=2,
)
