"""The exercise of lesson 09 on a link's latency and bandwidth, from collectives as measured."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import torch

from zerolab.collectives import Link
from zerolab.course.judge.case import Case, Record
from zerolab.course.judge.exercise import Claim, Exercise, alone
from zerolab.course.judge.model import Gives

TEXT = """
How fast is the link?

Nobody tells you the latency and the bandwidth that a step really gets: you time a few collectives and solve for both.
`samples` is a list of `(name, ranks, nbytes, seconds)`: the collective's name, `"reduce_scatter"`, `"all_gather"` or
`"all_reduce"`; on how many ranks; the bytes of the *whole* tensor; how long it took. Here two are measured:

```{code-cell}
:name: shown_measured

def measured(comm, name, numel):
    tensor = torch.zeros(numel // comm.size if name == "all_gather" else numel)
    getattr(comm, name)(tensor)


def sample(name, ranks, numel):
    on = dict(world="lockstep", device="cpu", collectives="ring", link=Link(gbit_per_s=8, latency_us=10))
    return name, ranks, 4 * numel, round(launch(measured, name, numel, ranks=ranks, **on).seconds, 9)


[sample("all_gather", 4, 100_000), sample("all_reduce", 3, 900_000)]
```

By hand: they took 0.00033 s and 0.00484 s. The all-gather took 3 steps, so a step with its message of 100,000 bytes
took 0.00011 s. The all-reduce took 4 steps, and a step with 1,200,000 bytes took 0.00121 s. The 1,100,000 bytes more
cost 0.0011 s more: the bandwidth is 1,000,000,000 bytes a second. The latency is what is left of a step, 0.00011 -
0.0001 = 0.00001 s.

Return `(latency in seconds, bandwidth in bytes a second)`, two numbers. A thousandth off is near enough.

- All samples are of one link. They mix collectives, ranks and sizes, come in any order, and are exact: no two of them
  contradict each other.
- A sample of one rank took no time, and says nothing about the link.
- At least two samples have messages of different lengths. Others may have equal ones, or be there twice.

The check draws 2 to 7 samples on 1 to 1,024 ranks. About eight lines.
"""


def fit_link(samples: list[tuple[str, int, int, float]]) -> tuple[float, float]:
    """(latency in seconds, bandwidth in bytes a second) of the link on which the samples were measured."""
    ### BEGIN SOLUTION
    rounds = {"reduce_scatter": 1, "all_gather": 1, "all_reduce": 2}
    steps = [
        (nbytes / ranks, seconds / (rounds[name] * (ranks - 1)))
        for name, ranks, nbytes, seconds in samples
        if ranks > 1
    ]
    (short, quick), (long, slow) = min(steps), max(steps)
    bandwidth = (long - short) / (slow - quick)
    return quick - short / bandwidth, bandwidth
    ### END SOLUTION


MISTAKES = r"""
An all-reduce is a reduce-scatter and an all-gather: two rounds of N-1 steps
    "all_reduce": 2 => "all_reduce": 1
You take one step for a round; a ring of N ranks takes N-1
    (rounds[name] * (ranks - 1)) => rounds[name]
You take N steps for a round; a ring of N ranks takes N-1
    (ranks - 1) => ranks
Each of the N-1 steps has its latency; you have it once in a collective
    (nbytes / ranks, seconds / (rounds[name] * (ranks - 1))) => (nbytes / ranks * rounds[name] * (ranks - 1), seconds)
In each step an N-th of the bytes travels, not all of them
    nbytes / ranks => nbytes
One rank sends nothing: leave its samples out
    if ranks > 1 =>
    (ranks - 1) => max(ranks - 1, 1)
The latency comes first, the bandwidth second
    quick - short / bandwidth, bandwidth => bandwidth, quick - short / bandwidth
Those are bits a second: the samples have bytes, and bytes are asked for
    bandwidth, bandwidth => bandwidth, 8 * bandwidth
The slope is seconds a byte; bytes a second are asked for
    bandwidth, bandwidth => bandwidth, 1 / bandwidth
The bandwidth is right: take its part out of a step's seconds, and the latency is left
    quick - short / bandwidth, => slow,
"""
Sample = tuple[str, int, int, float]
NAMES = ("all_gather", "reduce_scatter", "all_reduce")


def two_numbers(record: Record) -> Any:
    """Also of a tensor, and of tensors."""
    value = record.value.tolist() if isinstance(record.value, torch.Tensor) else record.value
    if not isinstance(value, list | tuple) or len(value) != 2:
        return value
    return [float(one) if isinstance(one, torch.Tensor) and one.numel() == 1 else one for one in value]


def measured(link: Link, name: str, ranks: int, numel: int) -> Sample:
    """What the clock of a lockstep world says of a ring collective of `numel` fp32 elements, which the ranks divide."""
    return name, ranks, 4 * numel, link.ring_seconds(name, numel, 4, ranks)


def some(rng: Random, link: Link, names: Sequence[str], sizes: Sequence[int]) -> list[Sample]:
    """A sample of each collective, on so many ranks; each message is longer than the one before."""
    samples = []
    # In which a message takes about as long as its latency.
    even = max(link.latency_us, 1) * 1e-6 * link.gbit_per_s * 1e9 / 32
    length = rng.uniform(0.2, 0.6)
    for name, ranks in zip(names, sizes, strict=True):
        samples.append(measured(link, name, ranks, ranks * max(1, round(even * length)) + ranks))
        length *= rng.uniform(1.7, 3.0)
    return samples


def drawn_link(rng: Random) -> Link:
    return Link(gbit_per_s=rng.choice((1, 10, 25, 100, 200, 400)), latency_us=rng.randint(20, 500) / 10)


def link_cases(rng: Random) -> list[Case]:
    """First two samples of one kind, where a mistake shows by its numbers; then mixtures."""
    pairs = [("all_gather", 4), ("all_reduce", 4), ("reduce_scatter", rng.choice((3, 5))), ("all_gather", 2)]
    cases = [some(rng, drawn_link(rng), [name] * 2, [ranks] * 2) for name, ranks in pairs]
    for sizes in ([2, 8], [2, 3, 4, 6, 8, 5, 64], [256, 512, 1024, 1024]):
        mixed = some(rng, drawn_link(rng), [rng.choice(NAMES) for _ in sizes], sizes)
        cases.append(rng.sample(mixed, len(mixed)))
    link = drawn_link(rng)
    mine = [(rng.choice(NAMES), 1, 4 * rng.randint(100, 10**6), 0.0) for _ in range(3)]
    two = some(rng, link, ["all_gather"] * 2, [3] * 2)
    cases += [[mine[0], *two], [mine[0], two[0], mine[1], two[1], mine[2]], [two[0], two[0], two[1], two[0], two[1]]]
    # The first two have messages of one length, and say as much as one; so do the largest and the smallest tensor.
    numel = rng.randint(500, 5000)
    for spread in (((4, 4), (2, 2), (2, 16)), ((2, 4), (4, 4), (2, 8), (8, 16))):
        cases.append([measured(link, "all_gather", ranks, many * numel) for ranks, many in spread])
    # A link with next to no latency.
    quick = Link(gbit_per_s=link.gbit_per_s, latency_us=0.1)
    cases.append(some(rng, quick, ["all_reduce", "all_gather"], [4, 3]))
    return [Case([(samples,)]) for samples in cases]


EXERCISE = Exercise(
    "fit_link",
    link_cases,
    (
        Claim(
            "it finds the link's latency and its bandwidth",
            Gives(two_numbers, "Put one sample into the formula, and see whether its seconds come out", tolerance=1e-3),
        ),
    ),
    run=alone,
    hints=(
        "Divide a sample's seconds by its number of steps: what is left is latency + message / bandwidth.",
        "So all samples lie on one line: along x the bytes of a message, along y the seconds of a step.",
        "Two points with different x give the line: its slope is 1 / bandwidth, its value at 0 the latency.",
    ),
    mistakes=MISTAKES,
    without=frozenset({"shape"}),
    text=TEXT,
    answer=(fit_link,),
    points=2,
)
