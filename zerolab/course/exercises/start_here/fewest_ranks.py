"""The last exercise of lesson 00, a claim to test: "stage 1 saves 4 times"."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from math import ceil
from random import Random

from zerolab.course.exercises.start_here.claims import (
    FP32,
    MEGATRON,
    MIXED,
    MOMENTUM,
    PLAIN_SGD,
    Recipe,
    is_whole,
    unrounded,
)
from zerolab.course.judge.case import Case, Observation, plural
from zerolab.course.judge.exercise import Claim, Exercise, alone
from zerolab.course.judge.same import alike, short

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


def fewest_cases(rng: Random) -> list[Case]:
    cases = []

    def add(factor: float, stage: int, recipe: Recipe) -> None:
        said = f"{factor} times at stage {stage}, recipe {recipe}"
        cases.append(Case([(factor, stage, recipe)], about=said))

    add(3.125, 1, MIXED)
    add(2, 1, MIXED)
    # A limit, and what is beyond it.
    add(4, 1, MIXED)
    add(8, 2, MIXED)
    add(4, 2, MIXED)
    add(2, 1, FP32)
    add(rng.randint(5, 9), 1, MIXED)
    add(rng.choice((1.25, 1.5, 2)), 1, PLAIN_SGD)
    for recipe in (MIXED, FP32, MEGATRON, MOMENTUM):
        for stage in (1, 2, 3):
            limit = 20.0 if stage == 3 else sum(recipe) / sum(recipe[: 3 - stage])
            factors = [quarter / 4 for quarter in range(5, int(4 * limit)) if quarter / 4 < limit]
            add(rng.choice(factors), stage, recipe)
            # Reached exactly, on a number of ranks.
            exact = [float(saves(ranks, stage, recipe)) for ranks in range(2, 13)]
            add(rng.choice([factor for factor in exact if factor * 4 % 1 == 0] or factors), stage, recipe)
    # Just below the limit of 4, which takes many ranks: no bound on N is safe, nor is a tolerance.
    for below in (5 / 2**9, 5 / 2 ** rng.randint(10, 15), rng.randint(44, 45) / 2**20):
        add(4 - below, 1, MIXED)
    # A hair more than 8 ranks, and than so many that no tolerance is safe.
    add(4 - 1117 / 1024, 1, MIXED)
    add(rng.randint(2, 8) + 2.0**-42, 3, MIXED)
    # Reached exactly, and not if one divides.
    add(2.25, 2, (2, 2, 8))
    add(4.125, 2, (1, 2, 8))
    for divided in DIVIDED:
        add(*rounded_off(rng, divided))
    return cases


def solved(factor: float, stage: int, recipe: Recipe, ranks: int) -> bool:
    """Whether dividing by the factor gives so many ranks; the next two compare quotients and products."""
    return ceil(sum(recipe[3 - stage :]) / (sum(recipe) / factor - sum(recipe[: 3 - stage]))) == ranks


def quotients(factor: float, stage: int, recipe: Recipe, ranks: int) -> bool:
    return sum(recipe) / (sum(recipe[: 3 - stage]) + sum(recipe[3 - stage :]) / ranks) >= factor


def products(factor: float, stage: int, recipe: Recipe, ranks: int) -> bool:
    return sum(recipe) >= factor * (sum(recipe[: 3 - stage]) + sum(recipe[3 - stage :]) / ranks)


DIVIDED = (solved, quotients, products)
"""Ways to divide floats. Where the factor is reached exactly, each is wrong for some recipes and ranks."""


def rounded_off(rng: Random, divided: Callable[[float, int, Recipe, int], bool]) -> tuple[float, int, Recipe]:
    """A factor that is reached exactly, but not in the eyes of `divided`. It has few binary digits, so that products
    with it are exact."""
    while True:
        recipe, stage, ranks = rng.choice(((2, 4, 12), (2, 2, 8), (1, 2, 8), (1, 2, 12))), 3, rng.randint(50, 2000)
        factor = saves(ranks, stage, recipe)
        if not divided(float(factor), stage, recipe, ranks):
            return float(factor), stage, recipe


def fewest(factor: float, stage: int, recipe: Recipe) -> int | None:
    """The fewest ranks on which a stage keeps `factor` times less than stage 0."""
    shared = sum(recipe[3 - stage :])
    left = sum(recipe) - Fraction(factor) * (sum(recipe) - shared)
    return ceil(Fraction(factor) * shared / left) if left > 0 else None


def saves(ranks: int, stage: int, recipe: Recipe) -> Fraction:
    return Fraction(sum(recipe)) / sum(unrounded(1, ranks, stage, recipe))


def fewest_right(case: Case, seen: Observation) -> str | None:
    factor, stage, recipe = case.args[0]
    got, want = seen.records[0].value, fewest(factor, stage, recipe)
    if alike(got, want):
        return None
    said = f"you say {short(got) if got is not None else None}"
    if got is None:
        return why_none(f"{said}, and with {plural(want or 0, 'rank')} it is reached", factor, stage, recipe)
    if not is_whole(got) or got < 1:
        return f"{said}, and a whole number of ranks from 1 on, or None, is due"
    shown = f"{float(saves(got, stage, recipe)):.7g}"
    said = f"{said}, and on {plural(got, 'rank')} it saves {shown} times"
    if want is None:
        return why_never(said, factor, stage, recipe)
    if got < want:
        return f"{said}. {why_few(got, factor, stage, recipe)}"
    if got == 2 ** (want - 1).bit_length() > want + 1:
        return f"{said}. Ranks need not be a power of two: {want} are enough"
    if saves(want, stage, recipe) == factor:
        rounds = any(not divided(factor, stage, recipe, want) for divided in DIVIDED)
        why = ": where you divide, it rounds" if rounds else ": is it > where >= is due?"
        why = why if got == want + 1 else ""
        return f"{said}, and on {want} it is {factor} exactly, which is enough{why}"
    if got == want + 1:
        return f"{said}: one rank fewer is enough, so do not add 1 to what is rounded up"
    if got == fewest(factor, max(stage - 1, 1), recipe):
        return f"{said}. Does stage {stage} not share out one kind more?"
    return f"{said}, and {want} are enough"


MANY, VERY_MANY = 50, 200_000
"""Ranks up to which it is likelier that an answer misreads the recipe, or is too tolerant, than that it gives up."""
HAIR = 1e-3


def why_none(said: str, factor: float, stage: int, recipe: Recipe) -> str:
    if (fewest(factor, stage, recipe) or 0) > VERY_MANY:
        return f"{said}: however many it takes. Ask first whether it is ever reached, then count without a bound"
    if (fewest(factor, stage, recipe) or 0) > MANY:
        return f"{said}: so close below its limit a factor takes many. Do you stop counting, or allow a tolerance?"
    if stage > 1 and fewest(factor, stage - 1, recipe) is None:
        return f"{said}. At stage {stage - 1} it never is; stage {stage} shares out one kind more"
    if recipe != FP32 and fewest(factor, stage, FP32) is None:
        return f"{said}. In fp32 with Adam it never is: do you read the bytes from recipe, from its end?"
    return f"{said}: what does the factor tend to, as N grows?"


def why_never(said: str, factor: float, stage: int, recipe: Recipe) -> str:
    whole = sum(recipe[: 3 - stage])
    if sum(recipe) == factor * whole:
        return f"{said}. {factor} is the limit, which no number of ranks reaches: return None"
    return f"{said}. {whole} of {sum(recipe)} bytes stay whole on any number of ranks, so it never comes to {factor}"


def why_few(got: int, factor: float, stage: int, recipe: Recipe) -> str:
    if got == fewest(factor, stage, FP32) and recipe != FP32:
        return "That is for fp32 with Adam: read the bytes from recipe"
    if factor - saves(got, stage, recipe) < HAIR:
        return f"That is a hair less than {factor}: allow no tolerance, and do not round before you round up"
    if got + 1 == fewest(factor, stage, recipe):
        return f"That is not yet {factor}: round up"
    if stage < 2 and got == fewest(factor, stage + 1, recipe):
        return f"Stage {stage} does not share out so much: which kinds stay whole?"
    if got == ceil(factor):
        return "Only what is shared out shrinks with N; the rest stays whole"
    return f"That is less than {factor}"


EXERCISE = Exercise(
    "fewest_ranks",
    fewest_cases,
    (Claim("it says how many ranks a factor takes, or that none suffice", fewest_right),),
    run=alone,
    hints=(
        "Split the bytes a parameter in two: what stays whole at this stage, and what is divided by N.",
        "The factor is (whole + shared) / (whole + shared / N). What is it when N is huge? A factor as large as "
        "that is never reached.",
        "Once you know that it is reached, count N up from 1, for as long as it takes. Division of floats rounds, "
        "so multiply instead: is total * N >= factor * (whole * N + shared)?",
    ),
    text=TEXT,
    answer=(fewest_ranks,),
    points=2,
)
