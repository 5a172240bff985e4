"""The exercise of lesson 04 that mends a backward with five faults."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from zerolab.collectives import Collectives
from zerolab.grading.case import Case, Observation
from zerolab.grading.claims import Wanted, most_held, most_sent, right
from zerolab.grading.exercise import Claim, Exercise, Score
from zerolab.grading.lessons.zero2_backward import (
    flat,
    gradients_of,
    in_time_target,
    model_cases,
    nothing_kept,
    sent_once,
    shards_by_rank,
    summed,
)

Tensor = torch.Tensor


def run_mended(fn: Callable[..., Any], comm: Collectives, model: nn.Module, rounds: list[Tensor]) -> Any:
    """Build it on the model's parameters, and run one backward after the other. Of shards that come in between, values
    alone are kept, so that they take no memory."""
    mended = fn(comm, list(model.parameters()))
    after = []
    for inputs in rounds:
        try:
            model(inputs).square().mean().backward()
        except RuntimeError as error:
            if re.search("size of tensor|shape", str(error)) is None:
                raise
            said = "it adds shards of different sizes, so of two parameters: which index does each hook see?"
            raise RuntimeError(said) from error
        last = inputs is rounds[-1]
        after.append(mended.shards if last else copied(mended.shards))
        kept = sum(parameter.grad is not None for parameter in model.parameters())
    return {"after": after, "kept": kept}


def copied(shards: Any) -> Any:
    return [shard.clone() if isinstance(shard, Tensor) else shard for shard in shards]


def mended_right(case: Case, seen: Observation) -> str | None:
    """After each backward the shards of all mean gradients so far are there."""
    for index in range(len(case.args[0][1])):
        part = Observation([replace(record, value=record.value["after"][index]) for record in seen.records])
        after = f"{case.about}, after {index + 1} backward{'s' if index else ''}"
        for rank, record in enumerate(part.records):
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
    else:
        twice = [2 * first + second for first, second in zip(*rounds, strict=True)]
        mistakes["shards of the last backward alone: a new shard is added to the old"] = shards(rounds[1])
        mistakes["shards in which the first backward counts twice: parameter.grad still held it"] = shards(twice)
    return Wanted(shards(total), mistakes, "print the index and the parameter in each hook, on one rank")


MENDED = Exercise(
    "MendedBackward",
    model_cases,
    (
        Claim("after each backward every rank has its shards of the mean, added up", mended_right),
        Claim("no parameter keeps a gradient", nothing_kept),
    ),
    run=run_mended,
    scores=(
        Score(
            "bytes a rank sends", most_sent, sent_once, "each gradient takes one reduce_scatter; who reduces it twice?"
        ),
        Score(
            "bytes held at the worst moment",
            most_held,
            in_time_target,
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
