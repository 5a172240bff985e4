"""Exercise of lesson 00: the largest model that fits."""

from __future__ import annotations

from random import Random

from zerolab.course.exercises.start_here.state_bytes import FP32, GB, MEGATRON, MIXED, MOMENTUM, needs, state_bytes
from zerolab.course.judge.case import Case
from zerolab.course.judge.exercise import Claim, Exercise, alone
from zerolab.course.judge.model import Gives

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


MISTAKES = r"""
That is one too many. Return the last that fits, not the first that does not
    return fits => return too_many
What fills the memory to the last byte fits
    <= gpu_bytes => < gpu_bytes
One more fits: where does your search stop?
    return fits => return fits - 1
They would fit in even shares, but no rank keeps a part of an element
    return fits => return gpu_bytes * ranks // (sum(recipe[: 3 - stage]) * ranks + sum(recipe[3 - stage :]))
Below stage 3 not everything is cut in N
    ranks, stage, recipe => ranks, 3, recipe
Several ranks share something out at this stage
    ranks, stage, recipe => ranks, 0, recipe
That is for the memory of all ranks together, but each keeps its own
    <= gpu_bytes => <= gpu_bytes * ranks
A division of floats ends one short where a model fills the memory to the last byte: divide whole numbers
    return fits => return min(fits, int(gpu_bytes / (sum(recipe[: 3 - stage]) + sum(recipe[3 - stage :]) / ranks)))
"""


def most_cases(rng: Random) -> list[Case]:
    asked = []
    for recipe in (MIXED, FP32, MEGATRON):
        for stage in (1, 2, 3, 0):
            ranks = rng.choice((2, 3, 4))
            exactly = needs(rng.randint(20, 99) * ranks, ranks, stage, recipe)
            asked += [(exactly + spare, ranks, stage, recipe) for spare in (rng.randint(1, 3), 0, -1)]
    for ranks in (1, 7, 64, 1000):
        for stage in range(4):
            room = rng.randint(16 * GB, 80 * GB)
            asked.append((room, ranks, stage, rng.choice((FP32, MIXED, MEGATRON, MOMENTUM))))
    # From each of these to the next one thing changes. More parameters than anybody trains: no bound on them is safe.
    room = 80 * GB + rng.randint(0, 1000)
    asked += [(room, 1000, 3, MIXED), (room, 1000, 2, MIXED), (room, 100, 2, MIXED), (room, 100, 2, FP32)]
    # A model that fills a rank to the byte, where a division of floats ends one short.
    asked += [(185_736, 651, 1, MIXED), (14_611_706_424, 891, 2, MIXED)]
    # Not even one parameter.
    return [Case([args]) for args in [*asked, (3, 2, 3, FP32)]]


EXERCISE = Exercise(
    "most_parameters",
    most_cases,
    (Claim("it finds the last size that fits", Gives(look="Does it fit, by state_bytes, and one more does not?")),),
    run=alone,
    hints=(
        "Whether a size fits, state_bytes tells you. More parameters never take fewer bytes.",
        "Without rounding, one parameter takes P + G + O bytes, each divided by N where it is shared out. That "
        "gives a size that is never too small, if you count in whole numbers: // and not /.",
        "Either step down from there until it fits, or halve an interval between a size that fits and one that "
        "does not.",
    ),
    mistakes=MISTAKES,
    text=TEXT,
    answer=(most_parameters,),
    points=2,
)
