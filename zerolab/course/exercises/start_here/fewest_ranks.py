"""The last exercise of lesson 00, a claim to test: "stage 1 saves 4 times"."""

from __future__ import annotations

from random import Random

from zerolab.course.exercises.start_here.state_bytes import FP32, MEGATRON, MIXED, MOMENTUM, PLAIN_SGD
from zerolab.course.judge.case import Case
from zerolab.course.judge.exercise import Claim, Exercise, alone
from zerolab.course.judge.model import Gives

TEXT = """
A claim to test

*"Stage 1 saves four times."* Stage 0 keeps the whole recipe for each parameter; stage 1, 2 or 3 keeps some of it
whole and the rest divided by N. The factor is the quotient of the two.

Return the fewest ranks on which `stage` saves at least `factor` times, or `None` if no number of ranks is enough,
however large. `factor` is more than 1, and `stage` is 1, 2 or 3. Count bytes a parameter with even shares, without
whole elements. A factor that is reached exactly counts, so compare without dividing: floating-point division rounds.
About seven lines. The check draws several recipes and factors of few binary digits, so that products with them are
exact: some are reached exactly, some never, and some take up to 300,000 ranks.
"""


def fewest_ranks(factor: float, stage: int, recipe: tuple[int, int, int]) -> int | None:
    """The fewest ranks on which a stage saves `factor` times, or None."""
    ### BEGIN SOLUTION
    whole, shared = sum(recipe[: 3 - stage]), sum(recipe[3 - stage :])
    if whole * factor >= whole + shared:
        return None
    ranks = 1
    while (whole + shared) * ranks < factor * (whole * ranks + shared):
        ranks += 1
    return ranks
    ### END SOLUTION


MISTAKES = r"""
It is not yet reached: round up
    ranks = 1 => return int(factor * shared / (whole + shared - factor * whole))
One rank fewer reaches the factor exactly, which is enough: is it > where >= is due?
    ranks < factor => ranks <= factor
Only what is shared out shrinks with N; the rest stays whole
    ranks = 1 => return -int(-factor // 1)
That is the answer for fp32 with Adam: read the bytes from recipe, from its end
    whole, shared = => recipe = (4, 4, 8)\n    whole, shared =
That is the answer for the stage below: this one shares out one kind more
    whole, shared = => stage = max(stage - 1, 1)\n    whole, shared =
That is the answer for the stage above, which shares out more: which kinds stay whole?
    whole, shared = => stage = min(stage + 1, 3)\n    whole, shared =
Ranks need not be a power of two
    return ranks => return 2 ** (ranks - 1).bit_length()
However many it takes: ask first whether it is ever reached, then count without a bound
    return ranks => return ranks if ranks <= 200_000 else None
That is a hair less than the factor: allow no tolerance, and do not round before you round up
    ranks < factor => ranks * (1 + 1e-9) < factor
Dividing by the factor rounds: a factor that is reached exactly counts
    ranks = 1 => return -int(-shared / ((whole + shared) / factor - whole) // 1)
Where you divide, it rounds: a factor that is reached exactly counts, so compare without dividing
    (whole + shared) * ranks < factor * (whole * ranks + shared) => (whole + shared) / (whole + shared / ranks) < factor
"""


def fewest_cases(rng: Random) -> list[Case]:
    # A limit, and what is beyond it.
    asked = [(3.125, 1, MIXED), (2, 1, MIXED), (4, 1, MIXED), (8, 2, MIXED), (4, 2, MIXED), (2, 1, FP32)]
    asked += [(rng.randint(5, 9), 1, MIXED), (rng.choice((1.25, 1.5, 2)), 1, PLAIN_SGD)]
    for recipe in (MIXED, FP32, MEGATRON, MOMENTUM):
        for stage in (1, 2, 3):
            total, whole = sum(recipe), sum(recipe[: 3 - stage])
            limit = total / whole if whole else 20
            factors = [quarter / 4 for quarter in range(5, int(4 * limit)) if quarter / 4 < limit]
            asked.append((rng.choice(factors), stage, recipe))
            # Reached exactly, on a number of ranks.
            exact = [total * ranks / (whole * ranks + total - whole) for ranks in range(2, 13)]
            asked.append((rng.choice([factor for factor in exact if factor * 4 % 1 == 0] or factors), stage, recipe))
    # Just below the limit of 4, which takes many ranks: no bound on N is safe, nor is a tolerance.
    asked += [(4 - below, 1, MIXED) for below in (5 / 2**9, 5 / 2 ** rng.randint(10, 15), rng.randint(44, 45) / 2**20)]
    # A hair more than 8 ranks, and than so many that no tolerance is safe.
    asked += [(4 - 1117 / 1024, 1, MIXED), (rng.randint(2, 8) + 2.0**-42, 3, MIXED)]
    # Reached exactly, and not if one divides: by the factor, by what a rank keeps, or by N alone.
    asked += [(2.25, 2, (2, 2, 8)), (4.125, 2, (1, 2, 8))]
    divided = ((52, 214, 411, 854), (58, 357, 449, 858), (170, 314, 397, 452))
    asked += [(rng.choice(whole_numbers), 3, (1, 2, 12)) for whole_numbers in divided]
    return [Case([args]) for args in asked]


EXERCISE = Exercise(
    "fewest_ranks",
    fewest_cases,
    (
        Claim(
            "it says how many ranks a factor takes, or that none suffice",
            Gives(look="Count up to the first N that reaches it, unless even a huge N does not; compare exactly"),
        ),
    ),
    run=alone,
    hints=(
        "Split the bytes a parameter in two: what stays whole at this stage, and what is divided by N.",
        "The factor is (whole + shared) / (whole + shared / N). What is it when N is huge? A factor as large as "
        "that is never reached.",
        "Once you know that it is reached, count N up from 1, for as long as it takes. Division of floats rounds, "
        "so multiply instead: is total * N >= factor * (whole * N + shared)?",
    ),
    mistakes=MISTAKES,
    text=TEXT,
    answer=(fewest_ranks,),
    points=2,
)
