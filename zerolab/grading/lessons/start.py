"""Exercises of lesson 00: arithmetic of model states, held to what real steps leave in memory."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import torch
from torch import nn

from zerolab.collectives import Collectives
from zerolab.grading.case import Case, plural
from zerolab.grading.claims import untouched
from zerolab.grading.exercise import Claim, Exercise, alone
from zerolab.grading.lessons.start_claims import (
    AGAIN,
    FP32,
    MEGATRON,
    MIXED,
    MOMENTUM,
    RECIPES,
    Recipe,
    again_right,
    computed_right,
    measured_right,
    most_right,
    needs,
    stage_again_right,
    stage_right,
)
from zerolab.grading.lessons.start_factor import fewest_cases, fewest_right
from zerolab.grading.lessons.start_peak import peak, peak_right, tallest
from zerolab.memory import Tracker, model_labels
from zerolab.ranks import launch
from zerolab.zero import ZeroEngine, engine_labels

GB = 10**9


def what(parameters: int, ranks: int, stage: int, recipe: Recipe) -> str:
    return f"{parameters:,} parameters, {plural(ranks, 'rank')}, stage {stage}, recipe {recipe}"


# 1. What a rank keeps. Each rank of a small case trains a step with the library's engine and measures itself.

ALIGN = 16
"""Elements at whose multiples the engine's shards start. Sizes that N times this divides need no padding."""


def held(comm: Collectives, parameters: int, stage: int, recipe: Recipe) -> dict[str, int]:
    """Bytes that this rank holds after a step, by kind, without the optimizer's step counter."""
    model = nn.Linear(ALIGN * comm.size, parameters // (ALIGN * comm.size), bias=False)
    if recipe == FP32:
        engine = ZeroEngine(model, comm, stage, lr=1e-3)
    else:
        engine = ZeroEngine(
            model, comm, stage, optimizer=lambda groups: torch.optim.SGD(groups, lr=1e-3, momentum=0.9, fused=True)
        )
    with Tracker(engine_labels(engine)) as tracker:
        engine.backward(engine(torch.ones(1, ALIGN * comm.size)).sum())
        engine.step()
    now = tracker.now()
    now["optimizer_states"] -= engine.state_size.bytes_per_tensor
    return {kind: now[kind] for kind in ("parameters", "gradients", "optimizer_states")}


def run_states(
    fn: Callable[..., Any], comm: Collectives, parameters: int, ranks: int, stage: int, recipe: Recipe
) -> Any:
    """The answer; what this rank held, or None where the case asks for more ranks than run; the answer for a larger
    model, from a second call."""
    said = fn(parameters, ranks, stage, recipe)
    really = held(comm, parameters, stage, recipe) if comm.size == ranks else None
    return said, really, fn(AGAIN * parameters, ranks, stage, recipe)


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
    return cases


# 2. The lowest stage that fits.


def run_stage(
    fn: Callable[..., Any], comm: Collectives, parameters: int, ranks: int, gpu_bytes: int, recipe: Recipe
) -> Any:
    """The answer, and that to a second call, for one rank."""
    return fn(parameters, ranks, gpu_bytes, recipe), fn(parameters, 1, gpu_bytes, recipe)


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


# 3. The largest model.


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
    # A model that fills a rank to the byte, where a division of floats ends one short.
    for gpu_bytes, ranks, stage, recipe in ((185_736, 651, 1, MIXED), (14_611_706_424, 891, 2, MIXED)):
        add(gpu_bytes, ranks, stage, recipe)
    # Not even one parameter.
    add(3, 2, 3, FP32)
    return cases


# 4. The peak. The samples come from a tracker that watches a real step.


def watched(width: int, layers: int, rows: int, steps: int) -> list[dict[str, int]]:
    """Live bytes by kind at each moment of the last of `steps` steps."""
    threads = torch.get_num_threads()
    # So little work is slower on several threads, far slower where the machine is busy.
    torch.set_num_threads(1)
    try:
        return train(width, layers, rows, steps)
    finally:
        torch.set_num_threads(threads)


def train(width: int, layers: int, rows: int, steps: int) -> list[dict[str, int]]:
    modules = [part for _ in range(layers) for part in (nn.Linear(width, width, bias=False), nn.Tanh())]
    model = nn.Sequential(*modules)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    examples = torch.ones(rows, width)
    for _ in range(steps):
        optimizer.zero_grad()
        with Tracker(model_labels(model, optimizer)) as tracker:
            model(examples).sum().backward()
            optimizer.step()
    return [sample.bytes for sample in tracker.samples]


def sharded_step(comm: Collectives, width: int, rows: int) -> list[dict[str, int]]:
    """The same for a rank at stage 3, where layers come and go."""
    engine = ZeroEngine(nn.Sequential(*(nn.Linear(width, width) for _ in range(4))), comm, 3, lr=1e-3)
    with Tracker(engine_labels(engine)) as tracker:
        engine.backward(engine(torch.ones(rows, width)).sum())
        engine.step()
    return [sample.bytes for sample in tracker.samples]


def peak_cases(rng: Random) -> list[Case]:
    cases = []

    def add(samples: list[dict[str, int]], said: str) -> None:
        cases.append(Case([(samples,)], about=f"{said}, {plural(len(samples), 'moment')}"))

    for rows, steps in ((200, 2), (4, 1), (4, 2), (50, 1)):
        width, layers = rng.randint(16, 40), rng.randint(2, 4)
        rows += rng.randint(0, rows // 4)
        add(
            watched(width, layers, rows, steps),
            f"step {steps} of {plural(layers, 'layer')} of {width}, {rows} examples",
        )
    # Here the kind that was highest of all is not the largest at the peak. Nearly every draw is such a one.
    while True:
        width, layers = rng.randint(20, 40), rng.randint(4, 6)
        rows = 2 * width + rng.randint(0, 4)
        samples = watched(width, layers, rows, 2)
        if peak(samples)[1] != tallest(samples):
            break
    add(samples, f"step 2 of {plural(layers, 'layer')} of {width}, {rows} examples")
    # In a deep network activations take most.
    width, layers = rng.randint(16, 24), rng.randint(7, 8)
    rows = 4 * width
    deep = watched(width, layers, rows, 2)
    add(deep, f"step 2 of {plural(layers, 'layer')} of {width}, {rows} examples")
    width, rows = rng.randint(16, 40), rng.randint(2, 8)
    samples = launch(sharded_step, width, rows, ranks=2, world="lockstep", device="cpu", prints="quiet")[0]
    add(samples, f"stage 3 on rank 0 of 2, 4 layers of {width}, {plural(rows, 'example')}")
    # A few bytes make the difference, and the highest moment comes first.
    width, rows = rng.randint(2, 4), rng.randint(2, 4)
    samples = watched(width, 2, rows, 2)
    add(samples, f"step 2 of 2 layers of {width}, {rows} examples")
    add(samples[peak(samples)[0] :], "the same step, watched from its highest moment on")
    # A moment that is one byte lower comes first: 32-bit floats could not tell them apart, and 32-bit integers hold
    # only that one. And one that is as high, of other kinds, comes last.
    at, kind = peak(samples)
    times, rest = divmod(2**31, sum(samples[at].values()))
    large = [{name: taken * times + rest * (name == kind) for name, taken in sample.items()} for sample in samples]
    large.append(dict(zip(large[at], reversed(large[at].values()), strict=True)))
    large.insert(at, large[at] | {kind: large[at][kind] - 1})
    add(large, "the same step, millions of times as large")
    # Each kind takes most somewhere: who never names one must not pass by luck.
    most = peak(deep)[1]
    for kind in deep[0]:
        if kind != most:
            said = f"a step of {plural(layers, 'layer')} in which {kind} and {most} trade places"
            add([sample | {kind: sample[most], most: sample[kind]} for sample in deep], said)
    return cases


EXERCISES = (
    Exercise(
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
    ),
    Exercise(
        "choose_stage",
        stage_cases,
        (
            Claim("it chooses the lowest stage that fits, or None", stage_right),
            Claim("it is right when it is called again, for one rank", stage_again_right),
        ),
        run=run_stage,
        hints=(
            "Add up what state_bytes says for a stage: does one GPU hold it?",
            "Try the stages in order, and stop at the first that fits. What if none does?",
        ),
    ),
    Exercise(
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
    ),
    Exercise(
        "name_the_peak",
        peak_cases,
        (
            Claim("it finds the highest moment, and what takes most there", peak_right),
            Claim("its input stays as it was", untouched(0)),
        ),
        run=alone,
        hints=(
            "How high is a moment? Write down the totals first.",
            "max(names, key=...) finds the name with the largest number; list.index finds the first place.",
        ),
    ),
    Exercise(
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
    ),
)
