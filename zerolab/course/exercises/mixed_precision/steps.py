"""What the exercise of lesson 06 on a mixed-precision step with four faults is tried on, and what is right there."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import torch

from zerolab.collectives import Collectives
from zerolab.course.judge.case import Case, Observation, plural
from zerolab.course.judge.draw import about, signed, sizes
from zerolab.flat.layout import chunk_bounds

Tensor = torch.Tensor
STEPS = 3
SMALL, MOST = 12 * 2.0**-31, 150
"""Gradients are up to MOST times SMALL: near the smallest number of fp16. While they are scaled, fp16 has the mean of
multiples of 12 over 1 to 4 ranks exactly."""
TIGHT, WIDE = 0.5, 5000.0
"""Limits by the norm of the first step's mean; WIDE is so far above it that scaled gradients are below it, too."""
LARGE = 48_000.0
"""fp16 ends at 65,504: two of them are more than it holds, one is not."""
KINDS = {
    "plain": "",
    "inf": "one rank's gradient has an inf",
    "-inf": "one rank's gradient has a -inf",
    "nan": "one rank's gradient has a nan",
    "zero": "all gradients are zero",
    "far": f"each rank's gradient has a finite {LARGE:g} in a place of its own",
    "high": f"each rank's gradient has a finite {LARGE:g} in the same place",
}
POISON = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}
PLAIN = ("plain",) * STEPS


def one_case(
    rng: Random, ranks: int, numel: int, world: str, share: float, kinds: Sequence[str] = PLAIN, last: bool = False
) -> Case:
    """Gradients of `kinds`, which `KINDS` explains; the clipping limit is a `share` of the norm. Poison lies anywhere,
    or, with `last`, in the last element of the last shard."""
    start = torch.tensor([rng.choice((-1, 1)) * rng.uniform(0.01, 0.02) for _ in range(numel)])
    scale = rng.choice((2.0**9, 2.0**10, 2.0**11))
    # Scaled they are numbers of fp16; unscaled they hardly would be.
    gradients = [[(scale * SMALL * signed(rng, numel, most=MOST)).half() for _ in range(STEPS)] for _ in range(ranks)]
    norm = float((torch.stack([each[0].float() for each in gradients]).mean(0) / scale).norm())
    for step, kind in enumerate(kinds):
        owner, place = rng.randrange(ranks), numel - 1 if last else rng.randrange(numel)
        for rank in range(ranks):
            row = gradients[rank][step]
            if kind == "zero":
                row.zero_()
            elif kind in ("far", "high"):
                row[(place + rank * (kind == "far")) % numel] = LARGE
            elif kind in POISON and rank == owner:
                row[place] = POISON[kind]
    rate = rng.uniform(0.5, 1.0) * 2.0**14
    args: list[tuple[Any, ...]] = [
        (start, gradients[rank], scale, share * norm, rate, list(kinds)) for rank in range(ranks)
    ]
    said = f"{about(ranks, numel, plural(numel, 'parameter'))}, {'tight' if share < 1 else 'wide'} limit"
    for step, kind in enumerate(kinds, 1):
        said += f", in step {step} {KINDS[kind]}" if KINDS[kind] else ""
    return Case(args, world, said)


def cases(rng: Random) -> list[Case]:
    drawn = [
        one_case(rng, 2, 24, "lockstep", TIGHT),
        one_case(rng, 2, 24, "lockstep", WIDE),
        one_case(rng, 2, 24, "lockstep", TIGHT, ("plain", "inf", "plain")),
        one_case(rng, 2, 24, "lockstep", TIGHT, ("plain", "zero", "plain")),
        one_case(rng, 3, 10, "lockstep", WIDE, ("plain", "nan", "zero"), last=True),
        one_case(rng, 2, 9, "lockstep", TIGHT, ("plain", "far", "high")),
    ]
    bad = [*POISON, *POISON, "zero", "far", "high"]
    rng.shuffle(bad)
    for ranks, numel, world in sizes(rng):
        kind = bad.pop() if bad else "nan"
        # Fewer elements than ranks: each rank has no place of its own. And one rank alone adds nothing up.
        kind = "inf" if kind in ("far", "high") and not 1 < ranks <= numel else kind
        drawn.append(one_case(rng, ranks, numel, world, rng.choice((0.4, WIDE)), ("plain", "plain", kind)))
    return drawn


def run_steps(
    fn: Callable[..., Any],
    comm: Collectives,
    start: Tensor,
    gradients: list[Tensor],
    scale: float,
    limit: float,
    rate: float,
    kinds: list[str],
) -> Any:
    """After each step [what it returned, the parameters, the main shard]."""
    params = start.half()
    first, stop = chunk_bounds(start.numel(), comm.size)[comm.rank]
    main = start[first:stop].clone()
    after = []
    for gradient in gradients:
        taken = fn(comm, params, main, gradient.clone(), scale, limit, rate)
        after.append([taken, params.clone(), main.clone()])
    return after


@dataclass
class Way:
    """A step, right unless a field says otherwise."""

    clips: str = "unscaled"  # by the norm of what
    unscaled: str = "fp32"  # where it is divided by the scale
    times: int = 1  # how often it is divided by the scale
    mean: bool = True
    shared: bool = True  # gradients are reduced
    limited: bool = True  # the factor is 1 at most
    eps: float = 0.0  # what is added to the norm
    from_casts: bool = False  # main parameters are made from the fp16 ones in each step


@dataclass
class After:
    """What a step leaves: whether it was taken, all main parameters, and how far two right answers may lie apart."""

    taken: bool
    main: Tensor
    apart: Tensor


def steps(case: Case, way: Way, seen: Observation) -> list[After]:
    """What each step leaves.

    fp32 rounds main parameters once a step, by half of its last place at most, which is 2**-24 of their size; two right
    answers round to two sides, and what came of it stays until the end. Four times that is allowed. In the updates
    themselves orders differ: that of the norm's sum, of the factors, and whether their product is rounded before it is
    added. A ten-thousandth is more than that, and less than 16 bits lose.
    """
    main, _, scale, limit, rate, kinds = case.args[0]
    apart = torch.zeros_like(main)
    after: list[After] = []
    for step in range(STEPS):
        each = torch.stack([args[1][step] for args in case.args])
        taken = bool(each.isfinite().all())
        if kinds[step] == "high":
            # Who adds up in fp16 has an overflow, who adds up in fp32 has none.
            taken = all(record.value[step][0] is True for record in seen.records)
        if taken:
            update = rate * update_of(case, each, way, scale, limit)
            apart = apart + 1e-4 * update.abs() + 2.0**-22 * torch.maximum(main.abs(), (main - update).abs())
            main = (main.half().float() if way.from_casts else main) - update
        after.append(After(taken, main, apart))
    return after


def update_of(case: Case, each: Tensor, way: Way, scale: float, limit: float) -> Tensor:
    """The clipped mean gradient of a step."""
    total = each.float().sum(0)
    if not way.shared:
        total = case.ranks * torch.cat([row.float().tensor_split(case.ranks)[rank] for rank, row in enumerate(each)])
    mean = total / case.ranks if way.mean else total
    scaled = mean.bfloat16().float() if way.unscaled == "bf16" else mean
    mean = (mean.half() / scale).float() if way.unscaled == "fp16" else scaled / scale**way.times

    def factor(part: Tensor) -> float:
        size = limit / (float(part.norm()) + max(way.eps, 1e-30))
        return min(1.0, size) if way.limited else size

    if way.clips == "shard":
        return torch.cat([factor(part) * part for part in mean.tensor_split(case.ranks)])
    if way.clips == "summed":
        return factor(sum((part.norm() for part in mean.tensor_split(case.ranks)), torch.zeros(()))) * mean
    by = {"unscaled": factor(mean), "scaled": factor(scaled), "nothing": 1.0}
    return by[way.clips] * mean
