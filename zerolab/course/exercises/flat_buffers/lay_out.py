"""Exercise of lesson 02: where parameters lie in a row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from zerolab.course.exercises.twice import LEAVES_ITS_INPUT, REMEMBERS, in_turn, twice
from zerolab.course.judge.case import Case, plural
from zerolab.course.judge.claims import part
from zerolab.course.judge.exercise import Claim, Exercise
from zerolab.course.judge.mistakes import Mistakes, answers, you_say
from zerolab.flat.layout import round_up

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


def laid(
    numels: Sequence[int], start: Callable[[int], int], length: Callable[[int], int], least: int = 0
) -> tuple[list[int], int]:
    """Starts and length under given rules: `start` of a parameter and `length` of the row, from where things end."""
    starts, end = [], 0
    for numel in numels:
        starts.append(start(end))
        end = starts[-1] + max(numel, least)
    return starts, length(end)


def lay_out_cases(rng: Random) -> list[Case]:
    shapes = [([6, 1], 2, 4), ([8, 4, 4], 2, 4), ([5, 0, 3], 3, 2), ([], 4, 8), ([7], 4, 1)]
    shapes += [([0, 0], 3, 4), ([0], 2, 1), ([5, 7], 2, 6), ([4, 9, 2], 2, 3), ([290, 3, 8], 3, 4)]
    for ranks in (2, 3, 4, 1, 8):
        numels = [rng.randint(0, 40) for _ in range(rng.randint(2, 6))]
        shapes.append((numels, ranks, rng.choice((1, 2, 4, 6, 16))))
    # From each to the next one thing differs: ranks, align, then the sizes, of which sum, beginning or end stay.
    chain = [([6, 7], 2, 4), ([6, 7], 3, 4), ([6, 7], 3, 2), ([7, 6], 3, 2), ([9, 6], 3, 2), ([9, 16], 3, 2)]
    cases, others = ([Case([one], about=layout_about(*one)) for one in several] for several in (shapes, chain))
    return [*cases, *in_turn(others)]


def layout_about(numels: Sequence[int], ranks: int, align: int) -> str:
    return f"parameters of {list(numels)} elements, {plural(ranks, 'rank')}, align={align}"


LAID_OUT_WRONG: Mistakes = {
    "Parameters lie one behind the other here; each starts at a multiple of align": (
        lambda numels, ranks, align: laid(numels, lambda end: end, lambda end: round_up(end, ranks * align))
    ),
    "The starts are right; the length is a multiple of ranks only, and shards have to start at round places, too": (
        lambda numels, ranks, align: laid(numels, lambda end: round_up(end, align), lambda end: round_up(end, ranks))
    ),
    "The starts are right; the length is a multiple of align only: shards may be unequal, or begin at odd places": (
        lambda numels, ranks, align: laid(numels, lambda end: round_up(end, align), lambda end: round_up(end, align))
    ),
    "The starts are right; you return the end of the last parameter, without padding for the ranks": (
        lambda numels, ranks, align: laid(numels, lambda end: round_up(end, align), lambda end: end)
    ),
    "Masks of bits round to powers of two alone, and align may be any number": (
        lambda numels, ranks, align: laid(
            numels, lambda end: (end + align - 1) & ~(align - 1), lambda end: round_up(end, ranks * align)
        )
    ),
    "Parameters without elements take no place, also where there are no others, and 0 is a multiple, too": (
        lambda numels, ranks, align: (
            lay_out(numels, ranks, align)[0],
            lay_out(numels, ranks, align)[1] or (ranks * align if numels else 0),
        )
    ),
    "Without parameters there is nothing to hold, and 0 is a multiple, too": (
        lambda numels, ranks, align: (
            lay_out(numels, ranks, align)[0], max(lay_out(numels, ranks, align)[1], ranks * align)
        )
    ),
    "A parameter without elements takes no place, and yet its start is a multiple of align like any other": (
        lambda numels, ranks, align: (
            [
                start if numels[n] or not n else lay_out(numels, ranks, align)[0][n - 1] + numels[n - 1]
                for n, start in enumerate(lay_out(numels, ranks, align)[0])
            ],
            lay_out(numels, ranks, align)[1],
        )
    ),
    "The starts are right; the length is one unit longer than it must be where parameters fill the row already": (
        lambda numels, ranks, align: (
            lay_out(numels, ranks, align)[0],
            (laid(numels, lambda end: round_up(end, align), int)[1] // (ranks * align) + 1) * ranks * align,
        )
    ),
    "Only the end of the row is a multiple of ranks * align, not the end of each parameter": (
        lambda numels, ranks, align: laid(
            numels, lambda end: round_up(end, ranks * align), lambda end: round_up(end, ranks * align)
        )
    ),
    "Each parameter has a start, also one without elements": (
        lambda numels, ranks, align: lay_out([numel for numel in numels if numel], ranks, align)
    ),
    "You round up what is a multiple already; look at what your formula makes of align itself": (
        lambda numels, ranks, align: laid(
            numels,
            lambda end: (end // align + 1) * align,
            lambda end: (end // (ranks * align) + 1) * ranks * align,
        )
    ),
    "A parameter without elements takes no place; the next may start where it does": (
        lambda numels, ranks, align: laid(
            numels, lambda end: round_up(end, align), lambda end: round_up(end, ranks * align), least=1
        )
    ),
    "You put padding behind a parameter that needs none; look at what your formula makes of align itself": (
        lambda numels, ranks, align: laid(
            [(numel // align + 1) * align for numel in numels],
            lambda end: end,
            lambda end: round_up(end, ranks * align),
        )
    ),
    "You say where parameters end; the list wants where they start": (
        lambda numels, ranks, align: (
            [start + numel for start, numel in zip(lay_out(numels, ranks, align)[0], numels, strict=True)],
            lay_out(numels, ranks, align)[1],
        )
    ),
    "You round starts down, so that parameters overlap": (
        lambda numels, ranks, align: laid(
            numels, lambda end: end // align * align, lambda end: round_up(end, ranks * align)
        )
    ),
    "You round starts and length down, so that parameters overlap and do not fit": (
        lambda numels, ranks, align: laid(
            numels, lambda end: end // align * align, lambda end: end // (ranks * align) * ranks * align
        )
    ),
}  # fmt: skip
EXERCISE = Exercise(
    "lay_out",
    lay_out_cases,
    (
        Claim(
            "starts are round, and the length gives equal, round shards",
            part(
                "first", answers(lay_out, LAID_OUT_WRONG, "Lay two small parameters out by hand, and compare", you_say)
            ),
        ),
        REMEMBERS,
        LEAVES_ITS_INPUT,
    ),
    run=twice,
    hints=(
        "Rounding up to a multiple happens twice: for each start, and once for the length.",
        "Keep one number, where the last parameter ends; -(-a // b) is a / b rounded up.",
    ),
    text=TEXT,
    answer=(lay_out,),
    points=2,
)
