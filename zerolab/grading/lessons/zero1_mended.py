"""The sketch of lesson 03's exercises: an optimizer with four faults, mended."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import torch

from zerolab.collectives import Collectives
from zerolab.grading.case import Case, Observation, plural
from zerolab.grading.claims import Wanted, right
from zerolab.grading.draw import signed
from zerolab.grading.exercise import Claim, Exercise
from zerolab.grading.lessons.zero1_claims import ANEW, SUM, TWICE, UNSHARED, adam, only, patched, trained, uncut

Tensor = torch.Tensor


def sketch_case(rng: Random, ranks: int, numels: Sequence[int], world: str) -> Case:
    tensors = [signed(rng, numel) for numel in numels]
    args: list[tuple[Any, ...]] = [
        (tensors, [[signed(rng, numel) for numel in numels] for _ in range(2)]) for _ in range(ranks)
    ]
    return Case(args, world, f"on {plural(ranks, 'rank')}, tensors of {list(numels)} elements")


def sketch_cases(rng: Random) -> list[Case]:
    def drawn(count: int) -> list[int]:
        return [rng.randint(1, 9) for _ in range(count)]

    shapes = [(2, [4, 4]), (2, drawn(3)), (3, drawn(4)), (4, drawn(3)), (1, drawn(2)), (4, [1])]
    return [sketch_case(rng, ranks, numels, "lockstep") for ranks, numels in shapes] + [
        sketch_case(rng, 2, drawn(3), "processes")
    ]


def run_optimizer(fn: Callable[..., Any], comm: Collectives, tensors: list[Tensor], steps: list[list[Tensor]]) -> Any:
    """Build the optimizer on parameters of this rank's own, and take steps with the gradients given. [The parameters,
    elements in states, whether gradients stay as they were, whether parameters stay where they were]."""
    parameters = [torch.nn.Parameter(tensor.clone()) for tensor in tensors]
    places = [parameter.detach() for parameter in parameters]
    made: list[torch.optim.Optimizer] = []

    def make(tensor: Tensor) -> torch.optim.Optimizer:
        made.append(adam(tensor))
        return made[-1]

    optimizer = fn(comm, parameters, make)
    same = True
    for gradients in steps:
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient.clone()
        optimizer.step()
        for parameter, gradient in zip(parameters, gradients, strict=True):
            same = same and parameter.grad is not None and torch.equal(parameter.grad, gradient)
    stay = all(parameter.data_ptr() == place.data_ptr() for parameter, place in zip(parameters, places, strict=True))
    return [[parameter.detach() for parameter in parameters], sum(map(states_of, made)), same, stay]


def states_of(optimizer: torch.optim.Optimizer) -> int:
    """Elements in the states of an optimizer."""
    return sum(value.numel() for state in optimizer.state.values() for value in state.values() if value.dim())


def sketch_wanted(case: Case) -> Wanted:
    tensors, ranks = case.args[0][0], case.ranks
    lengths = [tensor.numel() for tensor in tensors]
    row = torch.cat(list(tensors))
    rows = [[torch.cat(list(step)) for step in args[1]] for args in case.args]
    steps = [torch.stack(step) for step in zip(*rows, strict=True)]
    good = trained(row, [step.mean(0) for step in steps])
    # Tensors that are left over where each rank takes len(tensors) // ranks.
    dealt = sum(lengths[: len(tensors) // ranks * ranks])

    def everywhere(value: Tensor) -> list[list[Tensor]]:
        return [list(value.split(lengths))] * ranks

    mistakes = {
        "every tensor as it began: copy the row back into the parameters": everywhere(row),
        "the tensors at the end of the list as they began: no rank owns them": everywhere(
            torch.cat([good[:dealt], row[dealt:]])
        ),
        "the last elements of the row as they began: numel // N leaves a rest": everywhere(uncut(ranks, row, good)),
        "the other ranks' pieces as they began: nobody sent them here": [
            list(patched(ranks, row, only(ranks, rank, good)).split(lengths)) for rank in range(ranks)
        ],
        SUM: everywhere(trained(row, [step.sum(0) for step in steps])),
        TWICE: everywhere(trained(row, [step.mean(0) / ranks for step in steps])),
        UNSHARED: everywhere(patched(ranks, row, [trained(row, gradients) for gradients in rows])),
        ANEW: everywhere(trained(row, [step.mean(0) for step in steps], anew=True)),
        "what gradients of different elements give: in one call all ranks must bring the same ones": everywhere(
            trained(row, [mixed(step) for step in steps])
        ),
    }
    return Wanted(
        [list(good.split(lengths))] * ranks, mistakes, "who updates it, and with whose gradient?", did="ends with"
    )


def mixed(step: Tensor) -> Tensor:
    """The mean that comes out where each rank brings its own piece of its gradients, padded, to an all-reduce."""
    ranks, numel = step.shape
    each = -(-numel // ranks)
    pieces = torch.nn.functional.pad(step, (0, each * ranks - numel)).view(ranks, ranks, each)
    return pieces.diagonal().mean(1).repeat(ranks)[:numel]


def sketch_right(case: Case, seen: Observation) -> str | None:
    records = [replace(record, value=record.value[0]) for record in seen.records]
    return right(sketch_wanted)(case, replace(seen, records=records))


def sketch_small(case: Case, seen: Observation) -> str | None:
    numel = sum(tensor.numel() for tensor in case.args[0][0])
    most = -(-numel // case.ranks)
    kept = [record.value[1] for record in seen.records]
    rank = kept.index(max(kept))
    if kept[rank] <= 2 * most:
        return None
    said = f"rank {rank}'s optimizers keep {kept[rank]} numbers, and two for each of {most} elements are due"
    if min(kept) >= 2 * numel:
        return f"{case.about}: {said}. They see every element on every rank: make one for a piece alone"
    return f"{case.about}: {said}: cut through tensors, as lesson 02 does"


def sketch_gradients(case: Case, seen: Observation) -> str | None:
    for rank, record in enumerate(seen.records):
        if not record.value[2]:
            said = f"{case.about}: step() changes the .grad of rank {rank}'s parameters, which belong to the caller"
            return f"{said}: reduce a tensor of your own"
    return None


def sketch_places(case: Case, seen: Observation) -> str | None:
    for rank, record in enumerate(seen.records):
        if not record.value[3]:
            return f"{case.about}: rank {rank}'s parameters have moved to new memory: copy the numbers into the old"
    return None


MENDED = Exercise(
    "MendedOptimizer",
    sketch_cases,
    (
        Claim("every rank ends with the parameters that one optimizer would have trained", sketch_right),
        Claim("no rank's optimizers keep more than one N-th", sketch_small),
        Claim("gradients stay as they were", sketch_gradients),
        Claim("parameters keep their memory", sketch_places),
    ),
    run=run_optimizer,
    hints=(
        "Three tensors over two ranks: which of them does the broken one never give to anybody?",
        "Put the parameters end to end (torch.cat), and give each rank its piece of that row, whatever it cuts.",
        "In step: the row of gradients, reduced to the mean of your piece; update; gather; copy the row back into the "
        "parameters.",
    ),
)
