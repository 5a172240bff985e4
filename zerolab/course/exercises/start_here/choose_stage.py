"""Exercise of lesson 00: the lowest stage that fits."""

from __future__ import annotations

from random import Random
from typing import Any

from zerolab.course.exercises.start_here.state_bytes import FP32, GB, MEGATRON, MIXED, needs, state_bytes
from zerolab.course.judge.case import Case
from zerolab.course.judge.exercise import Claim, Exercise, alone
from zerolab.course.judge.model import Gives
from zerolab.course.judge.same import short

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
Sum up all three kinds: are these your bytes?
    sum( => max(
Its fullest shard is rounded up to whole elements
    state_bytes(parameters, => state_bytes(parameters // ranks * ranks,
Is 3 among the stages that you try, and are parameters shared out there?
    range(4) => range(3)
That is a byte more than there is: allow none
    <= gpu_bytes => <= gpu_bytes + 1
All ranks together keep more than that, but each has a GPU of its own
    if sum( => if ranks * sum(
"""


def stage_cases(rng: Random) -> list[Case]:
    asked = []
    for recipe in (MIXED, FP32, MEGATRON):
        for stage in (1, 2, 3, 0):
            ranks = rng.choice((2, 3, 4, 8, 64))
            parameters = rng.randint(10**5, 10**9) * ranks + rng.randint(1, ranks - 1)
            exactly = needs(parameters, ranks, stage, recipe)
            for spare in (exactly // 100, -exactly // 100, 0):
                asked.append((parameters, ranks, exactly + spare, recipe))
            # Where nothing is rounded up, a byte that is missing says what is wrong.
            whole = parameters // ranks * ranks
            asked.append((whole, ranks, needs(whole, ranks, stage, recipe) - 1, recipe))
            asked.append((parameters, ranks, exactly - 1, recipe))
    asked.append((7_500_000_000, 64, 32 * GB, MIXED))
    asked.append((7_500_000_000, 64, GB, MIXED))
    asked.append((rng.randint(1, 100) * 10**6, 1, 80 * GB, MIXED))
    asked.append((rng.randint(10, 100) * GB, 1, 80 * GB, MIXED))
    # From each of these to the next one thing changes, and with it the stage.
    parameters, ranks = 16 * rng.randint(10**5, 10**8), rng.choice((16, 64))
    room = needs(parameters, ranks, 2, MIXED)
    asked += [(parameters, ranks, room, MIXED), (parameters, ranks, room, FP32)]
    asked += [(parameters, 1, room, FP32), (parameters // 16, 1, room, FP32), (parameters // 16, 1, room // 16, FP32)]
    return [Case([args]) for args in asked]


def said(args: tuple[Any, ...], got: Any, want: Any) -> str:
    parameters, ranks, _, recipe = args
    kept = ", ".join(str(needs(parameters, ranks, stage, recipe)) for stage in range(4))
    return f"you say {got if got is None else short(got)}, and {want} is due: stages 0 to 3 keep {kept} bytes"


EXERCISE = Exercise(
    "choose_stage",
    stage_cases,
    (
        Claim(
            "it chooses the lowest stage that fits, or None",
            Gives(look="Are these your bytes?", say=said),
        ),
    ),
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
