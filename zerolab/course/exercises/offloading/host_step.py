"""The exercise of lesson 07 on the step on the host: its states are not the device's, its 16 bits are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import torch

from zerolab.collectives import Collectives
from zerolab.course.judge.case import Case, Observation, once
from zerolab.course.judge.claims import most_held, most_in_a_ring, most_sent, never, number_of_calls, only, untouched
from zerolab.course.judge.draw import about, signed
from zerolab.course.judge.exercise import Claim, Exercise, Score
from zerolab.course.judge.mistakes import Wanted, compared

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


Tensor = torch.Tensor
Host = dict[str, Tensor]
STEPS = 2
BOARD_NUMEL = 2048
ALONE_NUMEL = 65
SMALL = 32
"""Bytes for numbers such as the step's, which count as nothing."""
UNWRITTEN = 7777.0
"""What lies in the host's gradient buffer before anybody writes there."""


def adamw(host: Host, step: int) -> None:
    """The update that the notebook hands out."""
    torch._fused_adamw_(
        [host["main"]],
        [host["gradient"]],
        [host["exp_avg"]],
        [host["exp_avg_sq"]],
        [],
        [torch.tensor(float(step))],
        lr=0.1,
        beta1=0.9,
        beta2=0.999,
        weight_decay=0.0,
        eps=1.0,
        amsgrad=False,
        maximize=False,
    )


def host_of(main: Tensor) -> Host:
    return {
        "main": main.clone(),
        "gradient": torch.full_like(main, UNWRITTEN),
        "exp_avg": torch.zeros_like(main),
        "exp_avg_sq": torch.zeros_like(main),
    }


def step_case(rng: Random, ranks: int, numel: int, world: str, board: bool = False) -> Case:
    # Main parameters with more bits than the 16-bit row has, and gradients whose mean the 16 bits hold exactly.
    main = torch.tensor([rng.randint(-4000, 4000) / 512 for _ in range(numel)])
    args: list[tuple[Any, ...]] = [
        (
            main.bfloat16(),
            [(ranks * signed(rng, numel)).bfloat16() for _ in range(STEPS)],
            host_of(main.tensor_split(ranks)[rank]),
        )
        for rank in range(ranks)
    ]
    return Case(args, world, about(ranks, numel, f"a row of {numel:,} bf16 parameters"), board=board)


def step_cases(rng: Random) -> list[Case]:
    shapes = [(2, 9), (3, 3 * rng.randint(2, 5) + 1), (4, 4 * rng.randint(2, 5)), (1, ALONE_NUMEL), (4, 3)]
    cases = [step_case(rng, ranks, numel, "lockstep") for ranks, numel in shapes]
    cases.append(step_case(rng, 3, 3 * rng.randint(3, 9) + 2, "processes"))
    # Of 2 ranks a ring holds no more than the 16-bit shard and one chunk; what is made beside them in 32 bits shows.
    return [step_case(rng, 2, BOARD_NUMEL, "lockstep", board=True), *cases]


def run_steps(fn: Callable[..., Any], comm: Collectives, row: Tensor, gradients: list[Tensor], host: Host) -> Any:
    """One call for each step. The states of the host are given, so what else there is counts as the device's."""
    memory = {name: tensor.data_ptr() for name, tensor in [("row", row), *host.items()]}
    returned = [fn(comm, row, gradient, host, step) for step, gradient in enumerate(gradients, 1)]
    moved = [name for name, at in memory.items() if (row if name == "row" else host[name]).data_ptr() != at]
    states = {name: host[name] for name in ("main", "exp_avg", "exp_avg_sq")}
    return {"states": states, "row": row, "moved": moved, "returned": [value is None for value in returned]}


def trained(
    main: Tensor,
    gradients: Sequence[Tensor],
    count: bool = True,
    rounded: bool = False,
    first: int = 1,
    rounds: bool = False,
) -> Host:
    """A host's states after these gradients; without `count` every step is the first, with `rounded` the update starts
    from what 16 bits kept of the parameters, and with `rounds` it ends with that. Steps are counted from `first`."""
    host = host_of(main)
    for step, gradient in enumerate(gradients, first):
        if rounded:
            host["main"].copy_(host["main"].bfloat16())
        host["gradient"].copy_(gradient)
        adamw(host, step if count else 1)
        if rounds:
            host["main"].copy_(host["main"].bfloat16())
    return {name: host[name] for name in ("main", "exp_avg", "exp_avg_sq")}


@once
def states_wanted(case: Case) -> Wanted:
    """Of each rank the states."""
    ranks = case.ranks
    mains = [args[2]["main"] for args in case.args]
    mean = [torch.stack([args[1][step].float() for args in case.args]).sum(0) / ranks for step in range(STEPS)]
    shards = [[whole.tensor_split(ranks)[rank] for whole in mean] for rank in range(ranks)]
    good = [trained(main, mine) for main, mine in zip(mains, shards, strict=True)]
    return Wanted(
        good, lambda: states_mistakes(case, good, mean), "print host before and after a step, on one rank", "ends with"
    )


def states_mistakes(case: Case, good: list[Host], mean: list[Tensor]) -> dict[str, Sequence[Any]]:
    """The states that mistakes give, which takes longer to work out."""
    ranks, mains, total = case.ranks, [args[2]["main"] for args in case.args], [case.ranks * whole for whole in mean]

    def everywhere(gradients: Sequence[Tensor], **slips: Any) -> list[Host]:
        return [
            trained(main, [gradient.tensor_split(ranks)[rank] for gradient in gradients], **slips)
            for rank, main in enumerate(mains)
        ]

    own = [
        trained(main, [gradient.float().tensor_split(ranks)[rank] for gradient in case.args[rank][1]])
        for rank, main in enumerate(mains)
    ]
    first = [
        trained(main, [gradient.float().tensor_split(ranks)[0] for gradient in mean])
        if len(main) == len(mains[0])
        else host
        for main, host in zip(mains, good, strict=True)
    ]
    return {
        "the states as they began: does adamw() run?": [trained(main, []) for main in mains],
        "what the sum of the gradients gives: take their mean": everywhere(total),
        "what gradients give that are divided by N twice: average=True has divided them already": everywhere(
            [whole / ranks**2 for whole in total]
        ),
        "what its own gradients give: nothing was added to them": own,
        'what stands in host["gradient"] before anybody writes there: copy the shard into it': everywhere(
            [torch.full_like(whole, UNWRITTEN) for whole in total]
        ),
        'the mean on top of what stood in host["gradient"]: nothing of use does, so write over it': everywhere(
            [UNWRITTEN + torch.stack(mean[: step + 1]).sum(0) for step in range(STEPS)]
        ),
        'the mean on top of what stood in host["gradient"] at the beginning: write over it': everywhere(
            [mean[0] + UNWRITTEN, *mean[1:]]
        ),
        "what the gradients of all steps so far give, added up: each step has its own": everywhere(
            [torch.stack(mean[: step + 1]).sum(0) for step in range(STEPS)]
        ),
        'what the gradient of the step before gives: what stands in host["gradient"] when adamw() runs?': everywhere(
            [torch.full_like(mean[0], UNWRITTEN), *mean[:-1]]
        ),
        'what the first gradient gives in each step: what stands in host["gradient"] when adamw() runs?': everywhere(
            [mean[0]] * STEPS
        ),
        "what comes out if steps count from 2: `step` begins with 1 already": everywhere(mean, first=2),
        "what comes out if each step is the first: hand `step` on": everywhere(mean, count=False),
        "main parameters that went through 16 bits: the row is made from them, never they from the row": everywhere(
            mean, rounded=True
        ),
        "main parameters that are rounded to 16 bits after a step: they keep what the row loses": everywhere(
            mean, rounds=True
        ),
        "what the gradient of rank 0's shard gives": first,
    }


moved_nothing = never(
    "moved",
    "rank {rank} put a new tensor in the place of {it[0]}: write into the memory that is there, with copy_ or out=",
)


def states_right(case: Case, seen: Observation) -> str | None:
    return moved_nothing(case, seen) or compared(states_wanted(case), only(seen, "states"), 1e-4)


def row_right(case: Case, seen: Observation) -> str | None:
    """The row is what the ranks' own main parameters come to in 16 bits, to the bit."""
    ranks, began = case.ranks, case.args[0][0]
    full = torch.cat([record.value["states"]["main"] for record in seen.records])
    new, cut = full.bfloat16(), (full.view(torch.int32) >> 16 << 16).view(torch.float32).bfloat16()
    means = [torch.stack([args[1][step].float() for args in case.args]).mean(0) for step in range(STEPS)]
    before = torch.cat(
        [
            trained(args[2]["main"], [mean.tensor_split(ranks)[rank] for mean in means[:-1]])["main"]
            for rank, args in enumerate(case.args)
        ]
    ).bfloat16()
    mine = []
    for rank in range(ranks):
        row = began.clone()
        row.tensor_split(ranks)[rank].copy_(new.tensor_split(ranks)[rank])
        mine.append(row)
    behind = []
    for rank in range(ranks):
        row = before.clone()
        row.tensor_split(ranks)[rank].copy_(new.tensor_split(ranks)[rank])
        behind.append(row)
    mistakes: dict[str, Sequence[Any]] = {
        "main parameters whose last bits were cut off: a cast rounds to the nearest": [cut] * ranks,
        "main parameters that went through fp16: the row has bf16": [full.half().bfloat16()] * ranks,
        "the row as it began: new parameters go from the host back into it": [began] * ranks,
        "a row in which its own shard alone is new: hand the shards around": mine,
        "the row of the step before: gather after the new parameters are in the shard": [before] * ranks,
        "a row in which the other ranks' shards are a step behind: they travelled before they were new": behind,
    }
    look = "main parameters in 16 bits, all shards in order; print one rank's row beside them"
    return compared(Wanted([new] * ranks, mistakes, look, did="ends with"), only(seen, "row"), 0.0)


def nothing_returned(case: Case, seen: Observation) -> str | None:
    if all(all(record.value["returned"]) for record in seen.records):
        return None
    return "it returns something, and the row and the host's states are all there is: write into them"


def step_sends(case: Case) -> int:
    numel = case.args[0][0].numel()
    return STEPS * most_in_a_ring([("reduce_scatter", numel), ("all_gather", numel)], 2, case.ranks)


def sends_more(case: Case, seen: Observation) -> str:
    names = {name for name, _ in seen.records[0].calls}
    if "all_reduce" in names:
        return "an all-reduce hands everybody gradients that nobody uses"
    if most_sent(case, seen) % step_sends(case):
        return "gradients and parameters have 16 bits on the device: what travels with 32?"
    return "both ways have 32 bits on the wire, and 16 are enough"


def device_target(case: Case) -> int:
    """Of 16-bit shards: the one that the reduction returns, and what a ring of 2 ranks is sent."""
    return 2 * case.args[0][0].nbytes // case.ranks + SMALL


def one_at_a_time(case: Case, seen: Observation) -> str | None:
    """Alone, a rank's collectives take nothing but what they return, so that a second shard shows. Whoever holds more
    than two there does so on 2 ranks, too, where the scoreboard says it better."""
    shard = case.args[0][0].nbytes
    if case.ranks > 1 or not shard + SMALL < most_held(case, seen) <= 2 * shard + SMALL:
        return None
    return (
        f"{most_held(case, seen)} bytes lie on the device at once, and a 16-bit shard has {shard}: is "
        "the gradient's shard still there when the parameters' is made? A name keeps its tensor until `del`. Or what "
        "travels with 32 bits?"
    )


EXERCISE = Exercise(
    "host_step",
    step_cases,
    (
        Claim("each host's states are those that the mean gradients of its shard give", states_right),
        Claim("every rank's row is all main parameters in 16 bits", row_right),
        Claim("gradients stay as they were", untouched(1)),
        Claim("it returns nothing", nothing_returned),
        Claim("no second 16-bit shard lies on the device", one_at_a_time),
    ),
    scores=(
        Score(f"bytes a rank sends in {STEPS} steps", most_sent, step_sends, sends_more),
        Score("calls of collectives", number_of_calls, lambda case: 2 * STEPS, "two calls a step are enough"),
        Score(
            "bytes held on the device at the worst moment, beside the row and the gradient",
            most_held,
            device_target,
            "only 16-bit shards have to be there: what is made in 32 bits, or whole, that the host has already?",
        ),
    ),
    hints=(
        "row.tensor_split(comm.size)[comm.rank] is a view: what is copied into it is in the row.",
        "copy_ casts: a 16-bit shard into fp32 memory, fp32 main parameters into a 16-bit shard.",
        "A mean of gradients that arrives as a shard; down to the host; the update; up into the row; all shards.",
    ),
    run=run_steps,
    memory=True,
    text=TEXT,
    answer=(host_step,),
    points=3,
)
