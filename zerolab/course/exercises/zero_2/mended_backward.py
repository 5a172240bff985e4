"""The exercise of lesson 04 that mends a backward with five faults."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import torch
from torch import nn

from zerolab.collectives import Collectives
from zerolab.course.exercises.wholes import Wholes
from zerolab.course.exercises.zero_2.models import (
    LYING,
    as_it_lies,
    gradients_of,
    in_dtype,
    model_cases,
    numels_of,
    on_the_way,
    shards_by_rank,
    summed,
)
from zerolab.course.exercises.zero_2.shards_in_time import WHOLES, as_it_comes, nothing_kept, sent_once, still_there
from zerolab.course.exercises.zero_2.watch import Reductions, still_known, storage, views_of
from zerolab.course.judge.case import Case, Observation, Record, decode, encode, once, plural
from zerolab.course.judge.claims import each_rank, each_time, most_sent, shared_by
from zerolab.course.judge.exercise import Claim, Exercise, Score
from zerolab.course.judge.mistakes import Wanted, compared
from zerolab.course.judge.same import by_dtype, short
from zerolab.errors import InputError

TEXT = """
Find the five faults

This should be stage 2's backward: built once, it keeps in `shards` this rank's shard of the mean gradient of each
parameter, in the order of `parameters`, and adds up what several backwards bring. It has five faults. Run it.

```{code-cell}
:name: shown_broken

class BrokenBackward:
    def __init__(self, comm, parameters):
        self.comm = comm
        self.shards = [None] * len(parameters)
        self.seen = []
        for index, parameter in enumerate(parameters):
            parameter.register_post_accumulate_grad_hook(lambda parameter: self.reduce(index, parameter))

    def reduce(self, index, parameter):
        whole = parameter.grad.flatten()
        self.seen.append(whole)
        self.shards[index] = self.comm.reduce_scatter(whole)
```

```{code-cell}
:name: shown_run

def two_layers(comm):
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 1, bias=False))
    backward = BrokenBackward(comm, list(model.parameters()))
    model(torch.ones(1, 2)).sum().backward()
    return [None if shard is None else shard.numel() for shard in backward.shards]


launch(two_layers, ranks=2, world="lockstep", device="cpu")[0]
```

Of two parameters only one has a shard, and it stands in the other one's place: a shard of two elements, where the
last layer's has one. That is the first fault. For the others think of the mean; of the memory after backward, of
which there are two faults; and of a second backward.

Write it right. After each backward, `shards` is a list with one 1-D tensor for each parameter, no parameter has a
gradient, and nothing holds a whole one, or a shard besides those in `shards`. The scoreboard is that of exercise 1,
over three backwards. The check draws what it draws there, but no frozen parameter. The first backward brings each
parameter a gradient; one may be left out of the second. Several `MendedBackward` may be alive at once. About eleven
lines.
"""


class MendedBackward:
    """Keeps `shards`: this rank's part of each parameter's mean gradient, added up over backwards."""

    ### BEGIN SOLUTION
    def __init__(self, comm, parameters):
        self.comm = comm
        self.shards = [None] * len(parameters)
        for index, parameter in enumerate(parameters):
            parameter.register_post_accumulate_grad_hook(lambda parameter, index=index: self.reduce(index, parameter))

    def reduce(self, index, parameter):
        shard = self.comm.reduce_scatter(parameter.grad.flatten(), average=True)
        parameter.grad = None
        self.shards[index] = shard if self.shards[index] is None else self.shards[index].add_(shard)

    ### END SOLUTION


Tensor = torch.Tensor
LOOK = "print the index and the parameter in each hook, on one rank"


ROUNDS = 3


def mended_cases(rng: Random) -> list[Case]:
    return model_cases(rng, ROUNDS, ROUNDS, frozen=False)


def run_mended(fn: Callable[..., Any], comm: Collectives, model: nn.Module, rounds: list[Tensor], whole: int) -> Any:
    """Build it on the model's parameters, and run one backward after the other. Of shards that come in between, values
    alone are kept, so that they take no memory. On the way, count reductions and gradients of `whole` bytes."""
    reductions, wholes, between = Reductions(comm), Wholes(model.parameters(), whole), [0]
    passed: list[list[int]] = []

    def on_a_layer() -> None:
        passed[-1].append(reductions.begun)
        between[0] = max(between[0], wholes.now())

    with Wholes(model.parameters(), whole) as building:
        mended = fn(reductions, list(model.parameters()))
    # One of another model, with a single parameter, is alive beside it.
    beside = fn(reductions, [nn.Parameter(torch.ones(comm.size))])
    built, shared = building.now(), shared_by(fn)
    if shared and isinstance(mended.shards, list) and len(mended.shards) != len(list(model.parameters())):
        raise InputError(f"it begins with {len(mended.shards)} items: {shared}")
    on_the_way(model, on_a_layer)
    after = []
    for inputs in rounds:
        passed.append([])
        reductions.begun = 0
        try:
            with wholes:
                model(inputs.detach()).square().mean().backward()
        except RuntimeError as error:
            if re.search("size of tensor|shape", str(error)) is None:
                raise
            raise RuntimeError(f"it adds shards of different sizes, {two_of(fn)}") from error
        after.append(mended.shards if inputs is rounds[-1] else encode(mended.shards))
    kept = sum(parameter.grad is not None for parameter in model.parameters())
    own = {storage(shard) for shard in mended.shards if isinstance(shard, Tensor)}
    known = {storage(result()): result for result in still_known(reductions.known, own) if result() is not None}
    more = still_there(list(known.values()))
    counts = {"wholes": wholes.most, "between": between[0], "passed": passed, "views": views_of(mended.shards, whole)}
    counts["built"] = built
    del beside
    return {"after": after, "kept": kept, "more": more, **counts}


def two_of(fn: Any) -> str:
    """Of which two things an answer mixes up the shards."""
    if shared := shared_by(fn):
        return f"so of two models: {shared}"
    return "so of two parameters: which index does each hook see?"


def mended_right(case: Case, seen: Observation, index: int) -> str | None:
    """After each backward the shards of all mean gradients so far are there."""
    seen = replace(seen, records=[replace(record, value=decode(record.value)) for record in seen.records])
    return shards_there(case, seen) or compared(wanted_after(case, index), seen, by_dtype)


@each_rank
def shards_there(case: Case, rank: int, record: Record) -> str | None:
    if not isinstance(record.value, list):
        return f"`shards` of rank {rank} is {short(record.value)}, and a list is due"
    missing = [at for at, shard in enumerate(record.value) if shard is None]
    empty = [at for at, numel in enumerate(numels_of(case)) if not numel]
    said = f"rank {rank} has no shards of the parameters {missing}"
    if not missing:
        return None
    if missing == empty:
        return f"{said}: they have no elements, and neither has their shard, but it is due"
    if set(missing) < set(empty):
        look = "without elements they all have one address (data_ptr() is 0), one shape, and equal numbers"
        return f"{said}: {look}: tell parameters apart by their place in the list"
    return f"{said}: which index does a hook see when it runs, long after the loop has ended?"


@once
def wanted_after(case: Case, index: int) -> Wanted:
    rounds = [summed(case, each) for each in range(index + 1)]
    total = [torch.stack(parts).sum(0) for parts in zip(*rounds, strict=True)]

    def shards(wholes: list[Tensor], by: float = case.ranks) -> list[list[Tensor]]:
        return shards_by_rank(case, in_dtype(case, [whole / by for whole in wholes]))

    mistakes = {
        "whole gradients: a rank keeps its shard of each": [
            [whole.flatten() for whole in in_dtype(case, [whole / case.ranks for whole in total])]
        ]
        * case.ranks,
        LYING: shards([as_it_lies(*pair) for pair in zip(total, case.args[0][0].parameters(), strict=True)]),
        "shards of the sum over the ranks: take the mean": shards(total, 1),
    }
    if index == 0:
        own = [gradients_of(model, inputs[0]) for model, inputs, _ in case.args]
        mistakes["shards of its own gradients: nothing was added to them"] = [
            shards_by_rank(case, wholes)[rank] for rank, wholes in enumerate(own)
        ]
        return Wanted(shards(total), mistakes, LOOK)

    def added(times: Sequence[int]) -> list[list[Tensor]]:
        """The shards if backward i counts times[i] times."""
        scaled = [[count * whole for whole in each] for count, each in zip(times, rounds, strict=True)]
        return shards([torch.stack(parts).sum(0) for parts in zip(*scaled, strict=True)])

    mistakes[f"a mean over the {index + 1} backwards, too: what several of them bring is added up"] = shards(
        total, case.ranks * (index + 1)
    )
    mistakes["shards of the last backward alone: a new shard is added to the old"] = shards(rounds[-1])
    mistakes["shards in which the first backward counts more than once: parameter.grad still held it"] = added(
        range(index + 1, 0, -1)
    )
    mistakes["the shards of the backward before: does every hook still run?"] = added([1] * index + [0])
    if index > 1:
        middle = added([1, *[0] * (index - 1), 1])
        mistakes["shards of the first and the last backward: those in between are lost"] = middle
    return Wanted(shards(total), mistakes, LOOK)


@each_rank
def nothing_else(case: Case, rank: int, record: Record) -> str | None:
    """Of what reduce_scatter returned, only the shards are still there."""
    said = f"after {ROUNDS} backwards rank {rank} holds {plural(record.value['more'], 'tensor')} that reduce_scatter"
    look = "what has been added up is not needed any more, nor is room for the next one"
    return f"{said} returned, besides `shards`: {look}" if record.value["more"] else None


EXERCISE = Exercise(
    "MendedBackward",
    mended_cases,
    (
        Claim(
            "after each backward every rank has its shards of the mean, added up",
            each_time("after", mended_right, "after backward {}"),
            (
                "A lambda looks up the loop's variable when it runs, and by then it has its last value. partial(fn, "
                "index) takes the value it has now.",
                "The mean is over the ranks; over backwards it is a sum, of shards.",
                "Mending one fault uncovers another: once parameter.grad is dropped, who adds up two backwards?",
            ),
        ),
        Claim(
            "no parameter keeps a gradient",
            nothing_kept,
            ("After the hook, nothing may know the whole gradient, and parameter.grad is the first that does.",),
        ),
        Claim(
            "of all that was reduced it keeps `shards` alone",
            nothing_else,
            ("A new shard is needed until it has been added to the old one. Which list or attribute still knows it?",),
        ),
        Claim("each gradient is reduced as backward brings it", as_it_comes),
    ),
    run=run_mended,
    scores=(
        Score(
            "bytes a rank sends",
            most_sent,
            lambda case: ROUNDS * sent_once(case),
            "each gradient takes one reduce_scatter; who reduces it twice?",
        ),
        WHOLES,
    ),
    hints=("After the hook, nothing may know the whole gradient: neither parameter.grad nor a list.",),
    text=TEXT,
    answer=(MendedBackward,),
    points=2,
)
