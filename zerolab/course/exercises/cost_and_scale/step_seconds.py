"""The exercise of lesson 09 on the communication of a step, in seconds."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from random import Random
from typing import Any

from zerolab.course.judge.case import Case, plural
from zerolab.course.judge.claims import untouched
from zerolab.course.judge.exercise import Claim, Exercise, alone
from zerolab.course.judge.mistakes import Mistakes, answers

TEXT = """
What does a step's communication cost?

Predict how long a step of the engine communicates when nothing is overlapped: the sum over all its collectives. The
model's `units` are numbers of elements; all of them train. A unit is cut into N = `ranks` equal shards, so a shard
has numel / N elements, *rounded up*, and the last one is filled up. Each unit makes calls of its own, as long as its
filled-up shards together:

| stage | in each of the `micro_batches` | once, after the update |
| --- | --- | --- |
| 0 | all-reduce of the gradients | |
| 1 and 2 | reduce-scatter of the gradients | all-gather of the new parameters |
| 3 | all-gather of the parameters for forward, all-gather again for backward, reduce-scatter of the gradients | |

A parameter travels as `param_bytes` bytes, a gradient as `grad_bytes`. `latency` is in seconds, `bandwidth` in bytes
a second.

By hand: stage 3, units of 10 and 4 elements on 4 ranks, one micro-batch, 2 bytes for each parameter and each
gradient, a latency of 1 s and 2 bytes a second. Shards have 3 elements and 1, messages 6 bytes and 2, so steps take 1 +
3 = 4 s and 1 + 1 = 2 s. A collective is 3 steps: 12 s and 6 s. Each unit has three collectives: 54 s.

Here the library's engine takes a step on the virtual clock, three units on three ranks, two micro-batches, in fp32:

```{code-cell}
:name: shown_engine

from torch import nn

from zerolab.zero import ZeroEngine


def step_measured(comm, stage):
    model = nn.Sequential(nn.Linear(50, 20), nn.Linear(20, 20), nn.Linear(20, 2))
    engine = ZeroEngine(model, comm, stage, lr=1e-3, units=list(model), prefetch=False, overlap=False, align=1)
    begin = comm.transport.now()
    for _ in range(2):
        engine.backward(engine(torch.ones(1, 50)).sum())
    engine.step()
    return comm.transport.now() - begin


on = dict(ranks=3, world="lockstep", device="cpu", collectives="ring", link=Link(gbit_per_s=1, latency_us=10))
{f"stage {stage}": f"{1e6 * launch(step_measured, stage, **on)[0]:.3f} microseconds" for stage in range(4)}
```

Its units have 1,020, 420 and 42 elements (weights and biases), 1 Gbit/s is 125,000,000 bytes a second, and
`step_seconds(1, [1020, 420, 42], 3, 2, 4, 4, 1e-5, 1.25e8)` has to say what stands there for stage 1. The check draws
all stages, 1 to 1,024 ranks, which mostly do not divide the units, and 2 or 4 bytes. About eleven lines.
"""


def step_seconds(
    stage: int, units: list[int], ranks: int, micro_batches: int,
    param_bytes: int, grad_bytes: int, latency: float, bandwidth: float,
) -> float:  # fmt: skip
    """The seconds of all collectives of one step, one after the other."""

    ### BEGIN SOLUTION
    def round_of(itemsize):
        """A reduce-scatter or an all-gather of every unit."""
        return sum((ranks - 1) * (latency + -(-numel // ranks) * itemsize / bandwidth) for numel in units)

    gradients, parameters = round_of(grad_bytes), round_of(param_bytes)
    if stage == 0:
        return micro_batches * 2 * gradients
    if stage == 3:
        return micro_batches * (gradients + 2 * parameters)
    return micro_batches * gradients + parameters
    ### END SOLUTION


def seconds(
    stage: int,
    units: Sequence[int],
    ranks: int,
    micro_batches: int,
    param_bytes: int,
    grad_bytes: int,
    latency: float,
    bandwidth: float,
    slip: str = "",
) -> float:
    """What the engine's collectives take in a step, one after the other; open to slips."""
    if slip == "one call":
        units = [sum(units)]
    if slip == "swapped":
        param_bytes, grad_bytes = grad_bytes, param_bytes
    if slip == "parameters only":
        grad_bytes = param_bytes
    if slip == "gradients only":
        param_bytes = grad_bytes

    def collective(numel: int, itemsize: int) -> float:
        """One round of a ring."""
        steps = {"one step": min(ranks - 1, 1), "N steps": ranks, "all steps": 1}.get(slip, ranks - 1)
        share: float = -(-numel // ranks)
        share = {"parts": numel / ranks, "rounded down": numel // ranks, "whole": numel}.get(slip, share)
        if slip == "latency once":
            return min(ranks - 1, 1) * latency + steps * share * itemsize / bandwidth
        if slip == "no latency":
            return steps * share * itemsize / bandwidth
        if slip == "bits":
            return steps * (latency + 8 * share * itemsize / bandwidth)
        return steps * (latency + share * itemsize / bandwidth)

    reduced = sum(collective(numel, grad_bytes) for numel in units)
    gathered = sum(collective(numel, param_bytes) for numel in units)
    reductions: float = 1 if slip == "reduced once" else micro_batches
    if stage == 0:
        return (1 if slip == "one round" else 2) * reductions * reduced + (gathered if slip == "gathers at 0" else 0)
    if stage < 3:
        times = {"gathered each time": micro_batches, "never gathered": 0}.get(slip, 1)
        rounds = 2 if slip == "all-reduce" else 1
        return rounds * reductions * reduced + times * gathered
    passes = 1 if slip == "forward alone" else 2
    times = {"gathered once": 1}.get(slip, micro_batches) * passes + (slip == "new parameters, too")
    rounds = 2 if slip == "all-reduce" else 1
    return rounds * reductions * reduced + times * gathered


TEXTS = {
    "one round": "An all-reduce is a reduce-scatter and an all-gather: it takes twice as long",
    "gathers at 0": "At stage 0 every rank has all gradients and updates all parameters: nothing is left to gather",
    "all-reduce": "From stage 1 on a rank needs its shard of the gradients alone: half of an all-reduce",
    "gathered each time": "New parameters are gathered once a step, after the update, and not in each micro-batch",
    "never gathered": "After the update each rank has its shard of new parameters: who hands them around?",
    "forward alone": "Stage 3 releases a unit after its forward: backward gathers it again",
    "gathered once": "Stage 3 gathers in the forward and in the backward of every micro-batch",
    "new parameters, too": "At stage 3 new parameters are gathered by the next forward, and not at the end of a step",
    "reduced once": "Every micro-batch reduces its gradients",
    "one call": "Each unit is a call of its own, with latencies of its own",
    "parameters only": "Gradients travel with `grad_bytes` bytes each",
    "gradients only": "Parameters travel with `param_bytes` bytes each",
    "swapped": "`param_bytes` are those of a parameter, `grad_bytes` those of a gradient",
    "one step": "You take one step for a round: a ring of N ranks takes N-1 steps",
    "N steps": "A ring of N ranks takes N-1 steps for a round, not N",
    "all steps": "A ring of N ranks takes N-1 steps for a round, of one rank none",
    "latency once": "Each step of a ring has its latency",
    "no latency": "Each message has a latency, too",
    "parts": "Shards have whole elements: the last one is filled up, so a message has numel / N, rounded up",
    "rounded down": "Shards have room for all elements: round numel / N up",
    "whole": "In each step a shard travels, an N-th of the unit",
    "bits": "The bandwidth is in bytes a second",
}
SLIPS: Mistakes = {text: partial(seconds, slip=slip) for slip, text in TEXTS.items()}


def price_cases(rng: Random) -> list[Case]:
    """First each stage where mistakes show: several ranks, which do not divide, several micro-batches, two dtypes."""
    cases = [priced(rng, stage, 5, 3, (2, 4)) for stage in (1, 3, 0, 2)]
    cases += [priced(rng, stage, 4, 1, (4, 4)) for stage in range(4)]
    cases += [priced(rng, stage, ranks, 2, (2, 2)) for stage, ranks in enumerate((2, 8, 64, 1024))]
    cases += [priced(rng, stage, 1, rng.randint(1, 3), (2, 4)) for stage in (0, 1, 3)]
    # Fewer elements than ranks, and a single unit.
    cases.append(priced(rng, 3, 7, 2, (2, 4), units=[rng.randint(1, 6), rng.randint(8, 13)]))
    cases.append(priced(rng, rng.randint(1, 2), 3, 4, (4, 2), units=[rng.randint(10**9, 10**10)]))
    return cases


def priced(
    rng: Random, stage: int, ranks: int, micro_batches: int, sizes: tuple[int, int], units: Sequence[int] = ()
) -> Case:
    bandwidth = rng.choice((1.25e8, 1.25e9, 1.25e10, 5e10))
    latency = rng.randint(10, 400) / 1e7
    even = max(2, int(latency * bandwidth / 4))
    # A message takes about as long as its latency, and no number of these ranks divides all units.
    drawn = [ranks * rng.randint(1 + even // 3, 3 * even) + rng.randint(1, max(1, ranks - 1)) for _ in range(3)]
    units = list(units) or drawn
    args: tuple[Any, ...] = (stage, units, ranks, micro_batches, *sizes, latency, bandwidth)
    what = f"units of {units} elements, {plural(ranks, 'rank')}, micro_batches={micro_batches}"
    return Case([args], about=f"stage {stage}, {what}, {sizes[0]} bytes a parameter, {sizes[1]} a gradient")


EXERCISE = Exercise(
    "step_seconds",
    price_cases,
    (
        Claim(
            "what you predict is what the engine's collectives take",
            answers(seconds, SLIPS, "Which calls does a step make for one unit, how often, and of how many bytes?"),
        ),
        Claim("the list of units stays as it was", untouched(1)),
    ),
    run=alone,
    hints=(
        "Write a function for one round of a ring: (N - 1) (latency + bytes of a shard / bandwidth).",
        "For each stage: how many rounds of gradients and of parameters in a micro-batch, and how many at the end?",
        "With M micro-batches: 2M rounds of gradients at stage 0; M, and 1 of parameters, at 1 and 2; M and 2M at 3.",
    ),
    text=TEXT,
    answer=(step_seconds,),
    points=2,
)
