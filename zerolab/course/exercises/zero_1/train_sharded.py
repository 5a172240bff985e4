"""Exercise of lesson 03: stage 1 on a row. Gradients are computed from the row, so who gathers late trains another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import torch

from zerolab.collectives import Collectives
from zerolab.course.exercises.twice import begins_anew, snapshot
from zerolab.course.exercises.zero_1.claims import (
    ANEW,
    FIXED,
    SUM,
    TWICE,
    UNSHARED,
    adam,
    made_by_adam,
    only,
    own_dtype,
    patched,
    shard_alone,
    states_kept,
    tolerance,
    uncut,
)
from zerolab.course.judge.case import Case, Observation, Record, plural
from zerolab.course.judge.claims import (
    each_rank,
    most_held,
    most_in_a_ring,
    most_sent,
    number_of_calls,
    part,
    untouched,
)
from zerolab.course.judge.draw import about, signed, sizes
from zerolab.course.judge.exercise import Claim, Exercise, Score
from zerolab.course.judge.mistakes import Wanted, right

TEXT = '''
Stage 1

`row` holds all parameters and is the same on every rank. `gradient(row)` computes this rank's gradient at a whole
row, for its next batch; the tensor is new, and yours. Take `steps` steps: train with the *mean* gradient over the
ranks, so that this rank's optimizer sees only its own shard, and return the whole row.

- The shard of rank r is `row.tensor_split(comm.size)[r]`. The collectives cut in the same way, also where N does not
  divide. Only `all_gather` cannot see the whole length from a shard: say `comm.all_gather(shard, numel)`, or
  `out=row`.
- Call `gradient` once for each step, at the row as it is then. Leave the `row` that you got as it was: train a copy.
- Make your optimizer with `adam(shard)`. It has a large epsilon, so that the size of gradients counts.

About nine lines. A second call begins anew. What travels keeps its dtype: the check draws rows of float32, float64
and bfloat16, on 1 to 4 ranks. The scoreboard looks at the bytes a rank sends, where it wants the cheaper of the two
ways to reduce; at its calls; and at the bytes it holds: a row, a gathered one, a gradient and a copy of it fit,
beside what belongs to a shard.

```{code-cell}
:name: helpers

def adam(part: torch.Tensor, weight_decay: float = 0.0) -> torch.optim.Optimizer:
    """An optimizer for one tensor. Set part.grad, then call step()."""
    return torch.optim.AdamW([part], lr=0.1, eps=1.0, weight_decay=weight_decay, fused=True)
```
'''


def train_sharded(comm, row: torch.Tensor, gradient, steps: int) -> torch.Tensor:
    """The row after so many steps; the optimizer's states are sharded."""
    ### BEGIN SOLUTION
    row = row.clone()
    shard = row.tensor_split(comm.size)[comm.rank]
    optimizer = adam(shard)
    for _ in range(steps):
        shard.grad = comm.reduce_scatter(gradient(row), average=True)
        optimizer.step()
        comm.all_gather(shard, out=row)
    return row
    ### END SOLUTION


Tensor = torch.Tensor
Answer = Callable[..., Any]
STEPS = 3
BOARD_STEPS = 5
BOARD_NUMEL = 4096


def dtype_of(ranks: int, numel: int) -> torch.dtype:
    """Where the ranks do not divide the row, some have another dtype than fp32."""
    return {2: torch.bfloat16, 3: torch.float64}.get(ranks, torch.float32) if numel % ranks else torch.float32


def row_about(ranks: int, numel: int, dtype: torch.dtype) -> str:
    kind = "" if dtype is torch.float32 else f" of {str(dtype).removeprefix('torch.')}"
    return about(ranks, numel, f"a row of {plural(numel, 'element')}{kind}")


def stage_case(rng: Random, ranks: int, numel: int, world: str, board: bool = False) -> Case:
    dtype = dtype_of(ranks, numel)

    def drawn() -> list[list[Tensor]]:
        return [[signed(rng, numel, dtype) for _ in range(BOARD_STEPS if board else STEPS)] for _ in range(ranks)]

    row, targets = signed(rng, numel, dtype), drawn()
    later: Sequence[Any] = [None] * ranks if board else drawn()
    args: list[tuple[Any, ...]] = [(row, targets[rank], later[rank]) for rank in range(ranks)]
    return Case(args, world, row_about(ranks, numel, dtype), board=board)


def stage_cases(rng: Random) -> list[Case]:
    cases = [stage_case(rng, ranks, numel, world) for ranks, numel, world in sizes(rng)]
    return [stage_case(rng, 4, BOARD_NUMEL, "lockstep", board=True), *cases]


def run_stage(
    fn: Answer, comm: Collectives, row: Tensor, targets: list[Tensor], later: list[Tensor] | None
) -> dict[str, Any]:
    """What the answer returns, twice if there are targets for a second call; what optimizers keep; and how often it
    asked for a gradient."""
    asked = 0

    def train(row: Tensor, targets: list[Tensor]) -> Any:
        nonlocal asked
        asked = 0

        def gradient(whole: Tensor) -> Tensor:
            nonlocal asked
            asked += 1
            return whole.detach() - targets[min(asked, len(targets)) - 1]

        return fn(comm, row, gradient, len(targets))

    with states_kept() as kept:
        first = train(row, targets)
    seen = {"first": snapshot(first), "states": kept.elements, "foreign": kept.foreign, "asked": asked}
    # On the scoreboard, what it returned is the answer's own and counts as such.
    return {**seen, "kept": first} if later is None else {**seen, "kept": first, "again": train(row.clone(), later)}


def together(
    case: Case,
    targets: Sequence[Sequence[Tensor]],
    by: float = 0,
    gather: str = "new",
    own: bool = False,
    anew: bool = False,
    piled: bool = False,
    idle: int = -1,
    at_first: bool = False,
) -> list[Tensor]:
    """Each rank's row at the end. Gradients are added up and divided `by` (or by the ranks), or are the rank's `own`;
    shards are gathered as they are after the update ("new") or before it ("old"), at the "end" alone or "never"; or
    their "gradients" are. `anew` forgets states, `piled` adds up the gradients of all steps, rank `idle` does nothing,
    `at_first` computes all gradients at the row as it began."""
    ranks = case.ranks
    rows = [case.args[0][0].clone() for _ in range(ranks)]
    shards = [row.tensor_split(ranks)[rank] for rank, row in enumerate(rows)]
    optimizers = [adam(shard) for shard in shards]
    for step in range(len(targets[0])):
        seen = [case.args[0][0]] * ranks if at_first else rows
        gradients = [row - target[step] for row, target in zip(seen, targets, strict=True)]
        mean = torch.stack(gradients).sum(0) / (by or ranks)
        before = torch.cat(shards)
        for rank, shard in enumerate(shards):
            part = (gradients[rank] if own else mean).tensor_split(ranks)[rank].clone()
            shard.grad = part + shard.grad if piled and shard.grad is not None else part
            if anew:
                optimizers[rank] = adam(shard)
            if rank != idle:
                optimizers[rank].step()
        last = step == len(targets[0]) - 1
        if gather == "old":
            others = [row.tensor_split(ranks) for row in rows]
            for rank, row in enumerate(others):
                for other in range(ranks):
                    if other != rank:
                        row[other].copy_(before.tensor_split(ranks)[other])
        elif gather in ("new", "gradients") or (gather == "end" and last):
            whole = mean if gather == "gradients" else torch.cat(shards)
            for row in rows:
                row.copy_(whole)
    return rows


def alone_on(row: Tensor, targets: Sequence[Tensor]) -> Tensor:
    """A row that one rank trains by itself."""
    row = row.clone()
    optimizer = adam(row)
    for target in targets:
        row.grad = row - target
        optimizer.step()
    return row


def stage_good(case: Case) -> list[Tensor]:
    return together(case, [args[1] for args in case.args])


def stage_again(case: Case) -> list[Tensor]:
    """What the second call should give."""
    return together(case, [args[2] for args in case.args])


def stage_mistakes(case: Case) -> dict[str, list[Tensor]]:
    ranks, row, targets = case.ranks, case.args[0][0], [args[1] for args in case.args]
    good = stage_good(case)
    return {
        "a row in which its own shard alone is new: hand the shards around": together(case, targets, gather="never"),
        "what comes out if nobody gathers before the end: a gradient needs the whole row as it is now": together(
            case, targets, gather="end"
        ),
        "what gradients give that are all computed at the row as it began: gradient wants the row as it is now": (
            together(case, targets, at_first=True)
        ),
        "only its own shard: return the whole row": list(good[0].tensor_split(ranks)),
        SUM: together(case, targets, by=1),
        # On two ranks the last is what TWICE gives, which fails on the scoreboard's four already.
        **{FIXED.format(by=by): together(case, targets, by=by) for by in (2, 3, 4) if by != ranks},
        TWICE: together(case, targets, by=ranks**2),
        UNSHARED: together(case, targets, own=True),
        "what its own gradients alone train: take the mean over the ranks": [
            alone_on(row, mine) for mine in targets
        ],
        "the row as it began: does the optimizer see the memory that you return?": [row] * ranks,
        "a row in which the others' shards are one step late: gather what the update has changed": together(
            case, targets, gather="old"
        ),
        "the row after one step too few: each step counts, the last one, too": together(
            case, [mine[:-1] for mine in targets]
        ),
        "gradients where parameters are wanted: what do you gather?": together(case, targets, gather="gradients"),
        ANEW: together(case, targets, anew=True),
        "what gradients give in which earlier steps are still in: each step has its own": together(
            case, targets, piled=True
        ),
        "a row in which only rank 0's shard is wrong, it is as it began: does `if comm.rank:` skip it?": together(
            case, targets, idle=0
        ),
        "a row with elements at its end as they began: numel // N leaves a rest": [
            uncut(ranks, row, good[0])
        ] * ranks,
        "a row in which its own shard alone is as it began: does the optimizer see the memory that you gather?": [
            patched(ranks, good[0], only(ranks, rank, row)) for rank in range(ranks)
        ],
    }  # fmt: skip


def stage_wanted(case: Case) -> Wanted:
    return Wanted(
        stage_good(case), lambda: stage_mistakes(case), "train one step on two ranks by hand, and print the shards"
    )


@each_rank
def asked_once_a_step(case: Case, rank: int, record: Record) -> str | None:
    asked, steps = record.value["asked"], len(case.args[0][1])
    said = f"rank {rank} calls gradient {plural(asked, 'time')} in {steps} steps"
    return None if asked == steps else f"{said}: once for each, since each call computes the next batch"


def steps_sent(case: Case) -> int:
    """A reduce-scatter and an all-gather for each step."""
    row = case.args[0][0]
    calls = [("reduce_scatter", row.numel()), ("all_gather", row.numel())]
    return BOARD_STEPS * most_in_a_ring(calls, row.itemsize, case.ranks)


def more_bytes(case: Case, seen: Observation) -> str:
    """Which collective sends too much."""
    names = {name for record in seen.records for name, _ in record.calls}
    if "broadcast" in names:
        return "a broadcast passes each shard on by itself; which collective hands all shards around at once?"
    if names == {"all_gather"}:
        return "a gather hands every rank's gradients to everybody; which collective adds them up on the way?"
    return "an all-reduce hands everybody gradients that nobody uses; which collective stops halfway?"


def stage_bytes(case: Case) -> int:
    """A copy of the row, a gathered one, a gradient and a copy of it; of a shard itself, two states, the gradient of
    this step and of the last, and the ring's two chunks."""
    nbytes = case.args[0][0].nbytes
    return 4 * nbytes + 7 * nbytes // case.ranks + 64


EXERCISE = Exercise(
    "train_sharded",
    stage_cases,
    (
        Claim("it computes one gradient for each step", asked_once_a_step),
        Claim("what travels keeps its dtype", own_dtype),
        Claim("its optimizers are those that adam() makes", made_by_adam),
        Claim(
            "every rank returns the row that one optimizer would have trained",
            part("first", right(stage_wanted, tolerance)),
        ),
        Claim("the row it is given stays as it was", untouched(0)),
        Claim("no rank's optimizer keeps more than its shard's states", shard_alone),
        Claim("a second call begins anew", begins_anew(stage_again, tolerance)),
    ),
    scores=(
        Score(
            f"bytes a rank sends in {BOARD_STEPS} steps",
            most_sent,
            steps_sent,
            more_bytes,
        ),
        Score("calls of collectives", number_of_calls, lambda case: 2 * BOARD_STEPS, "two calls a step are enough"),
        Score(
            "bytes held at the worst moment",
            most_held,
            stage_bytes,
            "a row, a gathered one, a gradient and a copy of it fit: does it keep rows or gradients of earlier steps?",
        ),
    ),
    hints=(
        "A rank's shard is row.tensor_split(comm.size)[comm.rank], a view: what an optimizer does to it, it does to "
        "the row.",
        "Each step: a mean of gradients that arrives as a shard, an update of the shard, and the shards end to end.",
        "comm.all_gather(shard, out=row) writes all shards into the row; it knows the length from out.",
    ),
    run=run_stage,
    memory=True,
    text=TEXT,
    answer=(train_sharded,),
    points=2,
)
