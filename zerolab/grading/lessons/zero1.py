"""Exercises of lesson 03: ZeRO-1.

Adam runs here with a large epsilon, so that the size of a gradient counts: with the usual one a sum trains nearly as
a mean does, and a forgotten average would pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import torch

from zerolab.collectives import Collectives, Link, wire_bytes
from zerolab.grading.case import Case, Observation, plural
from zerolab.grading.claims import (
    Wanted,
    alike,
    calls_are,
    microseconds,
    most_held,
    most_sent,
    number_of_calls,
    right,
    short,
    untouched,
)
from zerolab.grading.draw import about, signed, sizes
from zerolab.grading.exercise import Claim, Exercise, Score, alone
from zerolab.ranks import spend

Tensor = torch.Tensor
STEPS = 3


def adam(part: Tensor, weight_decay: float = 0.0) -> torch.optim.Optimizer:
    return torch.optim.AdamW([part], lr=0.1, eps=1.0, weight_decay=weight_decay, fused=True)


# 1. Whole tensors.


def fullest_cases(rng: Random) -> list[Case]:
    cases = []
    for ranks in (1, 2, 3, 4, 8):
        for _ in range(2):
            numels = [rng.randint(1, 60) for _ in range(rng.randint(ranks, ranks + 6))]
            rng.shuffle(numels)
            cases.append(Case([(numels, ranks)], about=f"tensors of {numels} elements, {plural(ranks, 'rank')}"))
    cases.append(Case([([100, 3, 2, 1], 4)], about="tensors of [100, 3, 2, 1] elements, 4 ranks"))
    return cases


def fullest(numels: Sequence[int], ranks: int) -> int:
    loads = [0] * ranks
    for numel in sorted(numels, reverse=True):
        loads[loads.index(min(loads))] += numel
    return max(loads)


def fullest_right(case: Case, seen: Observation) -> str | None:
    numels, ranks = case.args[0]
    got, want = seen.records[0].value, fullest(numels, ranks)
    if got == want and isinstance(got, int):
        return None
    said = f"{case.about}: you say {short(got)}, and the fullest rank has {want}"
    if got == -(-sum(numels) // ranks) or got == sum(numels) / ranks:
        return f"{said}. That is an equal share, which whole tensors cannot reach"
    in_order = [0] * ranks
    for numel in numels:
        in_order[in_order.index(min(in_order))] += numel
    if got == max(in_order):
        return f"{said}. You took them as they came; the largest goes first"
    if got == max(sum(numels[rank::ranks]) for rank in range(ranks)):
        return f"{said}. You dealt them out in turn; each goes to the rank that has least"
    if got == max(numels):
        return f"{said}. That is the largest tensor; a rank may have others besides"
    return said


# 2. Stage 1. Every rank has a gradient of its own for each step.


def training_case(
    rng: Random, ranks: int, numel: int, world: str, board: bool = False, link: Link | None = None
) -> Case:
    row = signed(rng, numel)
    gradients = [[signed(rng, numel) for _ in range(STEPS)] for _ in range(ranks)]
    args: list[tuple[Any, ...]] = [(row, gradients[rank]) for rank in range(ranks)]
    return Case(args, world, about(ranks, numel, f"a row of {plural(numel, 'element')}"), link, board)


def training_cases(rng: Random) -> list[Case]:
    cases = [training_case(rng, ranks, numel, world) for ranks, numel, world in sizes(rng)]
    return [training_case(rng, 4, 4096, "lockstep", board=True), *cases]


def trained(row: Tensor, gradients: Sequence[Tensor], decays: Sequence[tuple[int, int, float]] = ()) -> Tensor:
    """The row after one optimizer has had these gradients; `decays` are (start, stop, weight decay)."""
    row = row.clone()
    spans = decays or [(0, row.numel(), 0.0)]
    optimizers = [(start, stop, adam(row[start:stop], decay)) for start, stop, decay in spans]
    for gradient in gradients:
        for start, stop, optimizer in optimizers:
            optimizer.param_groups[0]["params"][0].grad = gradient[start:stop].clone()
            optimizer.step()
    return row


def over_ranks(case: Case, by: float) -> list[Tensor]:
    """The sum of all ranks' gradients for each step, divided."""
    return [torch.stack([args[1][step] for args in case.args]).sum(0) / by for step in range(STEPS)]


def stage1_wanted(case: Case) -> Wanted:
    row = case.args[0][0]
    decays = case.args[0][2] if len(case.args[0]) > 2 else ()
    good = trained(row, over_ranks(case, case.ranks), decays)
    own = [trained(row, gradients, decays) for _, gradients, *_ in case.args]
    stale = []
    for rank in range(case.ranks):
        mixed = row.clone()
        mixed.tensor_split(case.ranks)[rank].copy_(good.tensor_split(case.ranks)[rank])
        stale.append(mixed)
    mistakes = {
        "a row in which its own shard alone is new: hand the shards around": stale,
        "only its own shard: return the whole row": list(good.tensor_split(case.ranks)),
        "what the sum of the gradients trains: take their mean": [trained(row, over_ranks(case, 1), decays)]
        * case.ranks,
        "what its own gradients alone train: take the mean over the ranks": own,
        "the row as it began: does the optimizer see the memory that you return?": [row] * case.ranks,
    }
    if decays:
        mistakes["a row trained without weight decay"] = [trained(row, over_ranks(case, case.ranks))] * case.ranks
    look = "train one step on two ranks by hand, and print the shards"
    return Wanted([good] * case.ranks, mistakes, look)


def steps_sent(name: str) -> Callable[[Case], int]:
    def target(case: Case) -> int:
        numel = case.args[0][0].numel()
        return STEPS * max(
            wire_bytes(name, numel, 4, case.ranks, rank) + wire_bytes("all_gather", numel, 4, case.ranks, rank)
            for rank in range(case.ranks)
        )

    return target


def state_target(case: Case) -> int:
    """The row; of a shard two states, the gradient of the last step and of this one, and the ring's two chunks."""
    nbytes = case.args[0][0].nbytes
    return nbytes + 6 * nbytes // case.ranks + 64


STAGE1 = Exercise(
    "train_sharded",
    training_cases,
    (
        Claim("every rank returns the row that one optimizer would have trained", right(stage1_wanted)),
        Claim("its inputs stay as they were", untouched(0, 1)),
    ),
    scores=(
        Score(
            f"bytes a rank sends in {STEPS} steps",
            most_sent,
            steps_sent("reduce_scatter"),
            "an all-reduce hands everybody gradients that nobody uses; which collective stops halfway?",
        ),
        Score("calls of collectives", number_of_calls, lambda case: 2 * STEPS, "two calls a step are enough"),
        Score(
            "bytes held at the worst moment",
            most_held,
            state_target,
            "does the optimizer know more than the shard, or is a whole gradient kept?",
        ),
    ),
    hints=(
        "A rank's shard is row.tensor_split(comm.size)[comm.rank], a view: what an optimizer does to it, it does to "
        "the row.",
        "Each step: a mean of gradients that arrives as a shard, an update of the shard, and the shards end to end.",
        "comm.all_gather(shard, out=row) writes all shards into the row; it knows the length from out.",
    ),
    memory=True,
)


# 3. Several buckets, and what travels while something computes.

LINK = Link(gbit_per_s=1, latency_us=100)
UPDATE_SECONDS = 1e-3


def update(shard: Tensor, gradient: Tensor) -> None:
    """A step of plain SGD on a shard, in place; it takes a millisecond."""
    spend(UPDATE_SECONDS)
    shard.sub_(0.1 * gradient)


def bucket_case(rng: Random, ranks: int, buckets: int, numel: int, world: str, board: bool = False) -> Case:
    rows = [signed(rng, numel) for _ in range(buckets)]
    args: list[tuple[Any, ...]] = [(rows, [signed(rng, numel) for _ in rows], update) for _ in range(ranks)]
    what = f"{plural(buckets, 'bucket')} of {plural(numel, 'element')}"
    return Case(args, world, about(ranks, numel, what), LINK if world == "lockstep" else None, board)


def bucket_cases(rng: Random) -> list[Case]:
    shapes = [(2, 2, 8), (3, 3, 10), (4, 2, 3), (1, 2, 5)]
    cases = [bucket_case(rng, ranks, buckets, numel, "lockstep") for ranks, buckets, numel in shapes]
    cases.append(bucket_case(rng, 2, 3, rng.randint(5, 20), "processes"))
    return [bucket_case(rng, 4, 4, 4096, "lockstep", board=True), *cases]


def buckets_wanted(case: Case) -> Wanted:
    def after(by: float) -> list[Tensor]:
        summed = [torch.stack([args[1][index] for args in case.args]).sum(0) for index in range(len(case.args[0][0]))]
        return [row - 0.1 * (gradient / by) for row, gradient in zip(case.args[0][0], summed, strict=True)]

    rows, good = case.args[0][0], after(case.ranks)
    stale = []
    for rank in range(case.ranks):
        mixed = [row.clone() for row in rows]
        for row, new in zip(mixed, good, strict=True):
            row.tensor_split(case.ranks)[rank].copy_(new.tensor_split(case.ranks)[rank])
        stale.append(mixed)
    mistakes = {
        "rows in which its own shards alone are new: hand the shards around, and wait until they are here": stale,
        "what the sum of the gradients gives: take their mean": [after(1)] * case.ranks,
        "the rows as they began": [rows] * case.ranks,
    }
    look = "what a call is still filling must not be read: which wait() comes too late?"
    return Wanted([good] * case.ranks, mistakes, look)


def bucket_calls(case: Case, seen: Observation) -> str | None:
    numels = [row.numel() for row in case.args[0][0]]
    for rank, record in enumerate(seen.records):
        for name in ("reduce_scatter", "all_gather"):
            got = [numel for called, numel in record.calls if called == name]
            if got != numels:
                said = f"rank {rank} calls {name} {len(got)} times, and {plural(len(numels), 'bucket')} are due"
                return f"{case.about}: {said}: one reduce_scatter and one all_gather for each"
        if len(record.calls) != 2 * len(numels):
            names = sorted({called for called, _ in record.calls} - {"reduce_scatter", "all_gather"})
            return f"{case.about}: rank {rank} also calls {', '.join(names)}, which nobody needs here"
    return None


def overlapped_target(case: Case) -> int:
    """Updates take longer than the wire: before the first there is a reduction, after the last a gather, and nothing
    else stands still."""
    rows = case.args[0][0]
    half = LINK.ring_seconds("all_gather", rows[0].numel(), 4, case.ranks)
    return round(1e6 * (2 * half + len(rows) * UPDATE_SECONDS)) + 1


OVERLAPPED = Exercise(
    "step_overlapped",
    bucket_cases,
    (
        Claim("every rank returns all rows, updated everywhere", right(buckets_wanted)),
        Claim("one reduce_scatter and one all_gather for each bucket", bucket_calls),
    ),
    scores=(
        Score(
            "microseconds on the virtual clock",
            microseconds,
            overlapped_target,
            "somebody waits for the wire between two updates: what could already travel?",
        ),
    ),
    hints=(
        "reduce_scatter_async and all_gather_async return a handle at once; handle.wait() gives the result.",
        "Nothing keeps you from starting all reduce_scatters before you wait for the first.",
        "A bucket's all_gather can travel while the next bucket is updated: keep its handle, and wait at the very end.",
    ),
)


# 4. Groups whose borders are not the shards'.


def group_case(rng: Random, ranks: int, numel: int, world: str) -> Case:
    borders = sorted({0, numel, *(rng.randint(0, numel) for _ in range(3))})
    decays = rng.sample([0.0, 0.5, 1.0, 2.0, 4.0], len(borders) - 1) if len(borders) < 6 else []
    groups = list(zip(borders[:-1], borders[1:], decays, strict=True))
    row = signed(rng, numel)
    args: list[tuple[Any, ...]] = [(row, [signed(rng, numel) for _ in range(STEPS)], groups) for _ in range(ranks)]
    return Case(args, world, about(ranks, numel, f"a row of {plural(numel, 'element')}, groups {groups}"))


def grouped_sizes(rng: Random) -> list[Case]:
    return [group_case(rng, ranks, numel, world) for ranks, numel, world in sizes(rng)]


GROUPED = Exercise(
    "train_grouped",
    grouped_sizes,
    (
        Claim(
            "every rank returns the row that one optimizer with these groups would have trained", right(stage1_wanted)
        ),
        Claim("its inputs stay as they were", untouched(0, 1)),
        Claim(
            "it reduces and gathers once a step",
            calls_are(
                lambda case, rank: [(n, case.args[0][0].numel()) for n in ("reduce_scatter", "all_gather")] * STEPS,
                "groups are the optimizer's business, the wire sees the row",
            ),
        ),
    ),
    hints=(
        "Which part of a group [start, stop) lies in a shard [first, last)? max(start, first) to min(stop, last), if "
        "that is not empty.",
        "An optimizer for each group's part of your shard, made once, before the first step.",
        "A rank may own no part of a group, and then has no optimizer for it.",
    ),
)


# 5. The sketch.


def sketch_case(rng: Random, ranks: int, numels: Sequence[int], world: str) -> Case:
    tensors = [signed(rng, numel) for numel in numels]
    args: list[tuple[Any, ...]] = [
        (tensors, [[signed(rng, numel) for numel in numels] for _ in range(2)]) for _ in range(ranks)
    ]
    return Case(args, world, f"on {plural(ranks, 'rank')}, tensors of {list(numels)} elements")


def sketch_cases(rng: Random) -> list[Case]:
    def drawn(count: int) -> list[int]:
        return [rng.randint(1, 9) for _ in range(count)]

    shapes = [(2, [4, 4]), (2, drawn(3)), (3, drawn(4)), (4, drawn(3)), (1, drawn(2)), (4, [1])]
    return [sketch_case(rng, ranks, numels, "lockstep") for ranks, numels in shapes] + [
        sketch_case(rng, 2, drawn(3), "processes")
    ]


def run_optimizer(fn: Callable[..., Any], comm: Collectives, tensors: list[Tensor], steps: list[list[Tensor]]) -> Any:
    """Build the optimizer on parameters of this rank's own, and take steps with the gradients given."""
    parameters = [torch.nn.Parameter(tensor.clone()) for tensor in tensors]
    optimizer = fn(comm, parameters, adam)
    kept = states_of(optimizer)
    for gradients in steps:
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient.clone()
        optimizer.step()
        kept = states_of(optimizer)
    return [parameter.detach() for parameter in parameters], kept


def states_of(optimizer: Any) -> int:
    """Elements in the states of the torch optimizer that an optimizer holds as `optimizer`."""
    inner = optimizer.optimizer
    states = inner.state.values() if isinstance(inner, torch.optim.Optimizer) else ()
    return sum(value.numel() for state in states for value in state.values() if value.dim())


def sketch_values(case: Case, by: float) -> list[Tensor]:
    tensors = case.args[0][0]
    joined = [torch.cat(list(tensors))]
    for step in range(2):
        joined.append(torch.stack([torch.cat(list(args[1][step])) for args in case.args]).sum(0) / by)
    row = trained(joined[0], joined[1:])
    return list(row.split([tensor.numel() for tensor in tensors]))


def sketch_right(case: Case, seen: Observation) -> str | None:
    good, summed = sketch_values(case, case.ranks), sketch_values(case, 1)
    tensors = case.args[0][0]
    for rank, record in enumerate(seen.records):
        got = record.value[0]
        if alike(got, good, 1e-5):
            continue
        if alike(got, summed, 1e-5):
            return f"{case.about}: rank {rank} trains with the sum of the ranks' gradients: take their mean"
        wrong = [index for index, value in enumerate(got) if not alike(value, good[index], 1e-5)]
        begun = [index for index in wrong if torch.equal(got[index], tensors[index])]
        if begun:
            said = f"on rank {rank} tensor {begun[0]} is as it began"
            return f"{case.about}: {said}: no rank owns it, or nobody sent it here"
        close = torch.isclose(got[wrong[0]], good[wrong[0]], rtol=1e-5, atol=1e-5)
        much = f"{int((~close).sum())} of {close.numel()} elements wrong"
        return f"{case.about}: rank {rank} has, in tensor {wrong[0]}, {much}: who updates them, with whose gradient?"
    return None


def sketch_small(case: Case, seen: Observation) -> str | None:
    most = -(-sum(tensor.numel() for tensor in case.args[0][0]) // case.ranks)
    for rank, record in enumerate(seen.records):
        if record.value[1] > 2 * most:
            said = (
                f"rank {rank}'s optimizer keeps {record.value[1]} numbers, and two for each of {most} elements are due"
            )
            return f"{case.about}: {said}: cut through tensors, as lesson 02 does"
    return None


MENDED = Exercise(
    "MendedOptimizer",
    sketch_cases,
    (
        Claim("every rank ends with the parameters that one optimizer would have trained", sketch_right),
        Claim("no rank's optimizer keeps more than one N-th", sketch_small),
    ),
    run=run_optimizer,
    hints=(
        "Three tensors over two ranks: which of them does the broken one never give to anybody?",
        "Put the parameters end to end (torch.cat), and give each rank its piece of that row, whatever it cuts.",
        "In step: the row of gradients, reduced to the mean of your piece; update; gather; copy the row back into the "
        "parameters.",
    ),
)


# 6. The cost.


def cost_cases(rng: Random) -> list[Case]:
    cases = []
    for ranks in (1, 2, 3, 4):
        for way in ("stage 0", "stage 1, all-reduce", "stage 1, reduce-scatter"):
            numel = ranks * rng.randint(2, 3000)
            cases.append(
                Case([(numel, ranks, way)], about=f"{plural(numel, 'parameter')}, {plural(ranks, 'rank')}, {way}")
            )
    return cases


def cost_right(case: Case, seen: Observation) -> str | None:
    numel, ranks, way = case.args[0]
    half = wire_bytes("all_gather", numel, 4, ranks, 0)
    want = {"stage 0": 2, "stage 1, all-reduce": 3, "stage 1, reduce-scatter": 2}[way] * half
    got = seen.records[0].value
    if got == want and isinstance(got, int):
        return None
    said = f"{case.about}: you say {short(got)} bytes, and the meter counts {want}"
    if isinstance(got, float) and got == want:
        return f"{said}. The number is right, but bytes are whole: divide with //"
    if ranks > 1 and isinstance(got, int | float) and got * 4 == want:
        return f"{said}. You counted elements; in fp32 each has 4 bytes"
    if isinstance(got, int | float) and half and got % half == 0:
        halves = plural(int(got // half), "half ring")
        return f"{said}. You count {halves}: an all-reduce is two, a reduce-scatter or an all-gather one"
    if isinstance(got, int | float) and got and want and got * (ranks - 1) == want * ranks:
        return f"{said}. A ring of N ranks sends (N-1)/N of a tensor, not all of it"
    return said


EXERCISES = (
    Exercise(
        "fullest_rank",
        fullest_cases,
        (Claim("it finds the load of the fullest rank", fullest_right),),
        run=alone,
        hints=(
            "Sort the tensors, the largest first.",
            "Keep a list of what each rank has; the next tensor goes to the one that has least.",
        ),
    ),
    STAGE1,
    OVERLAPPED,
    GROUPED,
    MENDED,
    Exercise(
        "step_bytes",
        cost_cases,
        (Claim("what you predict is what the meter counts", cost_right),),
        run=alone,
        hints=(
            "A reduce-scatter or an all-gather sends (N-1)/N of the tensor, an all-reduce twice that.",
            "Write down the collectives of one step of each way; section 5 of the lesson measured them.",
        ),
    ),
)
