"""The exercise of lesson 04 that reduces gradients inside backward, in time."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from random import Random
from typing import Any

import torch
from torch import nn

from zerolab.collectives import Collectives, wire_bytes
from zerolab.grading.case import Case, Observation, plural
from zerolab.grading.claims import Wanted, most_held, most_sent, right, untouched
from zerolab.grading.draw import signed
from zerolab.grading.exercise import Claim, Exercise, Score

Tensor = torch.Tensor


def shard(whole: Tensor, ranks: int, rank: int) -> Tensor:
    return whole.flatten().tensor_split(ranks)[rank]


def model_of(rng: Random, widths: Sequence[int], bias: bool = True) -> nn.Sequential:
    """Linear layers, drawn from `rng` alone, which neither raise nor lower what passes through them by much."""
    layers = []
    for inside, outside in pairwise(widths):
        layer = nn.utils.skip_init(nn.Linear, inside, outside, bias=bias)
        for parameter in layer.parameters():
            parameter.data.copy_(signed(rng, parameter.numel()).view_as(parameter) / (6 * inside**0.5))
        layers.append(layer)
    return nn.Sequential(*layers)


def model_case(
    rng: Random, ranks: int, widths: Sequence[int], rounds: int, world: str = "lockstep", board: bool = False
) -> Case:
    """The same model on every rank; inputs of the rank's own for each round."""
    model = model_of(rng, widths, bias=not board)
    batch = 1 if board else 2
    args: list[tuple[Any, ...]] = [
        (model, [signed(rng, batch * widths[0]).view(batch, -1) / 4 for _ in range(rounds)]) for _ in range(ranks)
    ]
    numels = [parameter.numel() for parameter in model.parameters()]
    what = f"{len(numels)} of {numels[0]:,}" if board else str(numels)
    return Case(args, world, f"on {plural(ranks, 'rank')}, parameters of {what} elements", board=board)


def model_cases(rng: Random) -> list[Case]:
    def widths() -> list[int]:
        return [rng.randint(2, 5), rng.randint(2, 5), rng.randint(1, 3)]

    cases = [model_case(rng, ranks, widths(), 2) for ranks in (2, 3, 4, 1)]
    cases.append(model_case(rng, 2, widths(), 2, "processes"))
    return [model_case(rng, 4, [32] * 9, 1, board=True), *cases]


def gradients_of(model: nn.Module, inputs: Tensor) -> list[Tensor]:
    """The whole gradients of the loss on one rank's inputs."""
    model = copy.deepcopy(model)
    model(inputs).square().mean().backward()
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


def summed(case: Case, index: int) -> list[Tensor]:
    """The sum over the ranks of the gradients of one round."""
    each = [gradients_of(model, rounds[index]) for model, rounds in case.args]
    return [torch.stack(parts).sum(0) for parts in zip(*each, strict=True)]


def flat(wholes: Sequence[Tensor]) -> list[Tensor]:
    return [whole.flatten() for whole in wholes]


def shards_by_rank(case: Case, wholes: Sequence[Tensor]) -> list[list[Tensor]]:
    return [[shard(whole, case.ranks, rank) for whole in wholes] for rank in range(case.ranks)]


def run_rounds(fn: Callable[..., Any], comm: Collectives, model: nn.Module, rounds: list[Tensor]) -> Any:
    """Call it once for each round. What it left behind ends the rounds, since it would spoil the next one."""
    shards: list[Any] = []
    for inputs in rounds:
        shards.append(fn(comm, model, inputs))
        left = hooks_on(model)
        kept = sum(parameter.grad is not None for parameter in model.parameters())
        if left or kept:
            break
    return {"shards": shards, "hooks": left, "kept": kept}


def hooks_on(model: nn.Module) -> int:
    """Hooks on a model's parameters, of either kind."""
    kinds = ("_post_accumulate_grad_hooks", "_backward_hooks")
    return sum(len(getattr(parameter, kind, None) or ()) for parameter in model.parameters() for kind in kinds)


def no_hooks_left(case: Case, seen: Observation) -> str | None:
    for rank, record in enumerate(seen.records):
        if left := record.value["hooks"]:
            return (
                f"{case.about}: {plural(left, 'hook')} of rank {rank} outlive the call, and would run in the next "
                "backward too: keep what registering returns, and call remove() on it"
            )
    return None


def shards_right(case: Case, seen: Observation) -> str | None:
    """The shards of each call are those of the mean."""
    for index in range(len(case.args[0][1])):
        part = Observation([replace(record, value=record.value["shards"][index]) for record in seen.records])
        if hint := right(lambda case: round_wanted(case, index))(case, part):  # noqa: B023 (used at once)
            return hint.replace(case.about, f"{case.about}, call {index + 1}", 1)
    return None


def round_wanted(case: Case, index: int) -> Wanted:
    own = [gradients_of(model, rounds[index]) for model, rounds in case.args]
    total = summed(case, index)
    mean = [whole / case.ranks for whole in total]
    good = shards_by_rank(case, mean)
    mistakes = {
        "shards of the sum over the ranks: take the mean": shards_by_rank(case, total),
        "whole gradients: a rank keeps its shard of each": [flat(mean)] * case.ranks,
        "its own gradients, whole: nothing was reduced": [flat(wholes) for wholes in own],
        "shards of its own gradients: nothing was added to them": [
            shards_by_rank(case, own[rank])[rank] for rank in range(case.ranks)
        ],
        "the shards in the order in which backward brought them: the model's order is the other way round": [
            shards[::-1] for shards in good
        ],
    }
    if index:
        both = [first / case.ranks + second for first, second in zip(summed(case, 0), mean, strict=True)]
        mistakes["the gradients of two calls added up: each call starts with none"] = shards_by_rank(case, both)
    return Wanted(good, mistakes, "run backward by hand on two ranks, and print what each hook gets")


def nothing_kept(case: Case, seen: Observation) -> str | None:
    for rank, record in enumerate(seen.records):
        if kept := record.value["kept"]:
            return (
                f"{case.about}: {plural(kept, 'parameter')} of rank {rank} still {'has' if kept == 1 else 'have'} a "
                "whole gradient after the call: what ends the life of parameter.grad?"
            )
    return None


def sent_once(case: Case) -> int:
    numels = [parameter.numel() for parameter in case.args[0][0].parameters()]
    return max(
        sum(wire_bytes("reduce_scatter", numel, 4, case.ranks, rank) for numel in numels) for rank in range(case.ranks)
    )


def in_time_target(case: Case) -> int:
    """All shards; of one gradient the whole and the ring's two chunks; a few rows of activations."""
    sizes = [parameter.nbytes for parameter in case.args[0][0].parameters()]
    rows = 4 * case.args[0][1][0].nbytes
    return sum(sizes) // case.ranks + max(sizes) + 2 * max(sizes) // case.ranks + rows


IN_TIME = Exercise(
    "shards_in_time",
    model_cases,
    (
        Claim("its hooks are gone when it returns", no_hooks_left),
        Claim("no parameter has a gradient when it returns", nothing_kept),
        Claim("the model stays as it was", untouched(0)),
        Claim(
            "every rank returns its shard of each mean gradient, in the model's order, call after call", shards_right
        ),
    ),
    run=run_rounds,
    scores=(
        Score(
            "bytes a rank sends",
            most_sent,
            sent_once,
            "each gradient takes one reduce_scatter; what comes on top of it?",
        ),
        Score(
            "bytes held at the worst moment",
            most_held,
            in_time_target,
            "how many whole gradients are there when backward has ended, and when could the first have gone?",
        ),
    ),
    hints=(
        "parameter.register_post_accumulate_grad_hook(fn) calls fn(parameter) as soon as its gradient is complete, "
        "while backward is still at work on the layers before.",
        "The hook reduces parameter.grad.flatten(), keeps the shard, and sets parameter.grad = None.",
        "Keep shards in a dict by parameter; then the order in which they come does not matter.",
    ),
    memory=True,
)
