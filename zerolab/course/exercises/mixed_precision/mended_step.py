"""The exercise of lesson 06 that mends a mixed-precision step with four faults: how an answer is judged."""

from __future__ import annotations

import math
from random import Random

import torch

from zerolab.course.judge.case import Case, Observation, plural
from zerolab.course.judge.draw import signed, sizes
from zerolab.course.judge.exercise import Claim, Exercise
from zerolab.course.judge.model import Gives, does
from zerolab.course.judge.same import alike

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

The check draws three steps on 1 to 5 ranks, norms as small as 0.000001, above and below the limit, gradients that are
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


MISTAKES = r"""
An inf or nan in one shard must stop the step on all ranks
    if not norm.isfinite():\n        return False => taken = bool(mean.isfinite().all())
    main -= => main -= 0 if not taken else
    return True => return taken
One gradient has an inf or nan, and the mean over the ranks with it
    if not norm.isfinite():\n        return False => pass
what it was: an update changes `main` itself, in place
    main -= rate => main = main - rate
what an update gives of a step that is skipped: such a step changes nothing
    main -= rate * (limit / norm).clamp(max=1.0) * mean => pass
    if not norm => main -= rate * (limit / norm).clamp(max=1.0) * mean\n    if not norm
what clipping gives that looks at scaled gradients: the limit is meant for the real ones
    .float() / scale => .float()
    * mean => * mean / scale
what gradients give that are divided by the scale in fp16: they are too small for it
    .float() / scale => / scale
    mean.square() => mean.float().square()
    * mean => * mean.float()
what an update in fp16 gives: which copy is updated, and which is its cast?
    main -= rate * => part = params.tensor_split(comm.size)[comm.rank]\n    part -= rate *
    comm.all_gather => main.copy_(part)\n    comm.all_gather
what gradients of the scaled loss give: divide by the scale before you use them
    .float() / scale => .float()
what clipping gives by the norm of a rank's own shard: the norm is of all
    comm.all_reduce(mean.square().sum()).sqrt() => comm.all_reduce(mean.square().sum()) * 0 + mean.norm()
what a sum of the shards' norms gives: it is their squares that add up to the square of the norm
    mean.square().sum()).sqrt() => mean.norm())
what main parameters give that are made from params: those have lost the last bits
    main -= => main.copy_(params.tensor_split(comm.size)[comm.rank])\n    main -=
what gradients give that are not clipped: do you compare the norm itself, in the units of the limit?
    (limit / norm).clamp(max=1.0) => 1.0
"""
STEPS = 3
TIGHT, WIDE = 0.5, 5000.0
"""Limits by the norm of the first step's mean; WIDE is so far above it that scaled gradients are below it, too."""
LARGE = 48_000.0
"""fp16 ends at 65,504: two of them are more than it holds, one is not."""
APART, ALIKE = f"a finite {LARGE:g} in a place of its own on each rank", f"a finite {LARGE:g} in one place on all ranks"
POISON = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}
CLOSE = 1e-6
"""Orders of addition differ, and how often fp32 rounds, which is less; what 16 bits lose of an update is more."""


def one_case(rng: Random, ranks: int, numel: int, world: str, share: float, kinds=(), last: bool = False) -> Case:
    """Gradients of `kinds`, plain ones first, ALIKE last; the clipping limit is a `share` of the norm. Poison lies
    anywhere, or, with `last`, in the last element of the last shard."""
    kinds = [*["plain"] * (STEPS - len(kinds)), *kinds]
    start = torch.tensor([rng.choice((-1, 1)) * rng.uniform(0.08, 0.16) for _ in range(numel)])
    scale = rng.choice((2.0**9, 2.0**10, 2.0**11))
    # Near the smallest number of fp16; scaled, fp16 has their mean over the ranks exactly.
    small, most = (20, 80) if ranks == 5 else (12, 150)
    gradients = [
        [(scale * small * 2.0**-31 * signed(rng, numel, most=most)).half() for _ in kinds] for _ in range(ranks)
    ]
    norm = float((torch.stack([each[0].float() for each in gradients]).mean(0) / scale).norm())
    for step, kind in enumerate(kinds):
        owner, place = rng.randrange(ranks), numel - 1 if last else rng.randrange(numel)
        for rank in range(ranks):
            row = gradients[rank][step]
            if kind == "zero":
                row.zero_()
            elif kind in (APART, ALIKE):
                row[(place + rank * (kind == APART)) % numel] = LARGE
            elif kind in POISON and rank == owner:
                row[place] = POISON[kind]
    rate = rng.uniform(0.5, 1.0) * 2.0**17
    args = [(start, each, scale, share * norm, rate, kinds) for each in gradients]
    limit = "tight" if share < 1 else "wide"
    said = f"on {plural(ranks, 'rank')}, {plural(numel, 'parameter')}, a {limit} limit, gradients: {', '.join(kinds)}"
    return Case(args, world, said)


def cases(rng: Random) -> list[Case]:
    drawn = [
        one_case(rng, 2, 24, "lockstep", TIGHT),
        one_case(rng, 2, 24, "lockstep", WIDE),
        one_case(rng, 2, 24, "lockstep", TIGHT, ("inf", "plain")),
        one_case(rng, 2, 24, "lockstep", TIGHT, ("zero", "plain")),
        one_case(rng, 3, 10, "lockstep", WIDE, ("nan", "zero"), last=True),
        one_case(rng, 2, 9, "lockstep", TIGHT, (APART, ALIKE)),
        one_case(rng, 5, 13, "lockstep", TIGHT),
    ]
    bad = [*POISON, *POISON, "zero", APART, ALIKE]
    rng.shuffle(bad)
    for ranks, numel, world in sizes(rng):
        kind = bad.pop() if bad else "nan"
        # Fewer elements than ranks: each rank has no place of its own. And one rank alone adds nothing up.
        kind = "inf" if kind in (APART, ALIKE) and not 1 < ranks <= numel else kind
        drawn.append(one_case(rng, ranks, numel, world, rng.choice((0.4, WIDE)), (kind,)))
    return drawn


def run_steps(fn, comm, start, gradients, scale, limit, rate, kinds):
    """After each step what it returned, the main shard, and the parameters. Where the sum may overflow, the first two
    are noted elsewhere: what is right depends on the dtype in which it adds up."""
    params, main = start.half(), start.tensor_split(comm.size)[comm.rank].clone()
    noted = {"taken": [], "main": [], "params": [], "overflown": []}
    for gradient, kind in zip(gradients, kinds, strict=True):
        taken = fn(comm, params, main, gradient.clone(), scale, limit, rate)
        noted["params"].append(params.clone())
        if kind == ALIKE:
            noted["overflown"] = [taken, main.clone()]
        else:
            noted["taken"].append(taken)
            noted["main"].append(main.clone())
    return noted


IN_FP32 = ("comm.reduce_scatter(gradient", "comm.reduce_scatter(gradient.float()")


def either(case: Case, seen: Observation) -> str | None:
    """Who adds up in fp16 has an overflow, and skips; who does in fp32 has none, and steps."""
    got = [record.value["overflown"] for record in seen.records]
    for change in ((), IN_FP32):
        if alike(got, [record.value["overflown"] for record in does(EXERCISE, case, change).records], CLOSE):
            return None
    said = f"in step {STEPS} the ranks return {[taken for taken, _ in got]}"
    return f"{said}: if the mean has an inf, all skip and change nothing; in fp32 it has none, and all step"


def casts(case: Case, seen: Observation) -> str | None:
    """Parameters are the casts of what all ranks hold, to the last bit."""
    held = [[*record.value["main"], *record.value["overflown"][1:]] for record in seen.records]
    for step, mains in enumerate(zip(*held, strict=True)):
        for rank, record in enumerate(seen.records):
            if not torch.equal(record.value["params"][step], torch.cat(mains).half()):
                said = f"after step {step + 1} rank {rank}'s parameters are not the casts of all main parameters"
                return f"{said}: when those have changed, everybody needs the casts of all shards, in place"
    return None


EXERCISE = Exercise(
    "mended_step",
    cases,
    (
        Claim(
            "all ranks take a step, or all skip it",
            Gives(
                "taken",
                "Look at the gradients of that step: what have you added up, compared, or divided by?",
                say=lambda args, got, want: f"returns {got}, step by step, and {want} is due",
            ),
        ),
        Claim(
            "main parameters get the clipped mean of the real gradients, in fp32",
            Gives("main", "do one step by hand, and print the norm and each dtype", "updates main to", CLOSE),
        ),
        Claim("where the sum overflows in fp16, all ranks step in fp32, or all skip", either),
        Claim("the parameters are the casts of all main parameters", casts),
    ),
    hints=(
        "Run the sketch with an inf in one rank's gradient, and see who leaves and who waits.",
        "The sum of squares of all shards is needed for the norm anyway, and an inf or nan in any shard is in it, too.",
        "First reduce, then convert to fp32 and divide by the scale; from then on all is as in fp32 training.",
        "Whose norm, and in which units, is compared with the limit?",
        "What becomes of 1.0 in fp16 that is changed by 1e-5? Which copy would feel it?",
        "Main parameters change first. Then every rank needs what the others' have become, in fp16.",
    ),
    run=run_steps,
    mistakes=MISTAKES,
    without=frozenset({"dtype"}),
    text=TEXT,
    answer=(mended_step,),
    points=3,
)
