"""Exercise of lesson 02: gradients averaged in one call, after backward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from random import Random
from typing import Any

import torch

from zerolab.collectives import Collectives
from zerolab.course.exercises.twice import begins_anew, snapshot
from zerolab.course.judge.case import Case, Observation, Record, once, plural
from zerolab.course.judge.claims import (
    each_rank,
    most_in_a_ring,
    most_sent,
    number_of_calls,
    untouched,
)
from zerolab.course.judge.claims import (
    part as of_part,
)
from zerolab.course.judge.draw import signed
from zerolab.course.judge.exercise import Claim, Exercise, Score
from zerolab.course.judge.mistakes import Wanted, compared
from zerolab.course.judge.observe import returned_bytes, tensors_in
from zerolab.course.judge.same import alike, short
from zerolab.memory import Tracker

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


Tensor = torch.Tensor
Answer = Callable[..., Any]
Gradients = Sequence[Tensor | None]


BOARD_NUMEL = 3000


def mean_of(gradients: Sequence[Gradients], like: Sequence[Tensor], by: float | None) -> list[Tensor]:
    """For each parameter or layer the sum over the ranks, divided; by the number of ranks that have one, if by=None."""
    means = []
    for index, shaped in enumerate(like):
        have = [gradient for mine in gradients if (gradient := mine[index]) is not None]
        means.append(torch.stack([torch.zeros_like(shaped), *have]).sum(0) / (by or max(len(have), 1)))
    return means


def average_case(
    rng: Random,
    shapes: Sequence[tuple[int, ...]],
    ranks: int,
    world: str,
    skips: bool,
    board: bool = False,
    again: bool = False,
    idle: bool = False,
) -> Case:
    """With `again` it is called a second time, with other gradients; others of them are missing then. With `idle` the
    last rank has no gradient at all."""
    values = [signed(rng, torch.Size(shape).numel()).view(shape) for shape in shapes]
    large = [number for number, value in enumerate(values) if value.numel() > 1]
    frozen = [1] if board else [rng.choice(large)] if skips else []

    def drawn() -> list[list[Tensor | None]]:
        return [[signed(rng, value.numel()).view(value.shape) for value in values] for _ in range(ranks)]

    mine = drawn()
    later: list[Any] = drawn() if again else [None] * ranks
    # What was frozen late may have a .grad from before.
    for rank in range(0, ranks, 2):
        for number in frozen:
            mine[rank][number] = None
    trained = [number for number in range(len(shapes)) if number not in frozen]
    missing = []
    if skips:
        missing = [(ranks - 1, trained[0]), *((rank, trained[-1]) for rank in range(ranks) if rank != 1)]
        if ranks == 3:
            missing += [(rank, trained[1]) for rank in range(ranks)]
        for rank, number in missing:
            mine[rank][number] = None
    if idle:
        mine[-1] = [None] * len(values)
    for rank, mine_later in enumerate(later):
        if mine_later is not None:
            mine_later[trained[rank % len(trained)]] = None
    odd = uncommon(rng, mine) if again and not skips else ()
    args: list[tuple[Any, ...]] = [(values, mine[rank], frozen, later[rank]) for rank in range(ranks)]
    about = f"on {plural(ranks, 'rank')}, parameters of shapes {list(shapes)}{''.join(odd)}"
    about += f", (rank, parameter) without .grad: {missing[:4]}" if missing else ""
    about += f", none with .grad on rank {ranks - 1}" if idle else ""
    about += f", {frozen} frozen" if frozen else ""
    return Case(args, world, f"{about}, called twice" if again else about, board=board)


def uncommon(rng: Random, mine: Sequence[Sequence[Tensor | None]]) -> tuple[str, ...]:
    """Makes one rank's gradients zero, and one number of another rank's not a number; says so."""
    zero, poisoned = rng.sample(range(len(mine)), 2)
    for gradient in mine[zero]:
        if gradient is not None:
            gradient.zero_()
    gradient = rng.choice([gradient for gradient in mine[poisoned] if gradient is not None and gradient.numel()])
    gradient.view(-1)[rng.randrange(gradient.numel())] = torch.nan
    return f", rank {zero}'s gradients are zeros", f", one of rank {poisoned}'s numbers is NaN"


def average_cases(rng: Random) -> list[Case]:
    def shapes() -> list[tuple[int, ...]]:
        drawn = [(rng.randint(1, 3), rng.randint(1, 4)), (rng.randint(2, 7),), (), (0,), (rng.randint(2, 4), 1)]
        rng.shuffle(drawn)
        return drawn

    cases = [average_case(rng, shapes(), ranks, "lockstep", skips) for ranks in (2, 3, 4) for skips in (False, True)]
    cases += [
        average_case(rng, shapes(), ranks, "lockstep", skips, again=True) for ranks, skips in ((3, True), (2, False))
    ]
    cases += [average_case(rng, shapes(), 1, "lockstep", True), average_case(rng, shapes(), 2, "processes", True)]
    cases += [average_case(rng, [(2, rng.randint(2, 4)), (3,)], 2, "lockstep", False, idle=True)]
    return [*cases, average_case(rng, [(32, 32), (32,), (64, 32)], 4, "lockstep", False, board=True)]


def run_average(
    fn: Answer,
    comm: Collectives,
    values: list[Tensor],
    gradients: list[Tensor | None],
    frozen: list[int],
    later: list[Tensor | None] | None,
) -> dict[str, Any]:
    """Parameters as a backward leaves them, then the answer, then their gradients, and what it returned. A second call
    has other parameters, and `later` gradients. On the scoreboard, what the call leaves behind is measured."""

    def left_by_backward(given: list[Tensor | None]) -> list[torch.nn.Parameter]:
        parameters = [torch.nn.Parameter(value, requires_grad=n not in frozen) for n, value in enumerate(values)]
        for parameter, gradient in zip(parameters, given, strict=True):
            parameter.grad = None if gradient is None else gradient.clone()
        return parameters

    def grads(parameters: list[torch.nn.Parameter]) -> list[Tensor | None]:
        return [None if parameter.grad is None else parameter.grad.detach() for parameter in parameters]

    parameters = left_by_backward(gradients)
    board = sum(value.numel() for value in values) >= BOARD_NUMEL
    with Tracker(lambda: {"given": parameters}, samples=False) if board else nullcontext() as tracker:
        returned = fn(comm, parameters)
        kept = grads(parameters)
        left = sum(tracker.now().values()) - returned_bytes(tensors_in([parameters, kept])) if tracker else 0
    graph = [n for n, p in enumerate(parameters) if p.grad is not None and p.grad.requires_grad]
    seen = {"first": snapshot(kept), "graph": graph, "returned": returned, "left": left}
    if later is None:
        return seen
    others = left_by_backward(later)
    fn(comm, others)
    return {**seen, "kept": kept, "again": grads(others)}


@once
def average_wanted(case: Case) -> Wanted:
    values, frozen = case.args[0][0], case.args[0][2]
    gradients = [args[1] for args in case.args]

    def left(means: list[Tensor], rank: int = 0) -> list[Tensor | None]:
        """`means`, but for frozen parameters what the rank had."""
        return [gradients[rank][n] if n in frozen else mean for n, mean in enumerate(means)]

    def everywhere(means: list[Tensor]) -> list[list[Tensor | None]]:
        return [left(means, rank) for rank in range(case.ranks)]

    def kept(rank: int, without: Sequence[bool]) -> list[Tensor | None]:
        return [None if lacks else mean for lacks, mean in zip(without, good[rank], strict=True)]

    ranks = range(case.ranks)
    sums = mean_of(gradients, values, 1)
    means = mean_of(gradients, values, case.ranks)
    good = everywhere(means)
    mistakes: dict[str, Sequence[Any]] = {
        "no gradient where no rank has one: its mean is zero then": [
            kept(rank, [own is None and not mean.any() for own, mean in zip(gradients[rank], sums, strict=True)])
            for rank in ranks
        ],
        "no gradient where the mean is zero: it is a gradient like others": [
            kept(rank, [n not in frozen and not mean.any() for n, mean in enumerate(means)]) for rank in ranks
        ],
        "no gradient where the mean is zero, and it is a gradient like others, with or without elements": [
            kept(rank, [n not in frozen and bool(m.numel()) and not m.any() for n, m in enumerate(means)])
            for rank in ranks
        ],
        "a gradient of zeros for a frozen parameter that had none: leave what is frozen alone": [
            [torch.zeros_like(value) if mean is None else mean for value, mean in zip(values, good[rank], strict=True)]
            for rank in ranks
        ],
        "the sum of the gradients: take their mean": everywhere(sums),
        "the mean divided by the number of ranks once more": everywhere(mean_of(gradients, values, case.ranks**2)),
        "gradients that are its own, as before: write the result back to .grad": gradients,
        "the mean over those ranks alone that have a gradient: the others count as zeros": everywhere(
            mean_of(gradients, values, None)
        ),
        "no gradient where it had none of its own: every rank needs the mean, or its copy of the model drifts": [
            kept(rank, [gradient is None for gradient in gradients[rank]]) for rank in ranks
        ],
        "no gradient where a frozen parameter had one: leave what is frozen alone": [
            kept(rank, [number in frozen for number in range(len(values))]) for rank in ranks
        ],
        "a gradient for a frozen parameter: leave out what does not require one": [
            mean_of(gradients, values, case.ranks)
        ] * case.ranks,
    }  # fmt: skip
    look = "does each part of the row go back to the parameter it came from?"
    return Wanted(good, mistakes, look, did="ended with")


def lost_nan(got: Any, want: Tensor | None) -> bool:
    """Whether a number stands where NaN is due."""
    if want is None or not isinstance(got, Tensor) or got.shape != want.shape:
        return False
    return bool((want.isnan() & ~got.isnan()).any())


@each_rank
def nearly(case: Case, rank: int, record: Record) -> str | None:
    """Numbers that are right but for their last digits were rounded on their way; one that is NaN may not get lost."""
    got, want = record.value, average_wanted(case).values[rank]
    if isinstance(got, list) and len(got) == len(want) and any(map(lost_nan, got, want)):
        said = f"rank {rank} ended with numbers where a rank's gradient is NaN"
        return f"{said}: the mean is NaN there, so that everybody sees it"
    if alike(got, want, 0.03) and not alike(got, want, 1e-5):
        said = f"rank {rank} ended with gradients that are right to two digits"
        return f"{said}: somebody rounds them; they are float32, and travel as such"
    return None


def means_right(case: Case, seen: Observation) -> str | None:
    return nearly(case, seen) or compared(average_wanted(case), seen)


@each_rank
def nothing_else(case: Case, rank: int, record: Record) -> str | None:
    """It returns nothing, and gradients have no gradients."""
    returned, graph = record.value["returned"], record.value["graph"]
    if returned is not None:
        return f"rank {rank} returned {short(returned)}: the result is in .grad; return nothing"
    said = f"on rank {rank} the .grad of parameter {graph[0]} requires a gradient itself" if graph else ""
    return f"{said}: detach, so that autograd sees nothing of it" if graph else None


def again_wanted(case: Case) -> list[list[Tensor | None]]:
    """What the second call should give."""
    args = [(values, later, frozen) for values, _, frozen, later in case.args]
    return list(average_wanted(replace(case, args=args)).values)


@each_rank
def frozen_stays_here(case: Case, rank: int, record: Record) -> str | None:
    """Gradients of frozen parameters do not travel."""
    every, trained = sum(value.numel() for value in case.args[0][0]), trained_numel(case)
    if every == trained or record.calls[:1] != [("all_reduce", every)]:
        return None
    said = f"rank {rank} reduces {every:,} elements, and {trained:,} are not frozen"
    return f"{said}: what is frozen is the same everywhere, and need not travel"


@each_rank
def keeps_nothing(case: Case, rank: int, record: Record) -> str | None:
    # A row that is a little longer than its parts is judged by the bytes it sends.
    if (left := record.value["left"]) <= 64:
        return None
    said = f"when it has returned, {left:,} bytes on rank {rank} are alive beside parameters and gradients"
    return f"{said}: what keeps them, a global, a default argument, an attribute?"


def trained_numel(case: Case) -> int:
    """Elements of what is not frozen."""
    return sum(value.numel() for number, value in enumerate(case.args[0][0]) if number not in case.args[0][2])


def more_bytes(case: Case, seen: Observation) -> str:
    """Where bytes are lost, as the calls tell."""
    numel, calls = trained_numel(case), seen.records[0].calls
    if [name for name, _ in calls] == ["all_reduce"]:
        if calls[0][1] == numel:
            return "the row has the right number of elements; which dtype has it?"
        return f"the row has {calls[0][1]:,} elements, and the gradients have {numel:,}: what else travels?"
    return "which collective sums without sending everything to all?"


def average_bytes(case: Case) -> int:
    return most_in_a_ring([("all_reduce", trained_numel(case))], 4, case.ranks)


EXERCISE = Exercise(
    "average_gradients",
    average_cases,
    (
        Claim("every rank ends with the mean in every .grad", of_part("first", means_right)),
        Claim("it returns nothing, and gradients are plain numbers", nothing_else),
        Claim("parameters keep their values", untouched(0)),
        Claim("a second call, for other parameters, begins anew", begins_anew(again_wanted)),
        Claim("gradients of frozen parameters stay where they are", frozen_stays_here),
        Claim("it keeps nothing for a next call", keeps_nothing),
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
        Score("bytes a rank sends", most_sent, average_bytes, more_bytes),
    ),
    hints=(
        "All ranks have the same parameters, but not the same gradients. What must not depend on the gradients?",
        "A row with a place for each parameter that requires gradients; zeros where there is no .grad.",
        "torch.cat, one all_reduce, split, and view_as for the shape.",
    ),
    text=TEXT,
    answer=(average_gradients,),
    points=2,
)
