"""The exercise of lesson 09 on a link's latency and bandwidth, from collectives as measured."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import Any

import torch

from zerolab.collectives import Link
from zerolab.collectives.cost import RINGS
from zerolab.course.judge.case import Case, Observation
from zerolab.course.judge.claims import untouched
from zerolab.course.judge.exercise import Claim, Exercise, alone
from zerolab.course.judge.mistakes import named
from zerolab.course.judge.same import short

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


Sample = tuple[str, int, int, float]
Pair = tuple[float, float]
NAMES = ("all_gather", "reduce_scatter", "all_reduce")
NEAR = 1e-3
"""How far off a number may be, in relative terms."""


def line(points: Iterable[tuple[float, float]]) -> Pair:
    """(Value at 0, 1 / slope) of the line with the least squares; (0, 0) where there is none."""
    points = list(points)
    x0, y0 = (sum(values) / len(points) for values in zip(*points, strict=True))
    spread = sum((x - x0) ** 2 for x, _ in points)
    slope = sum((x - x0) * (y - y0) for x, y in points) / spread if spread else 0.0
    return (y0 - slope * x0, 1 / slope) if slope else (0.0, 0.0)


def ends(points: Iterable[tuple[float, float]]) -> Pair:
    """The same of the line through the first and the last point alone."""
    points = sorted(points)
    return line([points[0], points[-1]])


def fit(
    samples: Sequence[Sample],
    steps: Callable[[str, int], float] = lambda name, ranks: RINGS[name] * (ranks - 1),
    message: Callable[[int, int], float] = lambda nbytes, ranks: nbytes / ranks,
    once: bool = False,
    through: Callable[[Iterable[tuple[float, float]]], Pair] = line,
) -> Pair:
    """Latency and bytes a second, if a collective takes so many steps of messages of so many bytes; `once` has the
    latency once in a collective."""
    points = []
    for name, ranks, nbytes, seconds in samples:
        if count := steps(name, ranks):
            share = message(nbytes, ranks)
            points.append((count * share, seconds) if once else (share, seconds / count))
    return through(points)


def single(sample: Sample) -> Pair:
    """What one sample says if there were no latency."""
    name, ranks, nbytes, seconds = sample
    return 0.0, RINGS[name] * (ranks - 1) * nbytes / ranks / seconds if seconds else 0.0


SLIPS: dict[str, Callable[[Sequence[Sample]], Pair]] = {
    "An all-reduce is a reduce-scatter and an all-gather: two rounds of N-1 steps": (
        lambda samples: fit(samples, lambda name, ranks: ranks - 1)
    ),
    "You take one step for a round; a ring of N ranks takes N-1": (
        lambda samples: fit(samples, lambda name, ranks: RINGS[name] * (ranks > 1))
    ),
    "You take N steps for a round; a ring of N ranks takes N-1": (
        lambda samples: fit(samples, lambda name, ranks: RINGS[name] * ranks * (ranks > 1))
    ),
    "Each of the N-1 steps has its latency; you have it once in a collective": lambda samples: fit(samples, once=True),
    "Two rounds are for an all-reduce alone": lambda samples: fit(samples, lambda name, ranks: 2 * (ranks - 1)),
    "In each step an N-th of the bytes travels, not all of them": (
        lambda samples: fit(samples, message=lambda nbytes, ranks: nbytes)
    ),
    "That is bytes of the whole through seconds, as if nothing had N-1 steps of an N-th each": (
        lambda samples: fit(samples, lambda name, ranks: float(ranks > 1), lambda nbytes, ranks: nbytes)
    ),
    "One rank sends nothing, so its samples say nothing of the link: leave them out": (
        lambda samples: fit(samples, lambda name, ranks: RINGS[name] * max(ranks - 1, 1))
    ),
    "One rank sends nothing: leave its samples out": (
        lambda samples: fit(samples, lambda name, ranks: RINGS[name] * max(ranks - 1, 1), through=ends)
    ),
}
"""What an answer gives that takes something else for the time of a collective."""


def units(latency: float, speed: float) -> dict[str, Pair]:
    """The right numbers in another order, or in other units."""
    return {
        "The latency comes first, the bandwidth second": (speed, latency),
        "Those are bits a second: the samples have bytes, and bytes are asked for": (latency, 8 * speed),
        "You took the bytes for bits: the samples have bytes, and bytes are asked for": (latency, speed / 8),
        "The slope is seconds a byte; bytes a second are asked for": (latency, 1 / speed),
        "The latency is asked for in seconds": (latency * 1e6, speed),
        "Gbit/s are for people; bytes a second are asked for": (latency, 8e-9 * speed),
        "GB/s are for people; bytes a second are asked for": (latency, 1e-9 * speed),
    }


def close(got: Pair, want: Pair) -> bool:
    """A thousandth off at most."""
    return all(abs(one - other) <= NEAR * abs(other) for one, other in zip(got, want, strict=True))


def two_numbers(value: Any) -> Pair | None:
    if isinstance(value, torch.Tensor):
        value = value.tolist()
    if not isinstance(value, list | tuple) or len(value) != 2:
        return None
    value = [one.item() if isinstance(one, torch.Tensor) and one.numel() == 1 else one for one in value]
    good = all(isinstance(one, int | float) and not isinstance(one, bool) for one in value)
    return (float(value[0]), float(value[1])) if good else None


def fitted(case: Case, seen: Observation) -> str | None:
    (samples,) = case.args[0]
    got, want = two_numbers(seen.records[0].value), fit(samples)
    if got is None:
        return f"you return {short(seen.records[0].value)}: two numbers are due, (seconds, bytes a second)"
    if close(got, want):
        return None
    said = f"you say {said_of(got)}, and the link has {said_of(want)}"
    mistakes = {text: slip(samples) for text, slip in SLIPS.items()} | units(*want)
    if why := named(mistakes, lambda pair: close(got, pair)):
        return f"{said}. {why}"
    if why := one_is_right(got, want, samples):
        return f"{said}. {why}"
    return f"{said}. Put one sample into the formula, and see whether its seconds come out"


def one_is_right(got: Pair, want: Pair, samples: Sequence[Sample]) -> str:
    """What to say of a number that comes from one sample alone, or if one of the two is right."""
    if any(ranks > 1 and abs(got[1] - single((name, ranks, nbytes, seconds))[1]) <= NEAR * want[1]
           for name, ranks, nbytes, seconds in samples):  # fmt: skip
        return "That is the bus bandwidth of one sample, its bytes through its seconds, in which there is latency, too"
    if close((want[0], got[1]), want):
        return "The bandwidth is right: take its part out of a step's seconds, and the latency is left"
    return "The latency is right, and the bandwidth is not" if close((got[0], want[1]), want) else ""


def said_of(pair: Pair) -> str:
    return f"{pair[0]:.4g} s and {pair[1]:.4g} bytes/s"


# Cases.


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

    def case(samples: list[Sample], what: str = "") -> Case:
        listed = "; ".join(f"{n} of {b:,} bytes, {r} ranks, {s:.4g} s" for n, r, b, s in samples)
        return Case([(samples,)], about=f"{len(samples)} samples{what}" if what else f"2 samples ({listed})")

    cases = [case(some(rng, drawn_link(rng), [name] * 2, [ranks] * 2)) for name, ranks in pairs(rng)]
    cases.append(case(some(rng, drawn_link(rng), ["all_gather", "all_reduce"], [2, 8])))
    for what, sizes in [
        (" of 2 to 64 ranks", [rng.choice((2, 3, 4, 8, 64)) for _ in range(7)]),
        (" of 256 to 1,024 ranks", [256, 512, 1024, 1024]),
    ]:
        names = [rng.choice(NAMES) for _ in sizes]
        cases.append(case(some(rng, drawn_link(rng), names, sizes), what))
    link = drawn_link(rng)
    mine = [(rng.choice(NAMES), 1, 4 * rng.randint(100, 10**6), 0.0) for _ in range(3)]
    two = some(rng, link, ["all_gather"] * 2, [3] * 2)
    cases.append(case([mine[0], two[0], two[1]], ", the first of them of one rank"))
    cases.append(case([mine[0], two[0], mine[1], two[1], mine[2]], ", some of one rank"))
    # The first two have messages of one length, and say as much as one; so do repetitions.
    numel = rng.randint(500, 5000)
    alike = [measured(link, "all_gather", 4, 4 * numel), measured(link, "all_reduce", 2, 2 * numel)]
    cases.append(case([*alike, measured(link, "all_gather", 2, 16 * numel)], ", the first two with equal messages"))
    cases.append(case([two[0], two[0], two[1], two[0], two[1]], ", some of them twice"))
    shuffled = some(rng, link, [rng.choice(NAMES) for _ in range(6)], [2, 3, 4, 6, 8, 5])
    rng.shuffle(shuffled)
    cases.append(case(shuffled, ", in any order"))
    # Most of one length, so that the ranks make messages differ; and a link with next to no latency.
    whole = 24 * rng.randint(1000, 9000)
    one = [measured(link, rng.choice(NAMES), ranks, whole) for ranks in (2, 3, 4, 8)]
    cases.append(case([*one, measured(link, "all_gather", 2, 5 * whole)], ", most of them of one length"))
    quick = Link(gbit_per_s=link.gbit_per_s, latency_us=0.1)
    cases.append(case(some(rng, quick, ["all_reduce", "all_gather"], [4, 3]), " on a link of 0.1 us"))
    return cases


def pairs(rng: Random) -> list[tuple[str, int]]:
    """Two samples are of one collective on one number of ranks."""
    return [("all_gather", 4), ("all_reduce", 4), ("reduce_scatter", rng.choice((3, 5))), ("all_gather", 2)]


EXERCISE = Exercise(
    "fit_link",
    link_cases,
    (
        Claim("it finds the link's latency and its bandwidth", fitted),
        Claim("the samples stay as they were", untouched(0)),
    ),
    run=alone,
    hints=(
        "Divide a sample's seconds by its number of steps: what is left is latency + message / bandwidth.",
        "So all samples lie on one line: along x the bytes of a message, along y the seconds of a step.",
        "Two points with different x give the line: its slope is 1 / bandwidth, its value at 0 the latency.",
    ),
    text=TEXT,
    answer=(fit_link,),
    points=2,
)
