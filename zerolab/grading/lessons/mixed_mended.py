"""The exercise of lesson 06 that mends a mixed-precision step with four faults."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import torch

from zerolab.collectives import Collectives
from zerolab.flat.layout import chunk_bounds
from zerolab.grading.case import Case, Observation, plural
from zerolab.grading.claims import difference, short
from zerolab.grading.draw import about, signed, sizes
from zerolab.grading.exercise import Claim, Exercise

Tensor = torch.Tensor
STEPS = 3
SMALL, MOST = 12 * 2.0**-31, 150
"""Gradients are up to MOST times SMALL: near the smallest number of fp16. While they are scaled, fp16 has the mean of
multiples of 12 over 1 to 4 ranks exactly."""
WIDE = 5000.0
"""A limit so far above the norm that scaled gradients are below it, too."""


def one_case(rng: Random, ranks: int, numel: int, world: str, share: float, bad: int | None) -> Case:
    """The clipping limit is a `share` of the norm; in step `bad` one rank's gradient has inf or nan in one place."""
    start = torch.tensor([rng.choice((-1, 1)) * rng.uniform(0.01, 0.02) for _ in range(numel)])
    scale = rng.choice((2.0**9, 2.0**10, 2.0**11))
    # Scaled they are numbers of fp16; unscaled they hardly would be.
    gradients = [[(scale * SMALL * signed(rng, numel, most=MOST)).half() for _ in range(STEPS)] for _ in range(ranks)]
    norm = float((torch.stack([each[0].float() for each in gradients]).mean(0) / scale).norm())
    if bad is not None:
        owner, place = rng.randrange(ranks), rng.randrange(numel)
        gradients[owner][bad][place] = rng.choice((math.inf, -math.inf, math.nan))
    rate = rng.uniform(0.5, 1.0) * 2.0**14
    args: list[tuple[Any, ...]] = [(start, gradients[rank], scale, share * norm, rate) for rank in range(ranks)]
    said = about(ranks, numel, plural(numel, "parameter"))
    return Case(args, world, f"{said}, {'tight' if share < 1 else 'wide'} limit")


def cases(rng: Random) -> list[Case]:
    first = [
        one_case(rng, 2, 24, "lockstep", 0.5, None),
        one_case(rng, 2, 24, "lockstep", WIDE, None),
        one_case(rng, 2, 24, "lockstep", 0.5, 1),
    ]
    return first + [
        one_case(rng, ranks, numel, world, rng.choice((0.4, WIDE)), rng.randrange(1, STEPS))
        for ranks, numel, world in sizes(rng)
    ]


def run_steps(
    fn: Callable[..., Any],
    comm: Collectives,
    start: Tensor,
    gradients: list[Tensor],
    scale: float,
    limit: float,
    rate: float,
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


def steps(case: Case, way: Way) -> list[tuple[bool, Tensor]]:
    """Whether each step is taken, and the main parameters of all after it."""
    main, _, scale, limit, rate = case.args[0]
    after = []
    for step in range(STEPS):
        each = torch.stack([args[1][step] for args in case.args])
        taken = bool(each.isfinite().all())
        if taken:
            main = main - rate * update_of(case, each, way, scale, limit)
        after.append((taken, main))
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
        size = limit / (float(part.norm()) + 1e-30)
        return min(1.0, size) if way.limited else size

    if way.clips == "shard":
        return torch.cat([factor(part) * part for part in mean.tensor_split(case.ranks)])
    by = {"unscaled": factor(mean), "scaled": factor(scaled), "nothing": 1.0}
    return by[way.clips] * mean


ROUNDED = 2.0**-8
"""How far off an update may be that went through 16 bits a few times, by its size."""
UNSHARED = "what its own gradients give: take the mean over the ranks"
MISTAKES = {
    "what clipping gives that looks at scaled gradients: the limit is meant for the real ones": Way(clips="scaled"),
    "what gradients give that are divided by the scale in fp16: they are too small for it": Way(unscaled="fp16"),
    "what gradients give that went through bf16 on their way from fp16 to fp32": Way(unscaled="bf16"),
    "what gradients of the scaled loss give: divide by the scale before you use them": Way(times=0),
    "what gradients give that are divided by the scale twice": Way(times=2),
    "what both give, clipping of scaled gradients and a division by the scale in fp16": Way(
        clips="scaled", unscaled="fp16"
    ),
    "what clipping gives by the norm of a rank's own shard: the norm is of all": Way(clips="shard"),
    "what gradients give that are not clipped": Way(clips="nothing"),
    "what a factor above 1 gives: a norm below the limit is no reason to scale up": Way(limited=False),
    "what the sum of the gradients gives: take their mean": Way(mean=False),
    UNSHARED: Way(shared=False),
}


def near(value: object, want: Tensor, before: Tensor) -> bool:
    """Whether a shard has come from `before` to `want`: judged by the way, which is short beside where it leads."""
    if not isinstance(value, Tensor) or value.dtype != want.dtype or value.shape != want.shape:
        return False
    allowed = 1e-4 * (want - before).abs() + 4e-7 * want.abs()
    return bool(((value - want).abs() <= allowed).all())


def far(case: Case, seen: Observation, step: int, way: Way) -> list[int]:
    """The ranks whose main shards are not what a way gives."""
    after = steps(case, way)
    before = (after[step - 1][1] if step else case.args[0][0]).tensor_split(case.ranks)
    want = after[step][1].tensor_split(case.ranks)
    return [
        rank for rank, record in enumerate(seen.records) if not near(record.value[step][2], want[rank], before[rank])
    ]


def flags(case: Case, seen: Observation) -> str | None:
    """All ranks return whether the step is taken."""
    want = [taken for taken, _ in steps(case, Way())]
    for step in range(STEPS):
        got = [record.value[step][0] for record in seen.records]
        if all(value is want[step] for value in got):
            continue
        said = f"{case.about}: in step {step + 1} the ranks return {short(got)}, and {want[step]} is due"
        if not all(isinstance(value, bool) for value in got):
            return f"{said}: True where the step is taken, False where it is skipped"
        if not want[step] and len(set(got)) > 1:
            return f"{said}: an inf or nan in one shard must stop the step on all ranks"
        if not want[step] and case.ranks > 1 and not far(case, seen, 0, MISTAKES[UNSHARED]):
            return f"{case.about}: after step 1 main parameters are {UNSHARED}"
        if not want[step]:
            return f"{said}: one gradient has an inf or nan, and the mean with it"
        return f"{said}: no gradient has an inf or nan, is the norm finite?"
    return None


def mains(case: Case, seen: Observation) -> str | None:
    """Main shards after each step."""
    good = steps(case, Way())
    for step, (taken, main) in enumerate(good):
        wrong = far(case, seen, step, Way())
        if not wrong:
            continue
        rank = wrong[0]
        said = f"{case.about}: after step {step + 1} rank {rank}'s main parameters are"
        before = (good[step - 1][1] if step else case.args[0][0]).tensor_split(case.ranks)
        got = [record.value[step][2] for record in seen.records]
        if not taken:
            return f"{said} changed, though one gradient has an inf or nan: a step that is skipped changes nothing"
        if all(isinstance(got[each], Tensor) and torch.equal(got[each], before[each]) for each in wrong):
            return f"{said} as they were: they are what an update changes, in place"
        for says, way in MISTAKES.items():
            if not set(wrong) & set(far(case, seen, step, way)):
                return f"{said} {says}"
        want = main.tensor_split(case.ranks)
        for each in wrong:
            if hint := in_16_bits(case, got[each], want[each], before[each]):
                return f"{said} {hint}"
        return f"{said} {unlike(got[rank], want[rank], before[rank])}: do one step by hand, in fp32"
    return None


def in_16_bits(case: Case, value: object, want: Tensor, before: Tensor) -> str | None:
    """What to say of main parameters that are right but for what fp16 makes of them."""
    if not isinstance(value, Tensor) or value.dtype != want.dtype or value.shape != want.shape:
        return None
    _, _, _, _, rate = case.args[0]
    off, way = (value - want).abs(), (want - before).abs()
    if torch.equal(value, value.half().float()):
        return "all numbers of fp16, as an update in fp16 gives them: which copy is updated, and which is its cast?"
    if bool((off <= ROUNDED * way + 4e-7 * want.abs()).all()):
        return "nearly right, and rounded to 16 bits on their way: which parts of the update are in fp16?"
    # Half a step of fp16's smallest numbers, in a gradient.
    if bool((off <= ROUNDED * way + rate * 2.0**-24).all()):
        return "about what dividing by the scale in fp16 gives: which dtype has the mean when it is divided?"
    return None


def unlike(value: object, want: Tensor, before: Tensor) -> str:
    """How a main shard differs, with the values counted by the tolerance that judges them."""
    if not isinstance(value, Tensor) or value.dtype != want.dtype or value.shape != want.shape:
        return difference(value, want, 0.0)
    places = sum(not near(value[at], want[at], before[at]) for at in range(len(want)))
    return f"a tensor with {places} of {len(want)} values wrong"


def casts(case: Case, seen: Observation) -> str | None:
    """Parameters are the casts of all main parameters, on all ranks."""
    for step in range(STEPS):
        whole = torch.cat([record.value[step][2] for record in seen.records]).half()
        for rank, record in enumerate(seen.records):
            params = record.value[step][1]
            if isinstance(params, Tensor) and torch.equal(params, whole):
                continue
            said = f"{case.about}: after step {step + 1} rank {rank}'s parameters are"
            if isinstance(params, Tensor) and stands_still(case, seen, step, rank, params):
                return f"{said} as they were: when main parameters have changed, everybody needs their casts"
            own: Sequence[Tensor] = whole.tensor_split(case.ranks)
            if isinstance(params, Tensor) and torch.equal(params.tensor_split(case.ranks)[rank], own[rank]):
                return f"{said} new in its own shard alone: hand the shards around"
            return f"{said} not the casts of all main parameters: write those over them"
    return None


def stands_still(case: Case, seen: Observation, step: int, rank: int, params: Tensor) -> bool:
    before = seen.records[rank].value[step - 1][1] if step else case.args[0][0].half()
    return torch.equal(params, before)


OVERFLOW = (
    "Run the sketch with an inf in one rank's gradient, and see who leaves and who waits.",
    "The sum of squares of all shards is needed for the norm anyway, and an inf or nan in any shard is in it, too.",
)
"""For a step that is taken by some, or hangs."""

MENDED = Exercise(
    "mended_step",
    cases,
    (
        Claim("all ranks take a step, or all skip it", flags, OVERFLOW),
        Claim(
            "main parameters get the clipped mean of the real gradients, in fp32",
            mains,
            (
                "First reduce, then convert to fp32 and divide by the scale; from then on all is as in fp32 training.",
                "Whose norm, and in which units, is compared with the limit?",
                "What becomes of 1.0 in fp16 that is changed by 1e-5? Which copy would feel it?",
            ),
        ),
        Claim(
            "the parameters are the casts of all main parameters",
            casts,
            ("Main parameters change first. Then every rank needs what the others' have become, in fp16.",),
        ),
    ),
    hints=OVERFLOW,
    run=run_steps,
)
