"""Exercise of lesson 00: what a rank keeps. Each rank of a small case trains a step with the library's engine and
measures itself."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import torch
from torch import nn

from zerolab.collectives import Collectives
from zerolab.course.exercises.start_here.claims import (
    FP32,
    MEGATRON,
    MIXED,
    MOMENTUM,
    Recipe,
    again_right,
    calls_again,
    computed_right,
    measured_right,
)
from zerolab.course.judge.case import Case, plural
from zerolab.course.judge.exercise import Claim, Exercise
from zerolab.memory import Tracker
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
laptop, up to a hundred billion parameters on 1,024 ranks. Each time it calls your function again, for a larger model.
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


def what(parameters: int, ranks: int, stage: int, recipe: Recipe) -> str:
    return f"{parameters:,} parameters, {plural(ranks, 'rank')}, stage {stage}, recipe {recipe}"


ALIGN = 16
"""Elements at whose multiples the engine's shards start. Sizes that N times this divides need no padding."""


def held(comm: Collectives, parameters: int, stage: int, recipe: Recipe) -> dict[str, int]:
    """Bytes that this rank holds after a step, by kind, without the optimizer's step counter."""
    model = nn.Linear(ALIGN * comm.size, parameters // (ALIGN * comm.size), bias=False)
    if recipe == FP32:
        engine = ZeroEngine(model, comm, stage, lr=1e-3)
    else:
        # So given, it is probed once in a process, not again by each rank.
        engine = ZeroEngine(model, comm, stage, optimizer=partial(torch.optim.SGD, lr=1e-3, momentum=0.9, fused=True))
    with Tracker(engine_labels(engine)) as tracker:
        engine.backward(engine(torch.ones(1, ALIGN * comm.size)).sum())
        engine.step()
    now = tracker.now()
    now["optimizer_states"] -= engine.state_size.bytes_per_tensor
    return {kind: now[kind] for kind in ("parameters", "gradients", "optimizer_states")}


def run_states(
    fn: Callable[..., Any], comm: Collectives, parameters: int, ranks: int, stage: int, recipe: Recipe
) -> Any:
    """The answer; what this rank held, or None where the case asks for more ranks than run; the answers for a larger
    model and for a wider recipe, from later calls."""
    said = fn(parameters, ranks, stage, recipe)
    really = held(comm, parameters, stage, recipe) if comm.size == ranks else None
    return said, really, [fn(*again) for again in calls_again(parameters, ranks, stage, recipe)]


def states_cases(rng: Random) -> list[Case]:
    cases = []
    few = [(3, rng.randint(1, 2), FP32), (3, 3, MOMENTUM), (4, rng.randint(0, 2), MOMENTUM), (4, 3, FP32)]
    for ranks, stage, recipe in [(2, 0, MOMENTUM), *((2, stage, FP32) for stage in range(4)), *few, (1, 2, FP32)]:
        args = (ALIGN * ranks * rng.randint(2, 20), ranks, stage, recipe)
        cases.append(Case([args] * ranks, about=f"measured, {what(*args)}"))
    args = (ALIGN * 2 * rng.randint(2, 20), 2, 3, FP32)
    cases.append(Case([args] * 2, "processes", f"measured on real processes, {what(*args)}"))
    for parameters, ranks, recipe in ((7_500_000_000, 64, MIXED), (0, 1024, MEGATRON), (0, 3, MIXED), (0, 7, FP32)):
        for stage in range(4):
            # No N divides these sizes.
            big = parameters or ranks * rng.randint(10**3, 10**8) + rng.randint(1, ranks - 1)
            args = (big, ranks, stage, recipe)
            cases.append(Case([args], about=what(*args)))
    # One parameter is left over for very many ranks: what is added before the rest is cut off must be enough.
    for stage in range(1, 4):
        args = (100_003 * rng.randint(10, 100) + 1, 100_003, stage, FP32)
        cases.append(Case([args], about=what(*args)))
    return cases


EXERCISE = Exercise(
    "state_bytes",
    states_cases,
    (
        Claim("it is what each rank of a real engine holds after a step", measured_right),
        Claim("it is right for models that fit on no laptop, and where N leaves a remainder", computed_right),
        Claim("it is right when it is called again, for another size", again_right),
    ),
    run=run_states,
    hints=(
        "Which of the three kinds does each stage share out? Lesson 00 has a table.",
        "How many elements has the fullest of N ranks? Try 7 parameters on 2 ranks, then on 3.",
        "For each kind: bytes a parameter, times either all parameters or the shard. Only the stage decides which.",
    ),
    text=TEXT,
    answer=(state_bytes,),
    points=2,
)
