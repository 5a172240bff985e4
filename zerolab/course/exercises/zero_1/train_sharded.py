"""Exercise of lesson 03: stage 1 on a row. Gradients are computed from the row, so who gathers late trains another."""

from __future__ import annotations

from random import Random
from typing import Any

import torch

from zerolab.course.exercises.zero_1.claims import adam, made_by_adam, row_dtype, shard_alone, states_kept, tolerance
from zerolab.course.judge.case import Case, plural
from zerolab.course.judge.claims import most_held, most_sent, number_of_calls
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
        dtype, steps = row_dtype(ranks, numel), STEPS if at else BOARD_STEPS
        row = signed(rng, numel, dtype)
        args = [(row, [signed(rng, numel, dtype) for _ in range(steps)]) for _ in range(ranks)]
        drawn.append(Case(args, world, board=not at))
    return drawn


def run_stage(fn: Any, comm: Any, row: torch.Tensor, targets: list[torch.Tensor]) -> Any:
    """What the answer returns, what optimizers keep, and how often it asked for a gradient."""
    asked = 0

    def gradient(whole: torch.Tensor) -> torch.Tensor:
        nonlocal asked
        asked += 1
        return whole.detach() - targets[min(asked, len(targets)) - 1]

    with states_kept() as kept:
        row = fn(comm, row, gradient, len(targets))
    return {"row": row, "asked": asked, **kept}


ALL_REDUCED = """
an all-reduce hands everybody gradients that nobody uses; which collective stops halfway?
    reduce_scatter(gradient(row), average=True)
        => all_reduce(gradient(row), average=True).tensor_split(comm.size)[comm.rank]
"""


EXERCISE = Exercise(
    "train_sharded",
    stage_cases,
    (
        Claim(
            "it computes one gradient for each step",
            Gives(
                "asked",
                "Once for each, since each call computes the next batch",
                say=lambda args, got, want: f"calls gradient {plural(got, 'time')} in {want} steps",
            ),
        ),
        Claim("its optimizers are those that adam() makes", made_by_adam),
        Claim(
            "every rank returns the row that one optimizer would have trained",
            Gives("row", "train one step on two ranks by hand, and print the shards", tolerance=tolerance),
        ),
        Claim("no rank's optimizer keeps more than its shard's states", shard_alone),
    ),
    scores=(
        Score(
            f"bytes a rank sends in {BOARD_STEPS} steps",
            most_sent,
            None,
            "which collective adds gradients up on the way, and which hands all shards around at once?",
            wastes=ALL_REDUCED,
        ),
        Score("calls of collectives", number_of_calls, None, "two calls a step are enough"),
        Score(
            "bytes held at the worst moment",
            most_held,
            None,
            "a row, a gathered one, a gradient and a copy of it fit: does it keep rows or gradients of earlier steps?",
            # The gathered row and the copy, four shards each, a shard's gradient of the last step, and a little.
            slack=9 * 4096 + 60,
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
