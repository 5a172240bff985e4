"""Exercise of lesson 03: groups of parameters, each with its own weight decay, whose borders are not the shards'."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from random import Random
from typing import Any

import torch

from zerolab.collectives import Collectives
from zerolab.course.exercises.twice import begins_anew, snapshot
from zerolab.course.exercises.zero_1.claims import (
    ANEW,
    SUM,
    TWICE,
    UNSHARED,
    Spans,
    adam,
    made_by_adam,
    only,
    own_dtype,
    patched,
    shard_alone,
    states_kept,
    tolerance,
    trained,
    uncut,
)
from zerolab.course.judge.case import Case, Observation, Record, plural
from zerolab.course.judge.claims import calls_are, each_rank, most_held, part, untouched
from zerolab.course.judge.draw import about, signed, sizes
from zerolab.course.judge.exercise import Claim, Exercise, Score
from zerolab.course.judge.mistakes import Wanted, right
from zerolab.flat.layout import chunk_bounds

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


Tensor = torch.Tensor
STEPS = 3
BOARD_NUMEL = 4096


def dtype_of(ranks: int, numel: int) -> torch.dtype:
    """Where the ranks do not divide the row, some have another dtype than fp32."""
    return {2: torch.bfloat16, 3: torch.float64}.get(ranks, torch.float32) if numel % ranks else torch.float32


def row_about(ranks: int, numel: int, dtype: torch.dtype) -> str:
    kind = "" if dtype is torch.float32 else f" of {str(dtype).removeprefix('torch.')}"
    return about(ranks, numel, f"a row of {plural(numel, 'element')}{kind}")


Answer = Callable[..., Any]


def group_case(
    rng: Random,
    ranks: int,
    numel: int,
    world: str,
    borders: Sequence[int] = (),
    board: bool = False,
    twice: bool = False,
) -> Case:
    """Groups between `borders`, or drawn ones; with `twice`, the last has the first one's weight decay."""
    dtype = dtype_of(ranks, numel)
    # Two borders may fall together: then a group is empty.
    borders = borders or sorted([0, numel, *(rng.randint(0, numel) for _ in range(3))])
    decays = rng.sample([0.0, 0.5, 1.0, 2.0, 4.0], len(borders) - 1)
    decays = [*decays[:-1], decays[0]] if twice else decays
    groups = list(zip(borders[:-1], borders[1:], decays, strict=True))
    row = signed(rng, numel, dtype)

    def drawn() -> list[Tensor]:
        return [signed(rng, numel, dtype) for _ in range(STEPS)]

    args: list[tuple[Any, ...]] = [(row, drawn(), groups, None if board else drawn()) for _ in range(ranks)]
    said = "three groups" if board else f"groups {groups}"
    return Case(args, world, f"{row_about(ranks, numel, dtype)}, {said}", board=board)


def group_cases(rng: Random) -> list[Case]:
    # On the first, all mistakes give different rows.
    first = group_case(rng, 2, 8, "lockstep", (0, 2, 5, 8))
    cases = [group_case(rng, ranks, numel, world) for ranks, numel, world in sizes(rng)]
    # One shard holds parts of two groups with the same weight decay, and of one between them.
    cases.append(group_case(rng, 2, 12, "lockstep", (0, 2, 4, 12), twice=True))
    return [first, *cases, group_case(rng, 4, BOARD_NUMEL, "lockstep", (0, 1000, 1500, BOARD_NUMEL), board=True)]


def run_groups(
    fn: Answer,
    comm: Collectives,
    row: Tensor,
    gradients: list[Tensor],
    groups: list[tuple[int, int, float]],
    later: list[Tensor] | None,
) -> dict[str, Any]:
    """What the answer returns, twice if there are gradients for a second call, and what optimizers keep."""
    with states_kept() as kept:
        first = fn(comm, row, gradients, list(groups))
    seen = {"first": snapshot(first), "states": kept.elements, "foreign": kept.foreign, "kept": first}
    return seen if later is None else {**seen, "again": fn(comm, row, later, list(groups))}


def over_ranks(case: Case, by: float, place: int = 1) -> list[Tensor]:
    """The sum of all ranks' gradients for each step, divided."""
    return [torch.stack([args[place][step] for args in case.args]).sum(0) / by for step in range(STEPS)]


def groups_good(case: Case) -> list[Tensor]:
    row, _, spans, _ = case.args[0]
    return [trained(row, over_ranks(case, case.ranks), spans)] * case.ranks


def groups_again(case: Case) -> list[Tensor]:
    """What the second call should give."""
    row, _, spans, _ = case.args[0]
    return [trained(row, over_ranks(case, case.ranks, 3), spans)] * case.ranks


def groups_mistakes(case: Case) -> dict[str, Sequence[Tensor]]:
    (row, _, spans, _), ranks = case.args[0], case.ranks
    means = over_ranks(case, ranks)
    good, before = trained(row, means, spans), trained(row, means[:-1], spans)
    own = [trained(row, args[1], spans) for args in case.args]

    def everywhere(value: Tensor) -> list[Tensor]:
        return [value] * ranks

    mistakes: dict[str, Sequence[Tensor]] = {
        "a row in which its own shard alone is new: hand the shards around": [
            patched(ranks, row, only(ranks, rank, good)) for rank in range(ranks)
        ],
        "only its own shard: return the whole row": list(good.tensor_split(ranks)),
        SUM: everywhere(trained(row, over_ranks(case, 1), spans)),
        TWICE: everywhere(trained(row, over_ranks(case, ranks**2), spans)),
        UNSHARED: everywhere(patched(ranks, row, own)),
        "what its own gradients alone train: take the mean over the ranks": own,
        "the row as it began: does an optimizer see the memory that you return?": everywhere(row),
        "a row in which the others' shards are one step late: gather what the update has changed": [
            patched(ranks, before, only(ranks, rank, good)) for rank in range(ranks)
        ],
        "the row after one step too few: each gradient counts, the last one, too": everywhere(before),
        "gradients where parameters are wanted: what do you gather?": everywhere(means[-1]),
        ANEW: everywhere(trained(row, means, spans, anew=True)),
        "what gradients give in which earlier steps are still in: each step has its own": everywhere(
            trained(row, list(accumulate(means)), spans)
        ),
        "a row with elements at its end as they began: numel // N leaves a rest": everywhere(uncut(ranks, row, good)),
    }
    mistakes |= {says: everywhere(trained(row, means, cut)) for says, cut in wrong_cuts(row, ranks, spans).items()}
    if len({decay for _, _, decay in spans}) < len(spans):
        says = "a row in which of groups with the same weight decay one alone was trained: each has its own part"
        mistakes[says] = everywhere(trained(row, means, last_of_each(row.numel(), ranks, spans)))
    return mistakes


def wrong_cuts(row: Tensor, ranks: int, spans: Spans) -> dict[str, Spans]:
    """Where people look for the groups, by what to say of it."""
    unmoved: list[tuple[int, int, float]] = []
    counted_back: list[tuple[int, int, float]] = []
    for first, end in chunk_bounds(row.numel(), ranks):
        length = end - first
        for start, stop, decay in spans:
            unmoved.append((first + min(start, length), first + min(stop, length), decay))
            # A negative start counts from the end of the shard.
            part = range(length)[start - first : min(stop - first, length)]
            counted_back.append((first + part.start, first + part.stop, decay))
    last = spans[-1][0]
    return {
        "a row trained without weight decay": [(start, stop, 0.0) for start, stop, _ in spans],
        "a row in which all have the first group's weight decay": [
            (start, stop, spans[0][2]) for start, stop, _ in spans
        ],
        "a row in which the groups were cut as if each shard began at 0: where does yours begin?": unmoved,
        "a row in which parts are missed: a group's start may lie before your shard, and [-2:] counts from the end": (
            counted_back
        ),
        "a row with the last group as it began": [span for span in spans if span[1] <= last] or [(0, 0, 0.0)],
    }


def last_of_each(numel: int, ranks: int, spans: Spans) -> Spans:
    """The parts of groups that a dictionary by weight decay holds on each rank: of several, the last."""
    parts: list[tuple[int, int, float]] = []
    for first, end in chunk_bounds(numel, ranks):
        inside = [(max(start, first), min(stop, end), decay) for start, stop, decay in spans]
        parts += {part[2]: part for part in inside if part[0] < part[1]}.values()
    return parts


def groups_wanted(case: Case) -> Wanted:
    look = "compare a shard of the row with what each group should make of it"
    return Wanted(groups_good(case), lambda: groups_mistakes(case), look)


def groups_right(case: Case, seen: Observation) -> str | None:
    """As `groups_wanted` says; of numbers that none of its mistakes explains, which part is wrong, and how."""
    hint = part("first", right(groups_wanted, tolerance))(case, seen)
    return odd_part(case, seen) or hint if hint and "values wrong" in hint else hint


@each_rank
def odd_part(case: Case, rank: int, record: Record) -> str | None:
    """What befell the first wrong elements of a row: another weight decay, or nothing."""
    (row, _, spans, _), want, got = case.args[0], groups_good(case)[0], record.value["first"]
    most = tolerance(want.dtype)
    wrong = ~torch.isclose(got, want, most, most)
    if not wrong.any():
        return None
    at = int(wrong.nonzero()[0])
    start, stop, decay = next(span for span in spans if span[0] <= at < span[1])
    said = f"rank {rank} returned element {at}"
    if torch.equal(got[at], row[at]):
        return f"{said} as it began: no part reaches it, where group [{start}, {stop}) does"
    means = over_ranks(case, case.ranks)
    for other in [0.0, *(span[2] for span in spans)]:
        if torch.isclose(got[at], trained(row, means, [(0, row.numel(), other)])[at], 1e-5, 1e-5):
            said = f"{said} trained with the weight decay {other}, and group [{start}, {stop}) has {decay}"
            return f"{said}: does each part take the weight decay of its own group?"
    return None


def grouped_calls(case: Case, seen: Observation) -> str | None:
    """A reduce_scatter in each step, and an all_gather in each or after the last, in each call of the answer."""
    numel, times = case.args[0][0].numel(), 1 if case.args[0][3] is None else 2
    reduction, gather = ("reduce_scatter", numel), ("all_gather", numel)
    if all(record.calls == [*[reduction] * STEPS, gather] * times for record in seen.records):
        return None
    look = "groups are the optimizer's business, the wire sees the row"
    return calls_are(lambda case, rank: [reduction, gather] * STEPS * times, look)(case, seen)


def groups_bytes(case: Case) -> int:
    """A copy of the row, a gathered one, and a copy of a gradient; of a shard itself, two states, the gradient of this
    step and of the last, and the ring's two chunks."""
    nbytes = case.args[0][0].nbytes
    return 3 * nbytes + 7 * nbytes // case.ranks + 64


EXERCISE = Exercise(
    "train_grouped",
    group_cases,
    (
        Claim("its optimizers are those that adam() makes", made_by_adam),
        Claim("every rank returns the row that one optimizer with these groups would have trained", groups_right),
        Claim("its inputs stay as they were", untouched(0, 1)),
        Claim("it reduces once a step, and gathers as often or at the end", grouped_calls),
        Claim("no rank's optimizers keep more than its shard's states", shard_alone),
        Claim("a second call begins anew", begins_anew(groups_again, tolerance)),
        Claim("what travels keeps its dtype", own_dtype),
    ),
    scores=(
        Score(
            "bytes held at the worst moment",
            most_held,
            groups_bytes,
            "a row, a gathered one and a copy of a gradient fit: does it keep more, or those of earlier steps?",
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
    text=TEXT,
    answer=(train_grouped,),
    points=3,
)
