"""Exercise of lesson 03: groups of parameters, each with its own weight decay, whose borders are not the shards'."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import torch

from zerolab.course.exercises.zero_1.claims import adam, made_by_adam, row_dtype, shard_alone, states_kept, tolerance
from zerolab.course.judge.case import Case, Observation
from zerolab.course.judge.claims import calls_are, most_held
from zerolab.course.judge.draw import signed, sizes
from zerolab.course.judge.exercise import Claim, Exercise, Score
from zerolab.course.judge.model import Gives

TEXT = """
Configurable

Weight decay is for matrices, not for biases. So the row is cut into groups `(start, stop, weight_decay)`, end to end,
and their borders are not those of the shards. Train as in exercise 2, with `adam(part, weight_decay)` for each part.
A group may lie in several shards, a rank may own nothing of a group, and a group may be empty.

`gradients` holds this rank's gradient for each step; here they are computed already. Leave them and `row` as they
are. One reduce-scatter a step, in the dtype of the row; gather after each step, or once at the end. The check draws
borders, weight decays and dtypes, and calls a second time with other gradients. The scoreboard looks at the bytes a
rank holds: a row, a gathered one and a copy of a gradient fit, beside what belongs to a shard. About twelve lines.
"""


def train_grouped(comm, row: torch.Tensor, gradients: list[torch.Tensor], groups: list[tuple]) -> torch.Tensor:
    """The row after one step for each gradient; each group has its own weight decay."""
    ### BEGIN SOLUTION
    row = row.clone()
    shard = row.tensor_split(comm.size)[comm.rank]
    first = shard.storage_offset()
    parts = []
    for start, stop, weight_decay in groups:
        start, stop = max(start - first, 0), min(stop - first, shard.numel())
        if start < stop:
            part = shard[start:stop]
            parts.append((start, stop, part, adam(part, weight_decay)))
    for gradient in gradients:
        mean = comm.reduce_scatter(gradient, average=True)
        for start, stop, part, optimizer in parts:
            part.grad = mean[start:stop]
            optimizer.step()
        comm.all_gather(shard, out=row)
    return row
    ### END SOLUTION


MISTAKES = r"""
a row trained without weight decay
    adam(part, weight_decay) => adam(part)
a row in which all have the first group's weight decay
    adam(part, weight_decay) => adam(part, groups[0][2])
a row of parts with other groups' weight decays: does each part take the weight decay of its own group?
    adam(part, weight_decay) => adam(part, groups[len(parts)][2])
a row in which the groups were cut as if each shard began at 0: where does yours begin?
    first = shard.storage_offset() => first = 0
a row in which parts are missed: a group's start may lie before your shard, and [-2:] counts from the end
    max(start - first, 0) => start - first
a row in which its own shard alone is new: hand the shards around
    comm.all_gather(shard, out=row) => pass
what the sum of the gradients gives: take their mean
    , average=True =>
what gradients give that are divided by N twice: average=True has divided them already
    average=True) => average=True) / comm.size
shards that were trained without those of the other ranks' gradients: reduce before you update
    comm.reduce_scatter(gradient, average=True) => gradient.tensor_split(comm.size)[comm.rank]
what an optimizer gives that forgets its states after each step: make it once
    adam(part, weight_decay) => weight_decay
    optimizer.step() => adam(part, optimizer).step()
"""
STEPS = 3


def group_case(rng: Random, ranks: int, numel: int, borders: Sequence[int] = (), **where: Any) -> Case:
    """Groups between `borders`, or drawn ones."""
    dtype = row_dtype(ranks, numel)
    # Two borders may fall together: then a group is empty.
    borders = borders or sorted([0, numel, *(rng.randint(0, numel) for _ in range(3))])
    decays = rng.sample([0.0, 0.5, 1.0, 2.0, 4.0], len(borders) - 1)
    groups = list(zip(borders, borders[1:], decays, strict=False))
    row = signed(rng, numel, dtype)
    return Case([(row, [signed(rng, numel, dtype) for _ in range(STEPS)], groups) for _ in range(ranks)], **where)


def group_cases(rng: Random) -> list[Case]:
    # One shard holds parts of two groups with the same weight decay, and of one between them.
    twice = group_case(rng, 2, 12, (0, 2, 4, 12))
    for _, _, groups in twice.args:
        groups[2] = (4, 12, groups[0][2])
    return [
        # On the first, all mistakes give different rows. It comes again: what is kept by the sizes shows.
        group_case(rng, 2, 8, (0, 2, 5, 8)),
        *(group_case(rng, ranks, numel, world=world) for ranks, numel, world in sizes(rng)),
        twice,
        group_case(rng, 2, 8, (0, 2, 5, 8)),
        group_case(rng, 4, 4096, (0, 1000, 1500, 4096), board=True),
    ]


def run_groups(fn: Any, comm: Any, row: torch.Tensor, gradients: list[torch.Tensor], groups: list[Any]) -> Any:
    """What the answer returns, and what optimizers keep."""
    with states_kept() as kept:
        row = fn(comm, row, gradients, groups)
    return {"row": row, **kept}


def grouped_calls(case: Case, seen: Observation) -> str | None:
    """A reduce_scatter in each step, and an all_gather in each or after the last."""
    reduction, gather = ((name, case.args[0][0].numel()) for name in ("reduce_scatter", "all_gather"))
    late = [*[reduction] * STEPS, gather]
    due = late if seen.records[0].calls == late else [reduction, gather] * STEPS
    return calls_are(lambda *_: due, "groups are the optimizer's business, the wire sees the row")(case, seen)


EXERCISE = Exercise(
    "train_grouped",
    group_cases,
    (
        Claim("its optimizers are those that adam() makes", made_by_adam),
        Claim(
            "every rank returns the row that one optimizer with these groups would have trained",
            Gives("row", "compare a shard of the row with what each group should make of it", tolerance=tolerance),
        ),
        Claim("it reduces once a step, and gathers as often or at the end", grouped_calls),
        Claim("no rank's optimizers keep more than its shard's states", shard_alone),
    ),
    scores=(
        Score(
            "bytes held at the worst moment",
            most_held,
            None,
            "a row, a gathered one and a copy of a gradient fit: does it keep more, or those of earlier steps?",
            # The gathered row and the copy, four shards each, and a shard's gradient of the last step.
            slack=9 * 4096 + 64,
        ),
    ),
    hints=(
        "Which part of a group [start, stop) lies in a shard [first, last)? max(start, first) to min(stop, last), if "
        "that is not empty.",
        "An optimizer for each group's part of your shard, made once, before the first step.",
        "A rank may own no part of a group, and then has no optimizer for it.",
    ),
    run=run_groups,
    memory=True,
    mistakes=MISTAKES,
    without=frozenset({"left", "late"}),
    text=TEXT,
    answer=(train_grouped,),
    points=3,
)
