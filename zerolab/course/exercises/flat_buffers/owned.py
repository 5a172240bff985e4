"""Exercise of lesson 02: who owns what of a row."""

from __future__ import annotations

from random import Random

from zerolab.course.exercises.flat_buffers.lay_out import lay_out
from zerolab.course.judge.case import Case
from zerolab.course.judge.exercise import Claim, Exercise, alone
from zerolab.course.judge.model import Gives

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


MISTAKES = r"""
You count from the start of the row; start and stop count from the start of the parameter
    append((number, start, stop)) => append((number, start + begin, stop + begin))
You count from the start of the shard; start and stop count from the start of the parameter
    append((number, start, stop)) => append((number, start + begin - rank * shard, stop + begin - rank * shard))
Padding belongs to nobody: a parameter stops after its own elements, not where the next one starts
    - begin, numel) => - begin, [*starts[1:], length][number] - begin)
A parameter does not belong whole to the rank in whose shard it starts; shards cut through it
    max(rank * shard - begin, 0) => 0
    min((rank + 1) * shard - begin, numel) => numel if begin // shard == rank else 0
A piece of no elements does not appear: what must hold between start and stop?
    start < stop => start <= stop
You list every parameter; those that the shard does not meet come out with a stop before their start
    if start < stop => if True
You cut each parameter into equal parts; it is the row that is cut, once
    max(rank * shard - begin, 0) => rank * numel // ranks
    min((rank + 1) * shard - begin, numel) => (rank + 1) * numel // ranks
Stop is one past the last element, as in range and in slices
    append((number, start, stop)) => append((number, start, stop - 1))
"""


def owned_cases(rng: Random) -> list[Case]:
    shapes = [([6, 3], 2, 4), ([7, 0, 30], 3, 2), ([3], 4, 1), ([8, 8], 2, 8), ([], 3, 4)]
    for ranks in (2, 3, 4, 1):
        numels = [rng.randint(0, 40) for _ in range(rng.randint(2, 5))]
        shapes.append((numels, ranks, rng.choice((1, 2, 4))))
    cases = []
    for numels, ranks, align in shapes:
        starts, length = lay_out(numels, ranks, align)
        cases.append(Case([(starts, numels, length, ranks, rank) for rank in range(ranks)]))
    # From each to the next one argument differs; of sizes, their sum, beginning or end stay.
    chain = [([0, 8], [6, 7], 16, 2, 0), ([0, 8], [6, 7], 16, 2, 1), ([0, 8], [6, 7], 16, 4, 1)]
    for starts, length in (([0, 6], 16), ([0, 8], 16), ([0, 8], 32), ([0, 8], 16)):
        chain.append((starts, [6, 7], length, 4, 1))
    chain += [([0, 8], numels, 16, 4, 1) for numels in ([7, 6], [5, 6])]
    chain += [([0, 8], numels, 16, 4, 3) for numels in ([5, 6], [5, 7])]
    return [*cases, *(Case([args]) for args in chain)]


EXERCISE = Exercise(
    "owned",
    owned_cases,
    (Claim("each rank gets the pieces in its shard", Gives(look="Draw the row, and the borders of the shards on it")),),
    run=alone,
    hints=(
        "The shard of a rank is a range [first, last) of the row. What does it share with [start, start + numel)?",
        "Two ranges share max(starts) to min(stops), if that is not empty. Then count from the parameter's start.",
    ),
    mistakes=MISTAKES,
    text=TEXT,
    answer=(owned,),
    points=2,
)
