"""Exercise of lesson 03: stage 1 on a row. Gradients are computed from the row, so who gathers late trains another."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import torch

from zerolab.collectives import Collectives
from zerolab.course.exercises.zero_1.claims import adam, made_by_adam, shard_alone, states_kept, tolerance
from zerolab.course.judge.case import Case, Observation, Record, plural
from zerolab.course.judge.claims import each_rank, most_held, most_sent, number_of_calls
from zerolab.course.judge.draw import signed, sizes
from zerolab.course.judge.exercise import Claim, Exercise, Score
from zerolab.course.judge.model import Gives

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


MISTAKES = r"""
a row in which its own shard alone is new: hand the shards around
    comm.all_gather(shard, out=row) => pass
what comes out if nobody gathers before the end: a gradient needs the whole row as it is now
    comm.all_gather(shard, out=row) => pass
    return row => return comm.all_gather(shard, row.numel())
what gradients give that are all computed at the row as it began: gradient wants the row as it is now
    row = row.clone() => begin, row = row.clone(), row.clone()
    gradient(row) => gradient(begin)
only its own shard: return the whole row
    return row => return shard
what the sum of the gradients gives: take their mean
    , average=True =>
what gradients give that are divided by 2 on any number of ranks: by comm.size, or say average=True
    , average=True) => ) / 2
what gradients give that are divided by N twice: average=True has divided them already
    average=True) => average=True) / comm.size
shards that were trained without those of the other ranks' gradients: reduce before you update
    comm.reduce_scatter(gradient(row), average=True) => gradient(row).tensor_split(comm.size)[comm.rank]
the row as it began: does the optimizer see the memory that you return?
    [comm.rank] => [comm.rank].clone()
    shard, out => row.tensor_split(comm.size)[comm.rank], out
the row after one step too few: each step counts, the last one, too
    optimizer.step() => if _ < steps - 1:\n            optimizer.step()
gradients where parameters are wanted: what do you gather?
    shard, out => shard.grad, out
what an optimizer gives that forgets its states after each step: make it once
    optimizer.step() => adam(shard).step()
a row with elements at its end as they began: numel // N leaves a rest
    return row => even = len(row) // comm.size * comm.size\n    row[even:] = begin[even:]\n    return row
    row = row.clone() => begin, row = row, row.clone()
"""
STEPS = 3
BOARD_STEPS = 5
BOARD = (4, 4096, "lockstep")


def stage_cases(rng: Random) -> list[Case]:
    drawn = []
    for at, (ranks, numel, world) in enumerate([BOARD, *sizes(rng)]):
        # Where the ranks do not divide the row, some have another dtype than fp32.
        uneven = {2: torch.bfloat16, 3: torch.float64}.get(ranks, torch.float32)
        dtype = uneven if numel % ranks else torch.float32
        row, steps = signed(rng, numel, dtype), STEPS if at else BOARD_STEPS
        args = [(row, [signed(rng, numel, dtype) for _ in range(steps)]) for _ in range(ranks)]
        drawn.append(Case(args, world, board=not at))
    return drawn


def run_stage(fn: Callable[..., Any], comm: Collectives, row: torch.Tensor, targets: list[torch.Tensor]) -> Any:
    """What the answer returns, what optimizers keep, and how often it asked for a gradient."""
    asked = 0

    def gradient(whole: torch.Tensor) -> torch.Tensor:
        nonlocal asked
        asked += 1
        return whole.detach() - targets[min(asked, len(targets)) - 1]

    with states_kept() as kept:
        row = fn(comm, row, gradient, len(targets))
    return {"row": row, "states": kept.elements, "foreign": kept.foreign, "asked": asked}


@each_rank
def asked_once_a_step(case: Case, rank: int, record: Record) -> str | None:
    asked, steps = record.value["asked"], len(case.args[0][1])
    said = f"rank {rank} calls gradient {plural(asked, 'time')} in {steps} steps"
    return None if asked == steps else f"{said}: once for each, since each call computes the next batch"


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
        Claim("its optimizers are those that adam() makes", made_by_adam),
        Claim(
            "every rank returns the row that one optimizer would have trained",
            Gives("row", "train one step on two ranks by hand, and print the shards", tolerance=tolerance),
        ),
        Claim("no rank's optimizer keeps more than its shard's states", shard_alone),
    ),
    scores=(
        Score(f"bytes a rank sends in {BOARD_STEPS} steps", most_sent, None, more_bytes),
        Score("calls of collectives", number_of_calls, None, "two calls a step are enough"),
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
    mistakes=MISTAKES,
    without=frozenset({"left", "late"}),
    text=TEXT,
    answer=(train_sharded,),
    points=2,
)
