"""The exercise of lesson 07 on the step on the host: its states are not the device's, its 16 bits are."""

from __future__ import annotations

from random import Random
from typing import Any

import torch

from zerolab.course.exercises.given import given
from zerolab.course.judge.case import Case, Observation
from zerolab.course.judge.claims import most_held, most_sent, number_of_calls, untouched
from zerolab.course.judge.draw import signed
from zerolab.course.judge.exercise import Claim, Exercise, Score
from zerolab.course.judge.model import Gives

TEXT = '''
The step on the host

`row` holds all parameters in bf16, on the device, the same on every rank. `gradient` holds this rank's own gradients
of them, also in bf16. The host keeps what belongs to this rank's *shard* of the row,
`row.tensor_split(comm.size)[comm.rank]`, in fp32: `host["main"]`, `host["exp_avg"]`, `host["exp_avg_sq"]`, and
`host["gradient"]`, where the shard's gradient is to arrive. Nothing of use stands there before.

Take step number `step`: the *mean* gradient over the ranks, its shard to the host, `adamw(host, step)`, the new
parameters back, and all shards around. Afterwards the row has every rank's main parameters, rounded to bf16.

- Write into the row and the host's tensors, in place, and return nothing. `gradient` stays as it was.
- Main parameters are never made from the row: it has lost their last bits.
- All host memory is there already. So the scoreboard counts **every tensor that you make as the device's**: at any
  moment one 16-bit shard, and while a collective runs what it takes itself. It also counts what travels between
  ranks.

The check draws 1 to 4 ranks, rows that N does not divide or that leave a shard empty, main parameters with bits that
bf16 has not, and takes two steps with other gradients. About five lines.

```{code-cell}
:name: adamw

def adamw(host: dict, step: int) -> None:
    """Update main parameters and moments in place, with host["gradient"]. Steps count from 1."""
    torch._fused_adamw_(
        [host["main"]], [host["gradient"]], [host["exp_avg"]], [host["exp_avg_sq"]], [], [torch.tensor(float(step))],
        lr=0.1, beta1=0.9, beta2=0.999, weight_decay=0.0, eps=1.0, amsgrad=False, maximize=False,
    )  # fmt: skip
```
'''


def host_step(comm, row: torch.Tensor, gradient: torch.Tensor, host: dict, step: int) -> None:
    """One step: states on the host, 16 bits on the device and on the wire."""
    ### BEGIN SOLUTION
    shard = row.tensor_split(comm.size)[comm.rank]
    host["gradient"].copy_(comm.reduce_scatter(gradient, average=True))
    adamw(host, step)
    shard.copy_(host["main"])
    comm.all_gather(shard, out=row)
    ### END SOLUTION


MISTAKES = r"""
the states as they began: does adamw() run?
    adamw(host, step) => pass
what the sum of the gradients gives: take their mean
    , average=True =>
what gradients give that are divided by N twice: average=True has divided them already
    average=True) => average=True) / comm.size
what its own gradients give: nothing was added to them
    comm.reduce_scatter(gradient, average=True) => gradient.tensor_split(comm.size)[comm.rank]
what stands in host["gradient"] before anybody writes there: copy the shard into it
    host["gradient"].copy_ => str
what comes out if each step is the first: hand `step` on
    adamw(host, step) => adamw(host, 1)
main parameters that went through 16 bits: the row is made from them, never they from the row
    adamw(host, step) => host["main"].copy_(shard)\n    adamw(host, step)
what the gradient of rank 0's shard gives
    comm.reduce_scatter(gradient, average=True) => comm.all_reduce(gradient.clone(), average=True)[: len(shard)]
main parameters whose last bits were cut off: a cast rounds to the nearest
    shard.copy_(host["main"]) => shard.view(torch.int16).copy_(host["main"].view(torch.int32) >> 16)
the row as it began: new parameters go from the host back into it
    shard.copy_(host["main"]) =>
a row in which its own shard alone is new: hand the shards around
    comm.all_gather(shard, out=row) =>
a row in which the other ranks' shards are a step behind: they travelled before they were new
    comm.all_gather(shard, out=row) =>
    shard.copy_(host["main"]) => comm.all_gather(shard, out=row)\n    shard.copy_(host["main"])
"""
adamw = given(TEXT, "adamw")["adamw"]
STEPS = 2
SMALL = 32
"""Bytes for numbers such as the step's, which count as nothing."""
UNWRITTEN = 7777.0
"""What lies in the host's gradient buffer before anybody writes there."""


def step_case(rng: Random, ranks: int, numel: int, **where: Any) -> Case:
    # Main parameters with more bits than the 16-bit row has, and gradients whose mean the 16 bits hold exactly.
    main = torch.tensor([rng.randint(-4000, 4000) / 512 for _ in range(numel)])
    args = []
    for shard in main.tensor_split(ranks):
        host = {name: torch.zeros_like(shard) for name in ("exp_avg", "exp_avg_sq")}
        host |= {"main": shard.clone(), "gradient": torch.full_like(shard, UNWRITTEN)}
        gradients = [(ranks * signed(rng, numel)).bfloat16() for _ in range(STEPS)]
        args.append((main.bfloat16(), gradients, host))
    return Case(args, **where)


def step_cases(rng: Random) -> list[Case]:
    shapes = [(2, 9), (2, 9), (3, 3 * rng.randint(2, 5) + 1), (4, 4 * rng.randint(2, 5)), (1, 65), (4, 3)]
    return [
        # Of 2 ranks a ring holds no more than the 16-bit shard and one chunk; what is made in 32 bits shows.
        step_case(rng, 2, 2048, board=True),
        *(step_case(rng, *shape) for shape in shapes),
        step_case(rng, 3, 3 * rng.randint(3, 9) + 2, world="processes"),
    ]


def run_steps(fn, comm, row, gradients, host):
    """One call for each step. The states of the host are given, so what else there is counts as the device's."""
    for step, gradient in enumerate(gradients, 1):
        fn(comm, row, gradient, host, step)
    return {"states": {name: host[name] for name in ("main", "exp_avg", "exp_avg_sq")}, "row": row}


def one_at_a_time(case: Case, seen: Observation) -> str | None:
    """Alone, a rank's collectives take nothing but what they return, so that a second shard shows. Whoever holds more
    than two there does so on 2 ranks, too, where the scoreboard says it better."""
    shard, held = case.args[0][0].nbytes, most_held(case, seen)
    if case.ranks > 1 or not shard + SMALL < held <= 2 * shard + SMALL:
        return None
    said = f"{held} bytes lie on the device at once, and a 16-bit shard has {shard}: is the gradient's"
    return f"{said} shard still there when the parameters' is made? A name keeps its tensor until `del`"


EXERCISE = Exercise(
    "host_step",
    step_cases,
    (
        Claim(
            "each host's states are those that the mean gradients of its shard give",
            Gives("states", "print host before and after a step, on one rank", "ends with", 1e-4),
        ),
        Claim(
            "every rank's row is all main parameters in 16 bits",
            Gives("row", "main parameters in 16 bits, all shards in order; print one rank's row", "ends with"),
        ),
        Claim("gradients stay as they were", untouched(1)),
        Claim("no second 16-bit shard lies on the device", one_at_a_time),
    ),
    scores=(
        Score(
            f"bytes a rank sends in {STEPS} steps",
            most_sent,
            None,
            "an all-reduce hands everybody gradients that nobody uses",
        ),
        Score("calls of collectives", number_of_calls, None, "two calls a step are enough"),
        Score(
            "bytes held on the device at the worst moment, beside the row and the gradient",
            most_held,
            None,
            "only 16-bit shards have to be there: what is made in 32 bits, or whole, that the host has already?",
            slack=SMALL,
        ),
    ),
    hints=(
        "row.tensor_split(comm.size)[comm.rank] is a view: what is copied into it is in the row.",
        "copy_ casts: a 16-bit shard into fp32 memory, fp32 main parameters into a 16-bit shard.",
        "A mean of gradients that arrives as a shard; down to the host; the update; up into the row; all shards.",
    ),
    run=run_steps,
    memory=True,
    mistakes=MISTAKES,
    without=frozenset({"inputs"}),
    text=TEXT,
    answer=(host_step,),
    points=3,
)
