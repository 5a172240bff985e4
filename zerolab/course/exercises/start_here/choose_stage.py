"""Exercise of lesson 00: the lowest stage that fits."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from zerolab.collectives import Collectives
from zerolab.course.exercises.start_here.claims import (
    FP32,
    GB,
    MEGATRON,
    MIXED,
    Recipe,
    needs,
    stage_again_right,
    stage_right,
    stages_again,
)
from zerolab.course.exercises.start_here.state_bytes import state_bytes
from zerolab.course.judge.case import Case, plural
from zerolab.course.judge.exercise import Claim, Exercise

TEXT = """
Choose the stage

On two ranks or more a higher stage keeps less, and may send more or wait longer. So take the lowest stage whose model
states fit into `gpu_bytes` on each rank; what fills the memory to the last byte fits. Return `None` if no stage does.
About four lines, with `state_bytes`. The check draws 1 to 64 ranks, several recipes, and memories that are just large
enough for a stage, or a byte too small.
"""


def choose_stage(parameters: int, ranks: int, gpu_bytes: int, recipe: tuple[int, int, int]) -> int | None:
    """The lowest stage that fits, or None."""
    ### BEGIN SOLUTION
    for stage in range(4):
        if sum(state_bytes(parameters, ranks, stage, recipe).values()) <= gpu_bytes:
            return stage
    return None
    ### END SOLUTION


def run_stage(
    fn: Callable[..., Any], comm: Collectives, parameters: int, ranks: int, gpu_bytes: int, recipe: Recipe
) -> Any:
    """The answer, and those to later calls, each with one thing changed."""
    said = fn(parameters, ranks, gpu_bytes, recipe)
    return said, [fn(*again) for again in stages_again(parameters, ranks, gpu_bytes, recipe).values()]


def stage_cases(rng: Random) -> list[Case]:
    cases = []

    def add(parameters: int, ranks: int, gpu_bytes: int, recipe: Recipe) -> None:
        said = f"{parameters:,} parameters, {plural(ranks, 'rank')} of {gpu_bytes:,} bytes, recipe {recipe}"
        cases.append(Case([(parameters, ranks, gpu_bytes, recipe)], about=said))

    for recipe in (MIXED, FP32, MEGATRON):
        for stage in (1, 2, 3, 0):
            ranks = rng.choice((2, 3, 4, 8, 64))
            parameters = rng.randint(10**5, 10**9) * ranks + rng.randint(1, ranks - 1)
            exactly = needs(parameters, ranks, stage, recipe)
            for spare in (exactly // 100, -exactly // 100, 0):
                add(parameters, ranks, exactly + spare, recipe)
            # Where nothing is rounded up, a byte that is missing says what is wrong.
            add(whole := parameters // ranks * ranks, ranks, needs(whole, ranks, stage, recipe) - 1, recipe)
            add(parameters, ranks, exactly - 1, recipe)
    add(7_500_000_000, 64, 32 * GB, MIXED)
    add(7_500_000_000, 64, GB, MIXED)
    add(rng.randint(1, 100) * 10**6, 1, 80 * GB, MIXED)
    add(rng.randint(10, 100) * GB, 1, 80 * GB, MIXED)
    return cases


EXERCISE = Exercise(
    "choose_stage",
    stage_cases,
    (
        Claim("it chooses the lowest stage that fits, or None", stage_right),
        Claim("it is right when it is called again, with one thing changed", stage_again_right),
    ),
    run=run_stage,
    hints=(
        "Add up what state_bytes says for a stage: does one GPU hold it?",
        "Try the stages in order, and stop at the first that fits. What if none does?",
    ),
    text=TEXT,
    answer=(choose_stage,),
    points=1,
)
