"""The exercise of lesson 04 that mends a backward with five faults."""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import torch
from torch import nn

from zerolab.collectives import Collectives
from zerolab.grading.case import Case, Observation, decode, encode, plural
from zerolab.grading.claims import Wanted, most_held, most_sent, right, short
from zerolab.grading.exercise import Claim, Exercise, Score
from zerolab.grading.lessons.zero2_backward import (
    flat,
    gradients_of,
    in_time_target,
    model_cases,
    nothing_kept,
    sent_once,
    shards_by_rank,
    still_there,
    summed,
)

Tensor = torch.Tensor
LOOK = "print the index and the parameter in each hook, on one rank"


ROUNDS = 3


def mended_cases(rng: Random) -> list[Case]:
    return model_cases(rng, ROUNDS, ROUNDS)


class Results:
    """The rank's collectives, with weak references to what reduce_scatter returned."""

    def __init__(self, comm: Collectives) -> None:
        self.comm = comm
        self.known: list[weakref.ref[Tensor]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.comm, name)

    def reduce_scatter(self, *args: Any, **kwargs: Any) -> Tensor:
        result = self.comm.reduce_scatter(*args, **kwargs)
        self.known.append(weakref.ref(result))
        return result


def run_mended(fn: Callable[..., Any], comm: Collectives, model: nn.Module, rounds: list[Tensor]) -> Any:
    """Build it on the model's parameters, and run one backward after the other. Of shards that come in between, values
    alone are kept, so that they take no memory."""
    results = Results(comm)
    mended = fn(results, list(model.parameters()))
    after = []
    for inputs in rounds:
        try:
            model(inputs).square().mean().backward()
        except RuntimeError as error:
            if re.search("size of tensor|shape", str(error)) is None:
                raise
            said = "it adds shards of different sizes, so of two parameters: which index does each hook see?"
            raise RuntimeError(said) from error
        after.append(mended.shards if inputs is rounds[-1] else encode(mended.shards))
        kept = sum(parameter.grad is not None for parameter in model.parameters())
    own = {storage(shard) for shard in mended.shards if isinstance(shard, Tensor)}
    others = [result for result in results.known if storage(result()) not in own]
    return {"after": after, "kept": kept, "more": still_there(others)}


def storage(tensor: Tensor | None) -> int | None:
    """Where a tensor's bytes lie: a view of it has the same."""
    return None if tensor is None else tensor.untyped_storage().data_ptr()


def mended_right(case: Case, seen: Observation) -> str | None:
    """After each backward the shards of all mean gradients so far are there."""
    for index in range(len(case.args[0][1])):
        part = Observation([replace(record, value=decode(record.value["after"][index])) for record in seen.records])
        after = f"{case.about}, after {index + 1} backward{'s' if index else ''}"
        for rank, record in enumerate(part.records):
            if not isinstance(record.value, list):
                return f"{after}: `shards` of rank {rank} is {short(record.value)}, and a list is due"
            missing = [at for at, shard in enumerate(record.value) if shard is None]
            if missing:
                said = f"rank {rank} has no shards of the parameters {missing}"
                return f"{after}: {said}: which index does a hook see when it runs, long after the loop has ended?"
        if hint := right(lambda case: wanted_after(case, index))(case, part):  # noqa: B023 (used at once)
            return hint.replace(case.about, after, 1)
    return None


def wanted_after(case: Case, index: int) -> Wanted:
    rounds = [summed(case, each) for each in range(index + 1)]
    total = [torch.stack(parts).sum(0) for parts in zip(*rounds, strict=True)]

    def shards(wholes: list[Tensor], by: float = case.ranks) -> list[list[Tensor]]:
        return shards_by_rank(case, [whole / by for whole in wholes])

    mistakes = {
        "whole gradients: a rank keeps its shard of each": [flat([whole / case.ranks for whole in total])] * case.ranks,
        "shards of the sum over the ranks: take the mean": shards(total, 1),
    }
    if index == 0:
        own = [gradients_of(model, inputs[0]) for model, inputs in case.args]
        mistakes["shards of its own gradients: nothing was added to them"] = [
            shards_by_rank(case, wholes)[rank] for rank, wholes in enumerate(own)
        ]
        return Wanted(shards(total), mistakes, LOOK)

    def added(times: Sequence[int]) -> list[list[Tensor]]:
        """The shards if backward i counts times[i] times."""
        scaled = [[count * whole for whole in each] for count, each in zip(times, rounds, strict=True)]
        return shards([torch.stack(parts).sum(0) for parts in zip(*scaled, strict=True)])

    mistakes["shards of the last backward alone: a new shard is added to the old"] = shards(rounds[-1])
    mistakes["shards in which the first backward counts more than once: parameter.grad still held it"] = added(
        range(index + 1, 0, -1)
    )
    mistakes["the shards of the backward before: does every hook still run?"] = added([1] * index + [0])
    if index > 1:
        middle = added([1, *[0] * (index - 1), 1])
        mistakes["shards of the first and the last backward: those in between are lost"] = middle
    return Wanted(shards(total), mistakes, LOOK)


def nothing_else(case: Case, seen: Observation) -> str | None:
    """Of what reduce_scatter returned, only the shards are still there."""
    for rank, record in enumerate(seen.records):
        if more := record.value["more"]:
            return (
                f"{case.about}: after {ROUNDS} backwards rank {rank} holds {plural(more, 'tensor')} that "
                "reduce_scatter returned, besides `shards`: what has been added up is not needed any more"
            )
    return None


def mended_target(case: Case) -> int:
    """From the second backward on there are all shards when a new one comes, and all activations."""
    model, rounds = case.args[0]
    sizes = [parameter.nbytes for parameter in model.parameters()]
    return in_time_target(case) + max(sizes) // case.ranks + len(sizes) * rounds[0].nbytes


MENDED = Exercise(
    "MendedBackward",
    mended_cases,
    (
        Claim("after each backward every rank has its shards of the mean, added up", mended_right),
        Claim("no parameter keeps a gradient", nothing_kept),
        Claim("of all that was reduced it keeps `shards` alone", nothing_else),
    ),
    run=run_mended,
    scores=(
        Score(
            "bytes a rank sends",
            most_sent,
            lambda case: ROUNDS * sent_once(case),
            "each gradient takes one reduce_scatter; who reduces it twice?",
        ),
        Score(
            "bytes held at the worst moment",
            most_held,
            mended_target,
            "who else knows a whole gradient after its hook has run?",
        ),
    ),
    hints=(
        "A lambda looks up the loop's variable when it runs, and by then it has its last value. partial(fn, index) "
        "takes the value it has now.",
        "After the hook, nothing may know the whole gradient: neither parameter.grad nor a list.",
        "Mending one fault uncovers another: once parameter.grad is dropped, who adds up two backwards?",
    ),
    memory=True,
)
