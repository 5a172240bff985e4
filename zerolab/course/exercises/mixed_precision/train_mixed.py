"""The exercise of lesson 06 on main parameters: fp32 for the own shard, bf16 for all that is computed with or sent.

The numbers are such that fp32 has them exactly: starts are whole multiples of 2**-17, gradients of UNIT, and the rate,
which has more bits than bf16, brings those to 2**-22. So the order of additions does not matter, and what differs at
all has been rounded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from zerolab.collectives import Collectives
from zerolab.course.exercises.twice import begins_anew, snapshot
from zerolab.course.judge.case import Case, Observation, Record, decode, encode, once, plural
from zerolab.course.judge.claims import (
    each_rank,
    most,
    most_held,
    most_in_a_ring,
    most_sent,
    number_of_calls,
    part,
    untouched,
)
from zerolab.course.judge.draw import about, signed, sizes
from zerolab.course.judge.exercise import Claim, Exercise, Score
from zerolab.course.judge.mistakes import Wanted, compared
from zerolab.course.judge.same import short

TEXT = """
Main parameters

Stage 1 in mixed precision. `start` holds all parameters in fp32 and is the same on every rank; leave it as it is. You
keep

- `params`: all parameters in bf16, the casts of the main parameters,
- `main`: the main parameters of your own shard, in fp32, cut from `start` as it is.

In each of `steps` steps, call `backward(params)` once. It gives this rank's own gradient, in bf16; it is yours. Take
the *mean* over the ranks, in bf16, and update `main` by `rate * mean`, subtracted and computed in fp32. Then all
ranks get the new parameters: the casts of all shards. The next `backward` must see them. Return `(params, main)`.
About seven lines.

On 4 ranks, the scoreboard wants no more sent than a reduce-scatter and an all-gather a step send, with two bytes an
element. In fp32 it wants nothing that is as long as the model, and in 16 bits at most three such rows at a time, say
a gradient and the parameters before and after.

The check draws 1 to 4 ranks, lengths that N does not divide or that leave a shard empty, starts with bits that bf16
has not, and for each rank and step another gradient, many of them beyond fp16.
"""


def train_mixed(comm, start: torch.Tensor, backward, steps: int, rate: float) -> tuple[torch.Tensor, torch.Tensor]:
    """All parameters in bf16, and this rank's main parameters in fp32, after all steps."""
    ### BEGIN SOLUTION
    params = start.bfloat16()
    main = start.tensor_split(comm.size)[comm.rank].clone()
    for _ in range(steps):
        mean = comm.reduce_scatter(backward(params), average=True)
        main -= rate * mean.float()
        comm.all_gather(main.bfloat16(), out=params)
    return params, main
    ### END SOLUTION


Tensor = torch.Tensor
STEPS, BOARD_STEPS = 4, 6
BOARD_NUMEL = 1024
EXACT = 1e-8
OUTLIVES = (
    "the first call is right, and a second one, from another start, is wrong on rank {rank}: what outlives a call?"
)
UNIT = 12 * 2.0**12
"""Multiples of 12 have their mean over 1 to 4 ranks in bf16 exactly. Most of these are beyond fp16."""


def one_case(rng: Random, ranks: int, numel: int, world: str, board: bool = False) -> Case:
    start = torch.tensor([start_value(rng) for _ in range(numel)])
    rate = rng.choice((259, 275, 301)) * 2.0**-34
    steps = BOARD_STEPS if board else STEPS
    args: list[tuple[Any, ...]] = [
        (start, [gradient(rng, numel) for _ in range(steps)], steps, rate, not board) for _ in range(ranks)
    ]
    return Case(args, world, about(ranks, numel, plural(numel, "parameter")), board=board)


def start_value(rng: Random) -> float:
    """From 1 to 2 in size, with bits that bf16 does not have."""
    return rng.choice((-1, 1)) * (1 + rng.randrange(128) / 128 + rng.randrange(1, 100, 2) * 2.0**-16)


def gradient(rng: Random, numel: int) -> Tensor:
    return (UNIT * signed(rng, numel)).bfloat16()


def cases(rng: Random) -> list[Case]:
    drawn = [one_case(rng, ranks, numel, world) for ranks, numel, world in sizes(rng)]
    # The first has elements enough to show every mistake.
    return [one_case(rng, 4, BOARD_NUMEL, "lockstep", board=True), one_case(rng, 2, 40, "lockstep"), *drawn]


class Longest(TorchDispatchMode):
    """Notes the most elements of an fp32 tensor that an answer has made; what it was given does not count."""

    def __init__(self, given: Tensor) -> None:
        super().__init__()
        self.given = given.untyped_storage().data_ptr()
        self.numel = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(made):
            if isinstance(tensor, Tensor) and tensor.dtype == torch.float32:
                storage = tensor.untyped_storage()
                if storage.data_ptr() != self.given:
                    self.numel = max(self.numel, storage.nbytes() // 4)
        return made


def run_training(
    fn: Callable[..., Any],
    comm: Collectives,
    start: Tensor,
    gradients: list[Tensor],
    steps: int,
    rate: float,
    twice: bool,
) -> Any:
    """Hand out a gradient for each call of backward, and note the parameters that it sees, as plain data; with `twice`
    a second call follows, from another start."""

    def train_from(begun: Tensor, seen: list[Any]) -> Any:
        def backward(params: Tensor) -> Tensor:
            if len(seen) == steps:
                raise RuntimeError(f"backward is called more often than the {steps} steps")
            seen.append(encode(params))
            return gradients[len(seen) - 1].clone()

        return fn(comm, begun, backward, steps, rate)

    seen: list[Any] = []
    with Longest(start) as longest:
        value = train_from(start, seen)
    noted = {"value": value, "seen": seen, "longest": longest.numel}
    if not twice:
        return noted
    first = snapshot(value)
    return {**noted, "value": first, "first": first, "kept": value, "again": train_from(-start, [])}


def wanted_again(case: Case) -> list[list[Tensor]]:
    """What a second call returns on each rank."""
    moved = [(-start, *rest) for start, *rest in case.args]
    return end(replace(case, args=moved), Way())


@dataclass
class Way:
    """A way to train, right unless a field says otherwise."""

    mean_by: float = 0.0  # what the sum is divided by; N if 0
    main: torch.dtype = torch.float32  # what the update changes
    update: torch.dtype = torch.float32  # what rate * mean is computed in
    rounded_start: bool = False  # main parameters begin as the bf16 ones
    shared: bool = True  # gradients are reduced
    from_casts: int = STEPS + BOARD_STEPS  # the first step in which main parameters are made from the bf16 ones
    sign: int = 1  # of what is subtracted
    narrow_rate: bool = False  # the rate in bf16


def train(case: Case, way: Way) -> list[tuple[Tensor, Tensor]]:
    """(all parameters in bf16, all main parameters in fp32) before the first step and after each."""
    start, _, steps, rate, _ = case.args[0]
    rate = float(torch.tensor(rate).bfloat16()) if way.narrow_rate else rate
    main = (start.bfloat16() if way.rounded_start else start).to(way.main).clone()
    states = [(main.bfloat16(), main.float())]
    for step in range(steps):
        each = [args[1][step].float() for args in case.args]
        mean = torch.stack(each).sum(0) / (way.mean_by or case.ranks)
        if not way.shared:
            mean = torch.cat([part.tensor_split(case.ranks)[rank] for rank, part in enumerate(each)])
        main = main.bfloat16().to(way.main) if step >= way.from_casts else main
        main = main - way.sign * (rate * mean.to(way.update)).to(way.main)
        states.append((main.bfloat16(), main.float()))
    return states


def end(case: Case, way: Way) -> list[list[Tensor]]:
    """What every rank returns where all train in this way."""
    params, main = train(case, way)[-1]
    return [[params, shard] for shard in main.tensor_split(case.ranks)]


def stale(case: Case, base: Tensor, good: Tensor, ranks: Sequence[int] | None = None) -> list[Tensor]:
    """For each rank: `base`, with its own shard of `good` alone."""
    rows = []
    for rank in range(case.ranks):
        row = base.clone()
        row.tensor_split(case.ranks)[rank].copy_(good.tensor_split(case.ranks)[rank])
        rows.append(row)
    return rows


@once
def wanted(case: Case) -> Wanted:
    states = train(case, Way())
    (begun, start), (before, _), (params, main) = states[0], states[-2], states[-1]
    shards = list(main.tensor_split(case.ranks))
    even = len(main) // case.ranks * case.ranks
    cut = torch.cat([params[:even], begun[even:]])
    mistakes: dict[str, Sequence[Any]] = {
        "the parameters alone: return the shard of main parameters, too": [params] * case.ranks,
        "the main parameters of all: keep and return your own shard": [[params, main]] * case.ranks,
        "main parameters that began as the bf16 ones: what start has in its last bits belongs to them": end(
            case, Way(rounded_start=True)
        ),
        "what an update of the bf16 parameters gives: small steps are rounded away, and nobody collects them": end(
            case, Way(main=torch.bfloat16)
        ),
        "what rate * mean gives in bf16: convert the mean to fp32 first": end(case, Way(update=torch.bfloat16)),
        "main parameters that were made from the bf16 ones in a step: those have lost the last bits": end(
            case, Way(from_casts=0)
        ),
        "main parameters that were made from the bf16 ones in the second step: those have lost the last bits": end(
            case, Way(from_casts=1)
        ),
        "what a rate gives that was rounded to bf16: it is a Python float": end(case, Way(narrow_rate=True)),
        "what gradients give that are added: the step goes against them": end(case, Way(sign=-1)),
        "what the sum of the gradients gives: take their mean": end(case, Way(mean_by=1)),
        "what gradients give that are divided by N twice: average=True has divided them already": end(
            case, Way(mean_by=case.ranks**2)
        ),
        "shards that were trained without the other ranks' gradients: reduce before you update": end(
            case, Way(shared=False)
        ),
        "parameters in which its own shard alone is new: hand the shards around": [
            [row, shard] for row, shard in zip(stale(case, begun, params), shards, strict=True)
        ],
        "the parameters as they began: what becomes of them after an update?": [[begun, shard] for shard in shards],
        "parameters that are one step late: cast and gather after the update": [[before, shard] for shard in shards],
        "parameters in fp32: what is computed with and sent has 16 bits": [[main, shard] for shard in shards],
        "fp32 parameters rounded to bf16 numbers: they should have the dtype, too": [
            [params.float(), shard] for shard in shards
        ],
        "parameters whose last bits were cut off: a cast rounds to the nearest": [
            [(main.view(torch.int32) >> 16 << 16).view(torch.float32).bfloat16(), shard] for shard in shards
        ],
        "main parameters in bf16: a cast of them may have been kept in their place": [
            [params, shard.bfloat16()] for shard in shards
        ],
        "the main parameters rounded to what bf16 has: is the cast a tensor of its own?": [
            [params, shard.bfloat16().float()] for shard in shards
        ],
        "the main parameters as they began: does the update reach what you return?": [
            [params, shard] for shard in start.tensor_split(case.ranks)
        ],
        "the two in the other order: first the parameters": [[shard, params] for shard in shards],
        "parameters with elements at the end as they began: numel // N leaves a rest": [
            [cut, shard] for shard in shards
        ],
    }
    return Wanted([[params, shard] for shard in shards], mistakes, "train one step on two ranks by hand")


def parts(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def returned(case: Case, seen: Observation) -> str | None:
    """The value, judged exactly."""
    return two_finite(case, seen) or compared(wanted(case), seen, EXACT)


@each_rank
def two_finite(case: Case, rank: int, record: Record) -> str | None:
    if any(isinstance(one, Tensor) and not one.isfinite().all() for one in parts(record.value)):
        said = f"rank {rank} returned inf or nan, which is what went through fp16 gives"
        return f"{said}: bf16 has two bytes, too, and reaches as far as fp32"
    # The parameters alone are a mistake that is known.
    if isinstance(record.value, list) or (isinstance(record.value, Tensor) and record.value.dtype == torch.bfloat16):
        return None
    return f"rank {rank} returned {short(record.value)}: two tensors are due, the parameters and your main shard"


@each_rank
def called(case: Case, rank: int, record: Record) -> str | None:
    """backward is called once a step, and sees all parameters in bf16."""
    numel, steps = len(case.args[0][0]), case.args[0][2]
    rows = [decode(row) for row in record.value["seen"]]
    if len(rows) != steps:
        return f"rank {rank} calls backward {len(rows)} times, and {steps} steps are due: a gradient for each step"
    for row in rows:
        if not isinstance(row, Tensor) or row.numel() != numel:
            said = f"rank {rank} gives backward {short(row)}, and {plural(numel, 'parameter')} are due"
            return f"{said}: it computes with the whole model"
        if row.dtype != torch.bfloat16:
            said = f"rank {rank} gives backward {row.dtype}, and bf16 is due"
            return f"{said}: forward and backward compute in 16 bits"
    return None


@once
def published(case: Case) -> list[Tensor]:
    """The parameters in bf16 that each backward should see, and those at the end."""
    return [params for params, _ in train(case, Way())]


@each_rank
def seen_fresh(case: Case, rank: int, record: Record) -> str | None:
    """Each backward sees what the step before has published."""
    states = published(case)
    for step, row in enumerate(map(decode, record.value["seen"])):
        if torch.equal(row, states[step]):
            continue
        said = f"backward {step + 1} of rank {rank} sees"
        if step and torch.equal(row, states[0]):
            return f"{said} the parameters as they began: it computes with the newest, so gather in every step"
        if step and torch.equal(row, stale(case, states[0], states[step])[rank]):
            return f"{said} new parameters in its own shard alone: it computes with the newest of all"
        return f"{said} parameters that are not those of the step before: gather after every update"
    return None


def sent_target(case: Case) -> int:
    """A reduce-scatter and an all-gather a step, of two bytes an element."""
    numel = len(case.args[0][0])
    return BOARD_STEPS * most_in_a_ring([("reduce_scatter", numel), ("all_gather", numel)], 2, case.ranks)


def held_target(case: Case) -> int:
    """Three rows of two bytes: a gradient beside the parameters before and after, or beside that of the step before. Of
    a shard main parameters before and after, the means of two steps, a mean in fp32, the product, the casts of two
    steps, and what a ring receives into: 4 + 4 + 2 + 2 + 4 + 4 + 2 + 2 + 4."""
    numel = len(case.args[0][0])
    return 6 * numel + 28 * numel // case.ranks + 64


EXERCISE = Exercise(
    "train_mixed",
    cases,
    (
        Claim("backward is called once a step, with all parameters in bf16", called),
        Claim(
            "every rank returns all parameters in bf16 and its own shard of main parameters in fp32",
            part("value", returned),
        ),
        Claim("each backward sees the parameters of the step before", seen_fresh),
        Claim("the start stays as it was", untouched(0)),
        Claim("a second call begins anew", begins_anew(wanted_again, EXACT)),
    ),
    scores=(
        Score("calls of collectives", number_of_calls, lambda case: 2 * BOARD_STEPS, "two calls a step are enough"),
        Score(
            f"bytes a rank sends in {BOARD_STEPS} steps",
            most_sent,
            sent_target,
            "what travels in fp32, or as a whole? Two halves of an all-reduce, two bytes an element",
        ),
        Score(
            "bytes held at the worst moment",
            most_held,
            held_target,
            "three rows of 16 bits are enough: which gradients or parameters are kept for too long?",
        ),
        Score(
            "elements of the longest fp32 tensor",
            most("longest"),
            lambda case: len(case.args[0][0]) - 1,
            "what is there in fp32 for the whole model? Of main parameters you need your own shard alone",
        ),
    ),
    hints=(
        "Two copies: all parameters in bf16, and of your own shard an fp32 one, cut from `start` before it is cast.",
        "A step: backward, the mean gradient of your shard, an update in fp32, its cast, the casts end to end.",
        "comm.all_gather(shard, out=params) writes over the parameters; the shard must have their dtype.",
    ),
    run=run_training,
    memory=True,
    text=TEXT,
    answer=(train_mixed,),
    points=3,
)
