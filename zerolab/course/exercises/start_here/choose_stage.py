"""Exercise of lesson 00: the lowest stage that fits."""

from __future__ import annotations

from random import Random

from zerolab.course.exercises.start_here.state_bytes import FP32, GB, MEGATRON, MIXED, needs, state_bytes
from zerolab.course.judge.case import Case
from zerolab.course.judge.exercise import Claim, Exercise, alone
from zerolab.course.judge.model import Gives

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


MISTAKES = r"""
The lowest is asked for, a higher one may send more
    range(4) => range(3, -1, -1)
What fills the memory to the last byte fits
    <= gpu_bytes => < gpu_bytes
No stage fits here, not even 3: return None
    return None => return 3
Stage 0 is a stage, though it counts as False
    return stage => return stage or None
The bytes are those of one GPU, and what one rank keeps must fit
    <= gpu_bytes => <= gpu_bytes * ranks
Sum up all three kinds, as state_bytes says them
    sum( => max(
Its fullest shard is rounded up to whole elements
    state_bytes(parameters, => state_bytes(parameters // ranks * ranks,
Is 3 among the stages that you try, and are parameters shared out there?
    range(4) => range(3)
All ranks together keep more than that, but each has a GPU of its own
    if sum( => if ranks * sum(
"""


def stage_cases(rng: Random) -> list[Case]:
    asked = []
    for recipe in (MIXED, FP32, MEGATRON):
        for stage in (1, 2, 3, 0):
            ranks = rng.choice((2, 3, 4, 8, 64))
            # First with nothing to round up, where a byte that is missing says what is wrong.
            for left_over in (0, rng.randint(1, ranks - 1)):
                parameters = ranks * rng.randint(10**5, 10**9) + left_over
                room = needs(parameters, ranks, stage, recipe)
                asked += [(parameters, ranks, room + spare, recipe) for spare in (room // 100, -room // 100, 0, -1)]
    asked += [(7_500_000_000, 64, room, MIXED) for room in (32 * GB, GB)]
    asked += [(parameters, 1, 80 * GB, MIXED) for parameters in (rng.randint(10**6, 10**8), rng.randint(10, 100) * GB)]
    # From each of these to the next one thing changes, and with it the stage.
    parameters, ranks = 16 * rng.randint(10**5, 10**8), rng.choice((16, 64))
    room = needs(parameters, ranks, 2, MIXED)
    asked += [(parameters, ranks, room, MIXED), (parameters, ranks, room, FP32)]
    asked += [(parameters, 1, room, FP32), (parameters // 16, 1, room, FP32), (parameters // 16, 1, room // 16, FP32)]
    return [Case([args]) for args in asked]


EXERCISE = Exercise(
    "choose_stage",
    stage_cases,
    (Claim("it chooses the lowest stage that fits, or None", Gives(look="Write down what each stage keeps")),),
    run=alone,
    hints=(
        "Add up what state_bytes says for a stage: does one GPU hold it?",
        "Try the stages in order, and stop at the first that fits. What if none does?",
    ),
    mistakes=MISTAKES,
    text=TEXT,
    answer=(choose_stage,),
    points=1,
)
