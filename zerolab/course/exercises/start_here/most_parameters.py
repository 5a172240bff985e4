"""Exercise of lesson 00: the largest model that fits."""

from __future__ import annotations

from random import Random

from zerolab.course.exercises.start_here.claims import FP32, GB, MEGATRON, MIXED, RECIPES, Recipe, most_right, needs
from zerolab.course.exercises.start_here.state_bytes import state_bytes
from zerolab.course.judge.case import Case, plural
from zerolab.course.judge.exercise import Claim, Exercise, alone

TEXT = """
The largest model

Now the other way round: how many parameters may a model have, so that its states fit into `gpu_bytes` on each rank?
Exactly, to the last parameter, with shards of whole elements. If not even one fits, it is 0.

Models have billions of parameters, so counting them up one by one takes too long. About ten lines. The check draws 1
to 1,000 ranks, every stage, several recipes, and from 3 bytes to 80 GB a rank.
"""


def most_parameters(gpu_bytes: int, ranks: int, stage: int, recipe: tuple[int, int, int]) -> int:
    """The most parameters whose states fit."""
    ### BEGIN SOLUTION
    fits, too_many = 0, gpu_bytes * ranks + 1
    while too_many - fits > 1:
        middle = (fits + too_many) // 2
        if sum(state_bytes(middle, ranks, stage, recipe).values()) <= gpu_bytes:
            fits = middle
        else:
            too_many = middle
    return fits
    ### END SOLUTION


def most_cases(rng: Random) -> list[Case]:
    cases = []

    def add(gpu_bytes: int, ranks: int, stage: int, recipe: Recipe) -> None:
        said = f"{plural(ranks, 'rank')} of {gpu_bytes:,} bytes, stage {stage}, recipe {recipe}"
        cases.append(Case([(gpu_bytes, ranks, stage, recipe)], about=said))

    for recipe in (MIXED, FP32, MEGATRON):
        for stage in (1, 2, 3, 0):
            ranks = rng.choice((2, 3, 4))
            parameters = rng.randint(20, 99) * ranks
            exactly = needs(parameters, ranks, stage, recipe)
            add(exactly + rng.randint(1, 3), ranks, stage, recipe)
            add(exactly, ranks, stage, recipe)
            add(exactly - 1, ranks, stage, recipe)
    for ranks in (1, 7, 64, 1000):
        for stage in range(4):
            add(rng.choice((16, 24, 40, 80)) * GB + rng.randint(0, 1000), ranks, stage, rng.choice(list(RECIPES)))
    # More parameters than anybody trains: no bound on them is safe.
    add(80 * GB + rng.randint(0, 1000), 1000, 3, MIXED)
    # A model that fills a rank to the byte, where a division of floats ends one short.
    for gpu_bytes, ranks, stage, recipe in ((185_736, 651, 1, MIXED), (14_611_706_424, 891, 2, MIXED)):
        add(gpu_bytes, ranks, stage, recipe)
    # Not even one parameter.
    add(3, 2, 3, FP32)
    return cases


EXERCISE = Exercise(
    "most_parameters",
    most_cases,
    (Claim("it finds the last size that fits", most_right),),
    run=alone,
    hints=(
        "Whether a size fits, state_bytes tells you. More parameters never take fewer bytes.",
        "Without rounding, one parameter takes P + G + O bytes, each divided by N where it is shared out. That "
        "gives a size that is never too small, if you count in whole numbers: // and not /.",
        "Either step down from there until it fits, or halve an interval between a size that fits and one that "
        "does not.",
    ),
    text=TEXT,
    answer=(most_parameters,),
    points=2,
)
