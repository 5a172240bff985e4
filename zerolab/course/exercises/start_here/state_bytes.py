"""Exercise of lesson 00: what a rank keeps. Each rank of a small case trains a step with the library's engine and
measures itself."""

from __future__ import annotations

from functools import cache
from random import Random
from typing import Any

import torch
from torch import nn

from zerolab.collectives import Collectives
from zerolab.course.judge.case import Case, Record
from zerolab.course.judge.claims import each_rank
from zerolab.course.judge.exercise import Claim, Exercise, alone
from zerolab.course.judge.model import Gives
from zerolab.memory import Tracker
from zerolab.ranks import launch
from zerolab.zero import ZeroEngine, engine_labels

TEXT = """
What a rank keeps

A `recipe` says how many bytes a parameter takes: `(for itself, for its gradient, for its optimizer states)`. In fp32
with Adam it is `(4, 4, 8)`, in the mixed precision of the ZeRO paper `(2, 2, 12)`.

Return the bytes of model states on one rank, as a dict with the keys `parameters`, `gradients` and
`optimizer_states`. Where something is shared out, ranks keep whole elements: 7 of them on 2 ranks are 4 and 3. Answer
for the rank that has most. Bytes are of type `int`. About six lines.

The check trains a step with a `ZeroEngine` on 1 to 4 ranks, and each rank compares what it holds with what you said.
These sizes need no padding, and the optimizer's step counter (four bytes) is left out. Then come sizes that fit on no
laptop, up to a hundred billion parameters on 1,024 ranks, one after the other and in one process as well.
"""


def state_bytes(parameters: int, ranks: int, stage: int, recipe: tuple[int, int, int]) -> dict[str, int]:
    """Bytes that the fullest rank keeps, by kind."""
    ### BEGIN SOLUTION
    shard = -(-parameters // ranks)  # rounded up, and exact however large
    for_parameter, for_gradient, for_optimizer = recipe
    return {
        "parameters": for_parameter * (shard if stage >= 3 else parameters),
        "gradients": for_gradient * (shard if stage >= 2 else parameters),
        "optimizer_states": for_optimizer * (shard if stage >= 1 else parameters),
    }
    ### END SOLUTION


Recipe = tuple[int, int, int]
"""Bytes a parameter: for itself, its gradient, its optimizer states."""
FP32, MOMENTUM, PLAIN_SGD = (4, 4, 8), (4, 4, 4), (4, 4, 0)
MIXED, MEGATRON = (2, 2, 12), (2, 4, 12)
GB = 10**9
KINDS = ("parameters", "gradients", "optimizer_states")
MISTAKES = r"""
That is all of them: from which stage on is this kind shared out?
    -(-parameters // ranks) => parameters
At this stage parameters are not shared out yet
    stage >= 3 => stage
At this stage gradients are not shared out yet
    stage >= 2 => stage
At stage 0 nothing is shared out
    stage >= 3 => True
    stage >= 2 => True
    stage >= 1 => True
That is the smallest rank's: the first ranks take what is left over
    -(-parameters // ranks) => parameters // ranks
You cut bytes: cut elements, and no rank keeps a part of one
    for_parameter * (shard if stage >= 3 else parameters) => -(-for_parameter * parameters // (1, 1, 1, ranks)[stage])
    for_gradient * (shard if stage >= 2 else parameters) => -(-for_gradient * parameters // (1, 1, ranks, ranks)[stage])
    for_optimizer * (shard if stage >= 1 else parameters) => -(-for_optimizer * parameters // (ranks if stage else 1))
Those are the bytes of fp32 with Adam: read them from recipe
    = recipe => = (4, 4, 8)
Those are the bytes of another kind: recipe is (for itself, for its gradient, for its optimizer states)
    for_parameter, for_gradient, for_optimizer = => for_optimizer, for_gradient, for_parameter =
A few elements too many: round up where it does not divide, and pad nothing
    -(-parameters // ranks) => -(-parameters // (16 * ranks)) * 16
"""
ALIGN = 16
"""Elements at whose multiples the engine's shards start. Sizes that N times this divides need no padding."""


def needs(parameters: int, ranks: int, stage: int, recipe: Recipe) -> int:
    return sum(state_bytes(parameters, ranks, stage, recipe).values())


def held(comm: Collectives, parameters: int, ranks: int, stage: int, recipe: Recipe) -> dict[str, int]:
    """Bytes that this rank holds after a step with Adam, by kind, without the optimizer's step counter."""
    model = nn.Linear(ALIGN * comm.size, parameters // (ALIGN * comm.size), bias=False)
    engine = ZeroEngine(model, comm, stage, lr=1e-3)
    with Tracker(engine_labels(engine)) as tracker:
        engine.backward(engine(torch.ones(1, ALIGN * comm.size)).sum())
        engine.step()
    now = tracker.now()
    now["optimizer_states"] -= engine.state_size.bytes_per_tensor
    return {kind: now[kind] for kind in KINDS}


def states_cases(rng: Random) -> list[Case]:
    measured = [(3, 0), (2, 1), (2, 2), (2, 3), (3, rng.randint(1, 2)), (4, rng.randint(0, 2)), (4, 3), (1, 2)]
    sizes = [(ALIGN * ranks * rng.randint(2, 20), ranks, stage, FP32) for ranks, stage in [*measured, (2, 3)]]
    worlds = ["lockstep"] * len(measured) + ["processes"]
    cases = [Case([args] * args[1], world) for args, world in zip(sizes, worlds, strict=True)]
    # From each of these to the next one thing changes, so that what an answer keeps by the others shows.
    chain = [(7_000_000_000, 7, MOMENTUM), (7_500_000_000, 64, MIXED)]
    chain += [(7_500_000_000, 1024, MIXED), (7_500_000_000, 1024, MEGATRON)]
    for ranks, recipe in ((1024, MEGATRON), (3, MIXED), (7, MOMENTUM)):
        # Ranks do not divide them.
        chain.append((ranks * rng.randint(10**3, 10**8) + rng.randint(1, ranks - 1), ranks, recipe))
    for parameters, ranks, recipe in chain:
        cases += [Case([(parameters, ranks, stage, recipe)]) for stage in range(4)]
    # One parameter is left over for very many ranks: what is added before the rest is cut off must be enough.
    cases += [Case([(100_003 * rng.randint(10, 100) + 1, 100_003, stage, FP32)]) for stage in range(1, 4)]
    return cases


def says_of(kind: str) -> Claim:
    look = f"Bytes of {kind} a parameter, times the elements that the fullest rank keeps of them"
    return Claim(f"its bytes of {kind} are right", Gives(lambda record: record.value[kind], look))


@cache
def really(world: str, *given: Any) -> list[dict[str, int]]:
    """What each rank holds. Several claims hold an answer to it."""
    return list(launch(held, *given, ranks=given[1], world=world, device="cpu", prints="quiet"))


@each_rank
def is_held(case: Case, rank: int, record: Record) -> str | None:
    asked = case.args[0]
    holds = really(case.world, *asked)[rank] if asked[1] == case.ranks else record.value
    due = f"rank {rank} held {holds}, and {record.value} was due; run the check again"
    return None if holds == record.value else due


EXERCISE = Exercise(
    "state_bytes",
    states_cases,
    (
        Claim("it has the three kinds", Gives(lambda record: sorted(record.value), "Its keys are names of kinds")),
        *map(says_of, KINDS),
        Claim("it is what each rank of a real engine holds after a step", is_held),
    ),
    run=alone,
    hints=(
        "Which of the three kinds does each stage share out? Lesson 00 has a table.",
        "How many elements has the fullest of N ranks? Try 7 parameters on 2 ranks, then on 3.",
        "For each kind: bytes a parameter, times either all parameters or the shard. Only the stage decides which.",
    ),
    mistakes=MISTAKES,
    text=TEXT,
    answer=(state_bytes,),
    points=2,
)
