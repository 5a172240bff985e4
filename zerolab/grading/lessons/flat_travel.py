"""Exercise of lesson 02: gradients averaged in one call, after backward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import torch

from zerolab.collectives import Collectives, wire_bytes
from zerolab.grading.case import Case, plural
from zerolab.grading.claims import Wanted, most_sent, number_of_calls, right, untouched
from zerolab.grading.draw import signed
from zerolab.grading.exercise import Claim, Exercise, Score

Tensor = torch.Tensor
Answer = Callable[..., Any]
Gradients = Sequence[Tensor | None]


def mean_of(gradients: Sequence[Gradients], like: Sequence[Tensor], by: float | None) -> list[Tensor]:
    """For each parameter or layer the sum over the ranks, divided; by the number of ranks that have one, if by=None."""
    means = []
    for index, shaped in enumerate(like):
        have = [gradient for mine in gradients if (gradient := mine[index]) is not None]
        means.append(torch.stack([torch.zeros_like(shaped), *have]).sum(0) / (by or max(len(have), 1)))
    return means


def average_case(
    rng: Random, shapes: Sequence[tuple[int, ...]], ranks: int, world: str, skips: bool, board: bool = False
) -> Case:
    values = [signed(rng, max(1, torch.Size(shape).numel())).view(shape) for shape in shapes]
    frozen = [rng.randrange(len(shapes))] if skips and len(shapes) > 2 else []
    mine: list[list[Tensor | None]] = [
        [
            None if number in frozen else signed(rng, value.numel()).view(value.shape)
            for number, value in enumerate(values)
        ]
        for _ in range(ranks)
    ]
    trained = [number for number in range(len(shapes)) if number not in frozen]
    missing = []
    if skips:
        missing = [(ranks - 1, trained[0]), *((rank, trained[-1]) for rank in range(ranks) if rank != 1)]
        for rank, number in missing:
            mine[rank][number] = None
    args: list[tuple[Any, ...]] = [(values, mine[rank], frozen) for rank in range(ranks)]
    lacks = f", (rank, parameter) without .grad: {missing[:4]}" if missing else ""
    about = f"on {plural(ranks, 'rank')}, parameters of shapes {list(shapes)}{lacks}"
    return Case(args, world, f"{about}, {frozen} frozen" if frozen else about, board=board)


def average_cases(rng: Random) -> list[Case]:
    def shapes() -> list[tuple[int, ...]]:
        drawn = [(rng.randint(1, 3), rng.randint(1, 4)), (rng.randint(1, 7),), (), (rng.randint(2, 4), 1)]
        rng.shuffle(drawn)
        return drawn

    cases = [average_case(rng, shapes(), ranks, "lockstep", skips) for ranks in (2, 3, 4) for skips in (False, True)]
    cases += [average_case(rng, shapes(), 1, "lockstep", True), average_case(rng, shapes(), 2, "processes", True)]
    return [*cases, average_case(rng, [(32, 32), (32,), (64, 32)], 4, "lockstep", False, board=True)]


def run_average(
    fn: Answer, comm: Collectives, values: list[Tensor], gradients: list[Tensor | None], frozen: list[int]
) -> list[Tensor | None]:
    """Parameters as a backward leaves them, then the answer, then their gradients."""
    parameters = [torch.nn.Parameter(value, requires_grad=n not in frozen) for n, value in enumerate(values)]
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = None if gradient is None else gradient.clone()
    fn(comm, parameters)
    return [None if parameter.grad is None else parameter.grad.detach() for parameter in parameters]


def average_wanted(case: Case) -> Wanted:
    values, _, frozen = case.args[0]
    gradients = [args[1] for args in case.args]

    def thawed(means: list[Tensor]) -> list[Tensor | None]:
        return [None if number in frozen else mean for number, mean in enumerate(means)]

    good = thawed(mean_of(gradients, values, case.ranks))
    lost = [[None if g is None else mean for g, mean in zip(mine, good, strict=True)] for mine in gradients]
    mistakes: dict[str, Sequence[Any]] = {
        "the sum of the gradients: take their mean": [thawed(mean_of(gradients, values, 1))] * case.ranks,
        "gradients that are its own, as before: write the result back to .grad": gradients,
        "the mean over those ranks alone that have a gradient: the others count as zeros": [
            thawed(mean_of(gradients, values, None))
        ] * case.ranks,
        "no gradient where it had none of its own: every rank needs the mean, or its copy of the model drifts": lost,
        "a gradient for a frozen parameter: leave out what does not require one": [
            mean_of(gradients, values, case.ranks)
        ] * case.ranks,
    }  # fmt: skip
    look = "does each part of the row go back to the parameter it came from?"
    return Wanted([good] * case.ranks, mistakes, look, did="ended with")


def average_bytes(case: Case) -> int:
    numel = sum(value.numel() for value in case.args[0][0])
    return max(wire_bytes("all_reduce", numel, 4, case.ranks, rank) for rank in range(case.ranks))


AVERAGE = Exercise(
    "average_gradients",
    average_cases,
    (
        Claim("every rank ends with the mean in every .grad", right(average_wanted)),
        Claim("parameters keep their values", untouched(0)),
    ),
    run=run_average,
    scores=(
        Score(
            "calls of collectives",
            number_of_calls,
            lambda case: 1,
            "each call waits for messages to start: what could travel together?",
            exactly=True,
        ),
        Score(
            "bytes a rank sends", most_sent, average_bytes, "which collective sums without sending everything to all?"
        ),
    ),
    hints=(
        "All ranks have the same parameters, but not the same gradients. What must not depend on the gradients?",
        "A row with a place for each parameter that requires gradients; zeros where there is no .grad.",
        "torch.cat, one all_reduce, split, and view_as for the shape.",
    ),
)
