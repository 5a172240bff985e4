"""The exercise of lesson 06 that mends a mixed-precision step with four faults: how an answer is judged."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from zerolab.course.exercises.mixed_precision.steps import STEPS, Way, cases, run_steps, steps
from zerolab.course.judge.case import Case, Observation
from zerolab.course.judge.exercise import Claim, Exercise
from zerolab.course.judge.same import difference, short

TEXT = """
Find the four faults

A step in fp16 with a loss scale and clipping, as people write it. `params` are all parameters in fp16, `main` this
rank's shard of main parameters in fp32, `gradient` this rank's own, in fp16, *of the loss times* `scale`. The step
subtracts `rate` times the mean gradient, clipped: if the norm of the whole mean gradient is above `limit`, the
gradient is multiplied by limit / norm. The function returns whether a step was taken. It has four faults.

```{code-cell}
:name: shown_sketch

def sketched_step(comm, params, main, gradient, scale, limit, rate):
    if not gradient.isfinite().all():
        return False
    mean = comm.reduce_scatter(gradient, average=True)
    norm = comm.all_reduce(mean.float().square().sum()).sqrt()
    mean = mean * (limit / norm).clamp(max=1.0)
    mean = mean / scale
    shard = params.tensor_split(comm.size)[comm.rank]
    shard -= rate * mean
    comm.all_gather(shard.clone(), out=params)
    return True
```

```{code-cell}
:name: shown_run

def two_steps(comm):
    main = torch.ones(4).tensor_split(comm.size)[comm.rank].clone()
    params = torch.ones(4, dtype=torch.float16)
    for number in (1.0, math.inf):
        gradient = torch.ones(4, dtype=torch.float16)
        gradient[0] = number if comm.rank else 1.0
        print(sketched_step(comm, params, main, gradient, scale=1.0, limit=9.0, rate=0.125), params.tolist())


try:
    launch(two_steps, ranks=2, world="lockstep", device="cpu")
except RankError as error:
    ended = f"{type(error).__name__}: {error}"
ended
```

The second step hangs: rank 1 has seen its own inf and left, and rank 0 waits for it. That is the first fault. Three
more are left for you: think of which numbers the limit is meant for; of fp16's smallest number; of an update too
small for fp16.

- If the mean gradient has an inf or nan in any place, the step is skipped on all ranks: it returns `False`, and
  neither `params` nor `main` changes. One rank's gradient may have brought it. Or the sum over the ranks has
  overflowed, though no summand has: in fp16 it may, and you skip; if you add up in fp32 it does not, and you step.
- Otherwise it returns `True`; `main` is updated *in place*, in fp32, from the real gradients, without the scale;
  `params` become, in place, the casts of all ranks' `main`.

The check draws three steps on 1 to 4 ranks, norms as small as 0.000001, above and below the limit, gradients that are
all zero, inf, -inf or nan on any rank in any place, and large finite numbers, in one place on all ranks or in a place
of its own on each.

About eight lines. The gradient is yours.
"""


def mended_step(comm, params, main, gradient, scale: float, limit: float, rate: float) -> bool:
    """One step in mixed precision; whether it was taken."""
    ### BEGIN SOLUTION
    mean = comm.reduce_scatter(gradient, average=True).float() / scale
    norm = comm.all_reduce(mean.square().sum()).sqrt()
    if not norm.isfinite():
        return False
    main -= rate * (limit / norm).clamp(max=1.0) * mean
    comm.all_gather(main.half(), out=params)
    return True
    ### END SOLUTION


Tensor = torch.Tensor
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
    "what a sum of the shards' norms gives: it is their squares that add up to the square of the norm": Way(
        clips="summed"
    ),
    "what main parameters give that are made from params: those have lost the last bits": Way(from_casts=True),
    "what gradients give that are not clipped: do you compare the norm itself, in the units of the limit?": Way(
        clips="nothing"
    ),
    "what a norm gives that 1e-6 was added to: real gradients are as small as that": Way(eps=1e-6),
    "what a factor above 1 gives: a norm below the limit is no reason to scale up": Way(limited=False),
    "what the sum of the gradients gives: take their mean": Way(mean=False),
    UNSHARED: Way(shared=False),
}


def near(value: object, want: Tensor, apart: Tensor) -> bool:
    """Whether a shard is the wanted one, but for what rounding in another order may do."""
    if not isinstance(value, Tensor) or value.dtype != want.dtype or value.shape != want.shape:
        return False
    return bool(((value - want).abs() <= apart).all())


def far(case: Case, seen: Observation, step: int, way: Way) -> list[int]:
    """The ranks whose main shards are not what a way gives."""
    after = steps(case, way, seen)[step]
    want, apart = after.main.tensor_split(case.ranks), after.apart.tensor_split(case.ranks)
    return [
        rank for rank, record in enumerate(seen.records) if not near(record.value[step][2], want[rank], apart[rank])
    ]


def flags(case: Case, seen: Observation) -> str | None:
    """All ranks return whether the step is taken."""
    kinds = case.args[0][5]
    for step, after in enumerate(steps(case, Way(), seen)):
        got = [record.value[step][0] for record in seen.records]
        if all(value is after.taken for value in got):
            continue
        said = f"in step {step + 1} the ranks return {short(got)}"
        if not all(isinstance(value, bool) for value in got):
            return f"{said}: True where the step is taken, False where it is skipped"
        if kinds[step] == "high":
            return f"{said}: the sum has an overflow, in the shard of one rank, and all have to know of it"
        said += f", and {after.taken} is due"
        if not after.taken and len(set(got)) > 1:
            return f"{said}: an inf or nan in one shard must stop the step on all ranks"
        if not after.taken and case.ranks > 1 and not far(case, seen, 0, MISTAKES[UNSHARED]):
            return f"after step 1 main parameters are {UNSHARED}"
        if not after.taken and kinds[step] == "nan":
            return f"{said}: one gradient has a nan, which is not equal to inf, nor larger or smaller than anything"
        if not after.taken:
            return f"{said}: one gradient has an inf, and the mean with it"
        if kinds[step] == "far":
            return f"{said}: the mean is finite: what else do you add up in fp16, where it overflows by itself?"
        if kinds[step] == "zero":
            return f"{said}: the norm of these gradients is 0: what do you divide by it?"
        return f"{said}: no gradient has an inf or nan, is the norm finite?"
    return None


def mains(case: Case, seen: Observation) -> str | None:
    """Main shards after each step."""
    good = steps(case, Way(), seen)
    for step, after in enumerate(good):
        wrong = far(case, seen, step, Way())
        if not wrong:
            continue
        rank = wrong[0]
        said = f"after step {step + 1} rank {rank}'s main parameters are"
        before = (good[step - 1].main if step else case.args[0][0]).tensor_split(case.ranks)
        got = [record.value[step][2] for record in seen.records]
        if not after.taken:
            return f"{said} changed, though {whose(case, step)}: a step that is skipped changes nothing"
        if hint := no_numbers(case, step, got[rank]):
            return f"{said} {hint}"
        if all(isinstance(got[each], Tensor) and torch.equal(got[each], before[each]) for each in wrong):
            return f"{said} as they were: they are what an update changes, in place"
        for says, way in MISTAKES.items():
            if not set(wrong) & set(far(case, seen, step, way)):
                return f"{said} {says}"
        want = after.main.tensor_split(case.ranks)
        unlike_by = unlike(got[rank], want[rank], after.apart.tensor_split(case.ranks)[rank])
        if times := longer(got, want, before):
            said = f"{said} {unlike_by}: the update is {times:.4g} times the right one"
            return f"{said}: is anything added to the norm, or below its root?"
        for each in wrong:
            if hint := in_16_bits(case, got[each], want[each], before[each]):
                return f"{said} {hint}"
        return f"{said} {unlike_by}: do one step by hand, in fp32"
    return None


def whose(case: Case, step: int) -> str:
    overflown = case.args[0][5][step] == "high"
    return "the ranks say that it is skipped" if overflown else "one gradient has an inf or nan"


def no_numbers(case: Case, step: int, value: object) -> str | None:
    """What to say of main parameters with inf or nan after a step that is taken."""
    if not isinstance(value, Tensor) or value.isfinite().all():
        return None
    if case.args[0][5][step] == "zero":
        return "no numbers any more: the norm is 0, and so is what it divides"
    if case.args[0][5][step] == "high":
        return "no numbers any more: all gradients were finite, and their sum in fp16 was not: look at the mean"
    return "no numbers any more, though no gradient has an inf or nan: which sum, product or quotient has?"


def longer(got: Sequence[object], want: Sequence[Tensor], before: Sequence[Tensor]) -> float | None:
    """How many times as long as due the updates of all ranks are, if they have the right direction."""
    if not all(isinstance(value, Tensor) and value.shape == due.shape for value, due in zip(got, want, strict=True)):
        return None
    begun = torch.cat(list(before))
    mine, due = torch.cat([value for value in got if isinstance(value, Tensor)]) - begun, torch.cat(list(want)) - begun
    times = float(mine.double().dot(due.double()) / due.double().dot(due.double()).clamp(min=1e-30))
    straight = bool(((mine - times * due).abs() <= 2e-4 * times * due.abs() + 1e-8).all())
    return times if straight and times > 0 and abs(times - 1) > 1e-3 else None


def in_16_bits(case: Case, value: object, want: Tensor, before: Tensor) -> str | None:
    """What to say of main parameters that are right but for what fp16 makes of them."""
    if not isinstance(value, Tensor) or value.dtype != want.dtype or value.shape != want.shape:
        return None
    rate = case.args[0][4]
    off, way = (value - want).abs(), (want - before).abs()
    if torch.equal(value, value.half().float()):
        return "all numbers of fp16, as an update in fp16 gives them: which copy is updated, and which is its cast?"
    if bool((off <= ROUNDED * way + 4e-7 * want.abs()).all()):
        return "nearly right, and rounded to 16 bits on their way: which parts of the update are in fp16?"
    # Half a step of fp16's smallest numbers, in a gradient.
    if bool((off <= ROUNDED * way + rate * 2.0**-24).all()):
        return "about what dividing by the scale in fp16 gives: which dtype has the mean when it is divided?"
    return None


def unlike(value: object, want: Tensor, apart: Tensor) -> str:
    """How a main shard differs, with the values counted by the tolerance that judges them."""
    if not isinstance(value, Tensor) or value.dtype != want.dtype or value.shape != want.shape:
        return difference(value, want, 0.0)
    places = sum(not near(value[at], want[at], apart[at]) for at in range(len(want)))
    return f"a tensor with {places} of {len(want)} values wrong"


def casts(case: Case, seen: Observation) -> str | None:
    """Parameters are the casts of all main parameters, on all ranks."""
    for step in range(STEPS):
        whole = torch.cat([record.value[step][2] for record in seen.records]).half()
        for rank, record in enumerate(seen.records):
            params = record.value[step][1]
            if isinstance(params, Tensor) and torch.equal(params, whole):
                continue
            said = f"after step {step + 1} rank {rank}'s parameters are"
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

EXERCISE = Exercise(
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
    text=TEXT,
    answer=(mended_step,),
    points=3,
)
