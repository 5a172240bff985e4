"""Exercise of lesson 02: where parameters lie in a row."""

from __future__ import annotations

from random import Random

from zerolab.course.judge.case import Case
from zerolab.course.judge.exercise import Claim, Exercise, alone
from zerolab.course.judge.model import Gives

TEXT = """
Where parameters lie

`numels` are the sizes of parameters, in elements. Lay them end to end in a row that `ranks` ranks will share, and
return a list with the start of each, and the length of the row.

- Each start is a multiple of `align`: the smallest one at which the parameter before has ended.
- The length is the smallest multiple of `ranks * align` that holds them all.
- A parameter may have no elements. It has a start, but takes no place. A list without parameters makes a row of
  length 0, and so does one in which none has elements.

The check draws sizes, ranks, and an `align` that is any number from 1 on. About six lines.
"""


def lay_out(numels: list[int], ranks: int, align: int) -> tuple[list[int], int]:
    """The start of each parameter, and the length of the row."""
    ### BEGIN SOLUTION
    starts, end = [], 0
    for numel in numels:
        starts.append(-(-end // align) * align)
        end = starts[-1] + numel
    return starts, -(-end // (ranks * align)) * ranks * align
    ### END SOLUTION


MISTAKES = r"""
Parameters lie one behind the other here; each starts at a multiple of align
    -(-end // align) * align) => end)
The starts are right; the length is a multiple of ranks only, and shards have to start at round places, too
    -(-end // (ranks * align)) * ranks * align => -(-end // ranks) * ranks
The starts are right; the length is a multiple of align only: shards may be unequal, or begin at odd places
    -(-end // (ranks * align)) * ranks * align => -(-end // align) * align
The starts are right; you return the end of the last parameter, without padding for the ranks
    -(-end // (ranks * align)) * ranks * align => end
Masks of bits round to powers of two alone, and align may be any number
    -(-end // align) * align) => (end + align - 1) & ~(align - 1))
A parameter without elements takes no place, and yet its start is a multiple of align like any other
    -(-end // align) * align) => -(-end // align) * align if numel else end)
You round up what is a multiple already; look at what your formula makes of align itself
    -(-end // align) => (end // align + 1)
    -(-end // (ranks * align)) => (end // (ranks * align) + 1)
A parameter without elements takes no place; the next may start where it does
    + numel => + max(numel, 1)
You put padding behind a parameter that needs none; look at what your formula makes of align itself
    + numel => + (numel // align + 1) * align
You say where parameters end; the list wants where they start
    return starts, => return [start + numel for start, numel in zip(starts, numels, strict=True)],
"""


def lay_out_cases(rng: Random) -> list[Case]:
    cases = [([6, 1], 2, 4), ([8, 4, 4], 2, 4), ([5, 0, 3], 3, 2), ([], 4, 8), ([7], 4, 1)]
    cases += [([0, 0], 3, 4), ([0], 2, 1), ([5, 7], 2, 6), ([4, 9, 2], 2, 3), ([290, 3, 8], 3, 4)]
    for ranks in (2, 3, 4, 1, 8):
        numels = [rng.randint(0, 40) for _ in range(rng.randint(2, 6))]
        cases.append((numels, ranks, rng.choice((1, 2, 4, 6, 16))))
    # From each to the next one thing differs: ranks, align, then the sizes, of which sum, beginning or end stay.
    cases += [([6, 7], 2, 4), ([6, 7], 3, 4), ([6, 7], 3, 2), ([7, 6], 3, 2), ([9, 6], 3, 2), ([9, 16], 3, 2)]
    return [Case([case]) for case in cases]


EXERCISE = Exercise(
    "lay_out",
    lay_out_cases,
    (Claim("starts are round, and shards are equal", Gives(look="Lay two small parameters out by hand, and compare")),),
    run=alone,
    hints=(
        "Rounding up to a multiple happens twice: for each start, and once for the length.",
        "Keep one number, where the last parameter ends; -(-a // b) is a / b rounded up.",
    ),
    mistakes=MISTAKES,
    text=TEXT,
    answer=(lay_out,),
    points=2,
)
