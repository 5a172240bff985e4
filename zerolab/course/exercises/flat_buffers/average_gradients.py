"""Exercise of lesson 02: gradients averaged in one call, after backward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import torch

from zerolab.collectives import Collectives
from zerolab.course.judge.case import Case
from zerolab.course.judge.claims import most_sent, never, number_of_calls
from zerolab.course.judge.draw import signed
from zerolab.course.judge.exercise import Claim, Exercise, Score
from zerolab.course.judge.model import Gives
from zerolab.course.judge.same import difference

TEXT = """
One call after backward

Backward has run on every rank, on data of its own. Replace each parameter's `.grad` by the mean over the ranks, and
return nothing.

- A rank may have skipped a layer, or all of them, so that a parameter's `.grad` is `None` *there*. It counts as
  zeros, and it gets the mean, too. If all ranks have `None`, the mean is zero.
- Frozen parameters (`requires_grad` is false) are left alone, with the `.grad` that they may have. They are the same
  on all ranks, and there is at least one that is not frozen.
- Everything is float32 and contiguous. The new gradients require no gradient themselves.

The scoreboard wants one call, whatever the number of parameters, and the bytes of one all-reduce of what is not
frozen. The check draws shapes, also without dimensions or elements; who lacks which gradient; gradients that are
zero, and one that is NaN, as its mean is then; and calls a second time, for other parameters. About eight lines.
"""


def average_gradients(comm, parameters: list[torch.nn.Parameter]) -> None:
    """Replace each .grad by its mean over the ranks."""
    ### BEGIN SOLUTION
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in trained]
    row = torch.cat([gradient.detach().flatten() for gradient in gradients])
    comm.all_reduce(row, average=True)
    for parameter, part in zip(trained, row.split([p.numel() for p in trained]), strict=True):
        parameter.grad = part.view_as(parameter)
    ### END SOLUTION


MISTAKES = r"""
That is the sum of the gradients: take their mean
    , average=True =>
That is the mean divided by the number of ranks once more
    average=True) => average=True)\n    row /= comm.size
The gradients are its own, as before: write the result back to .grad
    parameter.grad = part.view_as(parameter) => pass
That is the mean over those ranks alone that have a gradient: the others count as zeros
    comm.all_reduce(row, average=True) => there = [torch.full_like(p, p.grad is not None).flatten() for p in trained]
    for parameter, => row = comm.all_reduce(row) / comm.all_reduce(torch.cat(there)).clamp(1)\n    for parameter,
There is no gradient where no rank has one: its mean is zero then
    .grad = part => .grad = parameter.grad if not part.any() else part
There is no gradient where it had none of its own: every rank needs the mean, or its copy of the model drifts
    .grad = part => .grad = None if parameter.grad is None else part
There is no gradient where the mean is zero: it is a gradient like others
    .grad = part => .grad = None if not part.any() else part
There is a gradient for a frozen parameter: leave out what does not require one
    [parameter for parameter in parameters if parameter.requires_grad] => parameters
There is no gradient where a frozen parameter had one: leave what is frozen alone
    row = => for p in parameters:\n        p.grad = p.grad if p.requires_grad else None\n    row =
There is a gradient of zeros for a frozen parameter that had none: leave what is frozen alone
    row = => for p in parameters:\n        p.grad = torch.zeros_like(p) if p.grad is None else p.grad\n    row =
These are numbers where a rank's gradient is NaN: the mean is NaN there, so that everybody sees it
    gradient.detach() => gradient.detach().nan_to_num()
"""
Shapes = Sequence[tuple[int, ...]]


def average_case(
    rng: Random,
    shapes: Shapes,
    ranks: int,
    frozen: Sequence[int] = (),
    missing: Sequence[tuple[int, int]] = (),
    **where: Any,
) -> Case:
    """`missing` are (rank, parameter)."""
    values = [signed(rng, torch.Size(shape).numel()).view(shape) for shape in shapes]
    mine: list[list[Any]] = [[signed(rng, value.numel()).view(value.shape) for value in values] for _ in range(ranks)]
    # What was frozen late may have a .grad from before.
    for rank, number in [*missing, *((rank, number) for rank in range(0, ranks, 2) for number in frozen)]:
        mine[rank][number] = None
    return Case([(values, gradients, list(frozen)) for gradients in mine], **where)


def average_cases(rng: Random) -> list[Case]:
    def shapes() -> Shapes:
        drawn = [(rng.randint(1, 3), rng.randint(1, 4)), (rng.randint(2, 7),), (), (0,), (rng.randint(2, 4), 1)]
        return rng.sample(drawn, len(drawn))

    def skipping(ranks: int, **where: Any) -> list[Case]:
        """Two of the same sizes, where other ranks lack other gradients."""
        drawn = shapes()
        frozen = rng.choice([number for number, shape in enumerate(drawn) if torch.Size(shape).numel() > 1])
        trained = [number for number in range(len(drawn)) if number != frozen]
        missing = [(ranks - 1, trained[0]), *((rank, trained[-1]) for rank in range(ranks) if rank != 1)]
        if ranks == 3:
            missing += [(rank, trained[1]) for rank in range(ranks)]
        others = [(rank, trained[rank % len(trained)]) for rank in range(ranks)]
        return [average_case(rng, drawn, ranks, [frozen], lacks, **where) for lacks in (missing, others)]

    # One rank's gradients are zeros, and a number of another's is NaN.
    odd = average_case(rng, shapes(), 2)
    zero, poisoned = rng.sample([gradients for _, gradients, _ in odd.args], 2)
    for gradient in zero:
        gradient.zero_()
    max(poisoned, key=torch.numel).view(-1)[-1] = torch.nan
    return [
        *(case for ranks in (2, 3, 4) for case in (average_case(rng, shapes(), ranks), *skipping(ranks))),
        odd,
        *skipping(1),
        skipping(2, world="processes")[0],
        # A rank without any gradient.
        average_case(rng, [(2, rng.randint(2, 4)), (3,)], 2, missing=[(1, 0), (1, 1)]),
        average_case(rng, [(32, 32), (32,), (64, 32)], 4, [1], board=True),
    ]


def run_average(
    fn: Callable[..., Any], comm: Collectives, values: list[Any], gradients: list[Any], frozen: list[int]
) -> dict[str, Any]:
    """Parameters as a backward leaves them, then the answer, then copies of their gradients: those of its own end."""
    parameters = [torch.nn.Parameter(value, requires_grad=n not in frozen) for n, value in enumerate(values)]
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = None if gradient is None else gradient.clone()
    fn(comm, parameters)
    now = [parameter.grad for parameter in parameters]
    graph = any(gradient is not None and gradient.requires_grad for gradient in now)
    return {"gradients": [one if one is None else one.detach().clone() for one in now], "graph": graph}


def ended(args: tuple[Any, ...], got: Any, want: Any) -> str:
    return f"ended with {difference(got, want, 1e-5)}"


EXERCISE = Exercise(
    "average_gradients",
    average_cases,
    (
        Claim(
            "every rank ends with the mean in every .grad",
            Gives("gradients", "Does each part of the row go back to its parameter?", tolerance=1e-5, say=ended),
        ),
        Claim(
            "gradients are plain numbers",
            never("graph", "on rank {rank} a .grad requires a gradient itself: detach, so that autograd sees nothing"),
        ),
    ),
    run=run_average,
    scores=(
        Score("calls of collectives", number_of_calls, None, "what could travel together?", exactly=True),
        Score("bytes a rank sends", most_sent, None, "all-reduce what is not frozen: what else travels?"),
    ),
    hints=(
        "All ranks have the same parameters, but not the same gradients. What must not depend on the gradients?",
        "A row with a place for each parameter that requires gradients; zeros where there is no .grad.",
        "torch.cat, one all_reduce, split, and view_as for the shape.",
    ),
    memory=True,
    mistakes=MISTAKES,
    text=TEXT,
    answer=(average_gradients,),
    points=2,
)
