"""The exercise of lesson 09 on the communication of a step, in seconds."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

from zerolab.course.judge.case import Case
from zerolab.course.judge.exercise import Claim, Exercise, alone
from zerolab.course.judge.model import Gives

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


MISTAKES = r"""
An all-reduce is a reduce-scatter and an all-gather: it takes twice as long
    micro_batches * 2 * gradients => micro_batches * gradients
From stage 1 on a rank needs its shard of the gradients alone: half of an all-reduce
    return micro_batches * gradients + parameters => return micro_batches * 2 * gradients + parameters
    micro_batches * (gradients + 2 * parameters) => micro_batches * 2 * (gradients + parameters)
New parameters are gathered once a step, after the update, and not in each micro-batch
    micro_batches * gradients + parameters => micro_batches * (gradients + parameters)
After the update each rank has its shard of new parameters: who hands them around?
    micro_batches * gradients + parameters => micro_batches * gradients
Stage 3 releases a unit after its forward: backward gathers it again
    2 * parameters) => parameters)
Stage 3 gathers in the forward and in the backward of every micro-batch
    micro_batches * (gradients + 2 * parameters) => micro_batches * gradients + 2 * parameters
Every micro-batch reduces its gradients
    return micro_batches * gradients + => return gradients +
    micro_batches * 2 * gradients => 2 * gradients
    micro_batches * (gradients + 2 * parameters) => gradients + micro_batches * 2 * parameters
Each unit is a call of its own, with latencies of its own
    for numel in units => for numel in [sum(units)]
A ring of N ranks takes N-1 steps for a round, not N
    (ranks - 1) => ranks
Each step of a ring has its latency
    (ranks - 1) * (latency + -(-numel // ranks) * => min(ranks - 1, 1) * latency + (ranks - 1) * (-(-numel // ranks) *
Shards have whole elements: the last one is filled up, so a message has numel / N, rounded up
    -(-numel // ranks) => numel / ranks
"""


def price_cases(rng: Random) -> list[Case]:
    """First each stage where mistakes show: several ranks, which do not divide, several micro-batches, two dtypes."""
    cases = [priced(rng, stage, 5, 3, (2, 4)) for stage in (1, 3, 0, 2)]
    cases += [priced(rng, stage, ranks, 2, (2, 2)) for stage, ranks in enumerate((2, 8, 64, 1024))]
    cases += [priced(rng, stage, 1, rng.randint(1, 3), (2, 4)) for stage in (0, 1, 3)]
    # Fewer elements than ranks, a single unit, and units that the ranks divide.
    cases.append(priced(rng, 3, 7, 2, (2, 4), units=[rng.randint(1, 6), rng.randint(8, 13)]))
    cases.append(priced(rng, rng.randint(1, 2), 3, 4, (4, 2), units=[rng.randint(10**9, 10**10)]))
    cases.append(priced(rng, 1, 4, 2, (2, 4), units=[4 * rng.randint(1, 5), 4]))
    return cases


def priced(
    rng: Random, stage: int, ranks: int, micro_batches: int, sizes: tuple[int, int], units: Sequence[int] = ()
) -> Case:
    bandwidth = rng.choice((1.25e8, 1.25e9, 1.25e10, 5e10))
    latency = rng.randint(10, 400) / 1e7
    even = max(2, int(latency * bandwidth / 4))
    # A message takes about as long as its latency, and no number of these ranks divides all units.
    drawn = [ranks * rng.randint(1 + even // 3, 3 * even) + rng.randint(1, max(1, ranks - 1)) for _ in range(3)]
    args: tuple[Any, ...] = (stage, list(units) or drawn, ranks, micro_batches, *sizes, latency, bandwidth)
    return Case([args])


EXERCISE = Exercise(
    "step_seconds",
    price_cases,
    (
        Claim(
            "what you predict is what the engine's collectives take",
            Gives(look="Which calls does a step make for one unit, how often, and of how many bytes?"),
        ),
    ),
    run=alone,
    hints=(
        "Write a function for one round of a ring: (N - 1) (latency + bytes of a shard / bandwidth).",
        "For each stage: how many rounds of gradients and of parameters in a micro-batch, and how many at the end?",
        "With M micro-batches: 2M rounds of gradients at stage 0; M, and 1 of parameters, at 1 and 2; M and 2M at 3.",
    ),
    mistakes=MISTAKES,
    text=TEXT,
    answer=(step_seconds,),
    points=2,
)
