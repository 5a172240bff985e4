"""The exercise of lesson 04 that reduces gradients inside backward, in time."""

from __future__ import annotations

import copy
import gc
import weakref
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


class Crossed(nn.Module):
    """Holds its layers in another order than it calls them in: its last is called first."""

    def __init__(self, layers: Sequence[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList([*layers[1:], layers[0]])

    def forward(self, inputs: Tensor) -> Tensor:
        for layer in [self.layers[-1], *self.layers[:-1]]:
            inputs = layer(inputs)
        return inputs


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
    rng: Random,
    ranks: int,
    widths: Sequence[int],
    rounds: int,
    world: str = "lockstep",
    board: bool = False,
    crossed: bool = False,
) -> Case:
    """The same model on every rank; inputs of the rank's own for each round."""
    model: nn.Module = model_of(rng, widths, bias=not board)
    if crossed:
        model = Crossed(list(model.children()))
    batch = 1 if board else 2
    args: list[tuple[Any, ...]] = [
        (model, [signed(rng, batch * widths[0]).view(batch, -1) / 4 for _ in range(rounds)]) for _ in range(ranks)
    ]
    numels = [parameter.numel() for parameter in model.parameters()]
    what = f"{len(numels)} of {numels[0]:,}" if board else str(numels)
    other = ", layers called in another order than the model holds them in" if crossed else ""
    return Case(args, world, f"on {plural(ranks, 'rank')}, parameters of {what} elements{other}", board=board)


def model_cases(rng: Random, rounds: int = 2, board_rounds: int = 1) -> list[Case]:
    def widths() -> list[int]:
        return [rng.randint(2, 5), rng.randint(2, 5), rng.randint(1, 3)]

    cases = [model_case(rng, ranks, widths(), rounds) for ranks in (2, 3, 4, 1)]
    cases.append(model_case(rng, 2, widths(), rounds, crossed=True))
    cases.append(model_case(rng, 2, widths(), rounds, "processes"))
    return [model_case(rng, 4, [32] * 9, board_rounds, board=True), *cases]


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
    """Call it once for each round. What it left behind ends the rounds, since it would spoil the next one. Of shards
    that come in between, only copies are kept: the shards themselves should be gone."""
    shards: list[Any] = []
    forwards: list[int] = []
    count = model.register_forward_pre_hook(lambda module, inputs: forwards.append(1))
    for inputs in rounds:
        before = traits(model, inputs)
        got = fn(comm, model, inputs)
        alive: list[Any] = []
        if inputs is not rounds[-1]:
            alive = [weakref.ref(shard) for shard in got if isinstance(shard, Tensor)] if isinstance(got, list) else []
            got = copied(got)
        shards.append(got)
        left = hooks_on(model)
        kept = sum(parameter.grad is not None for parameter in model.parameters())
        changed = changes(before, traits(model, inputs))
        outlive = still_there(alive)
        if left or kept or changed or outlive:
            break
    count.remove()
    state = {"hooks": left, "kept": kept, "changed": changed, "outlive": outlive}
    return {"shards": shards, "forwards": len(forwards) / len(shards), **state}


def copied(shards: Any) -> Any:
    """A list with copies of its tensors; what is no list stays as it is."""
    if not isinstance(shards, list | tuple):
        return shards
    return [shard.clone() if isinstance(shard, Tensor) else shard for shard in shards]


def still_there(tensors: Sequence[Callable[[], Tensor | None]]) -> int:
    """How many of the tensors, known by weak references, somebody still holds."""
    if any(tensor() is not None for tensor in tensors):
        gc.collect(1)  # cycles of late; a whole collection takes long
    return sum(tensor() is not None for tensor in tensors)


def traits(model: nn.Module, inputs: Tensor) -> dict[str, Any]:
    """What a call could leave different besides numbers, by its name: switches, attributes, hooks on modules."""
    found: dict[str, Any] = {"inputs.requires_grad": inputs.requires_grad}
    for name, module in model.named_modules(prefix="model"):
        found[f"{name}.training"] = module.training
        found |= {f"{name}.{own}": "there" for own in vars(module) if own != "training"}
        hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
        found[f"number of hooks on {name}"] = sum(map(len, hooks))
    for name, parameter in model.named_parameters(prefix="model"):
        found[f"{name}.requires_grad"] = parameter.requires_grad
        found |= {f"{name}.{own}": "there" for own in vars(parameter) if not own.startswith("_")}
    return found


def changes(before: dict[str, Any], after: dict[str, Any]) -> str:
    """The first trait that differs, in words, or ''."""
    for name in [*before, *after]:
        first, last = (state.get(name, "missing") for state in (before, after))
        if first != last:
            return f"{name} is {last} after the call, and was {first} before"
    return ""


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


def one_forward(case: Case, seen: Observation) -> str | None:
    for rank, record in enumerate(seen.records):
        if (times := record.value["forwards"]) > 1:
            return f"{case.about}: rank {rank} ran the model {times:g} times in a call: one forward, one backward"
    return None


def model_untouched(case: Case, seen: Observation) -> str | None:
    """Neither numbers nor anything else of the model and its inputs has changed, and nobody holds a shard."""
    if hint := untouched(0, 1)(case, seen):
        return hint
    for rank, record in enumerate(seen.records):
        if changed := record.value["changed"]:
            return f"{case.about}: on rank {rank} {changed}: whoever uses the model next would stumble over it"
        if outlive := record.value["outlive"]:
            return (
                f"{case.about}: the caller of rank {rank} has dropped the shards of call 1, and {outlive} of them are "
                "still held: which name outside the function, or which attribute, knows them?"
            )
    return None


def shards_right(case: Case, seen: Observation) -> str | None:
    """The shards of each call are those of the mean."""
    for index in range(len(case.args[0][1])):
        part = Observation([replace(record, value=record.value["shards"][index]) for record in seen.records])
        if hint := right(lambda case: round_wanted(case, index))(case, part):  # noqa: B023 (used at once)
            return hint.replace(case.about, f"{case.about}, call {index + 1}", 1)
    return None


def arrival(model: nn.Module, inputs: Tensor) -> list[int]:
    """The indices of a model's parameters, in the order in which backward completes their gradients."""
    model, order = copy.deepcopy(model), []
    for index, parameter in enumerate(model.parameters()):
        parameter.register_post_accumulate_grad_hook(lambda parameter, index=index: order.append(index))
    model(inputs).square().mean().backward()
    return order


def round_wanted(case: Case, index: int) -> Wanted:
    order = arrival(case.args[0][0], case.args[0][1][index])
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
        "the shards in the order in which backward brought them: model.parameters() has another": [
            [shards[at] for at in order] for shards in good
        ],
        "the shards in backward's order, turned round: a model need not hold its layers in the order of their calls": [
            [shards[at] for at in reversed(order)] for shards in good
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
        Claim("the model and the inputs stay as they were, and only the caller holds shards", model_untouched),
        Claim("one forward for each backward", one_forward),
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
