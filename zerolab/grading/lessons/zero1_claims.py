"""What the exercises of lesson 03 should give, and what else people make of them, each with a hint of its own.

Adam runs here with a large epsilon, so that the size of a gradient counts: with the usual one a sum trains nearly as
a mean does, and a forgotten average would pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

import torch

from zerolab.collectives import wire_bytes
from zerolab.flat.layout import chunk_bounds
from zerolab.grading.case import Case, Observation, Other, plural
from zerolab.grading.claims import Wanted, calls_are, right, short

Tensor = torch.Tensor
Spans = Sequence[tuple[int, int, float]]
"""Parts of a row as (start, stop, weight decay)."""

# What people make of the gradients, in words that fit every exercise.
SUM = "what the sum of the gradients gives: take their mean"
TWICE = "what gradients give that are divided by N twice: average=True has divided them already"
UNSHARED = "shards that were trained without those of the other ranks' gradients: reduce before you update"
ANEW = "what an optimizer gives that forgets its states after each step: make it once"


def adam(part: Tensor, weight_decay: float = 0.0) -> torch.optim.Optimizer:
    return torch.optim.AdamW([part], lr=0.1, eps=1.0, weight_decay=weight_decay, fused=True)


def trained(row: Tensor, gradients: Sequence[Tensor], spans: Spans = (), anew: bool = False) -> Tensor:
    """The row after an optimizer for each span has had these gradients; with `anew`, a fresh one in each step."""
    row = row.clone()
    spans = spans or [(0, row.numel(), 0.0)]
    optimizers = [adam(row[start:stop], decay) for start, stop, decay in spans]
    for gradient in gradients:
        for (start, stop, decay), kept in zip(spans, optimizers, strict=True):
            optimizer = adam(row[start:stop], decay) if anew else kept
            optimizer.param_groups[0]["params"][0].grad = gradient[start:stop].clone()
            optimizer.step()
    return row


def patched(ranks: int, base: Tensor, shards: Sequence[Tensor | None]) -> Tensor:
    """`base`, with shard r taken from `shards[r]`, a whole row, where there is one."""
    row = base.clone()
    for rank, source in enumerate(shards):
        if source is not None:
            row.tensor_split(ranks)[rank].copy_(source.tensor_split(ranks)[rank])
    return row


def only(ranks: int, rank: int, source: Tensor) -> list[Tensor | None]:
    return [source if other == rank else None for other in range(ranks)]


def uncut(ranks: int, base: Tensor, good: Tensor) -> Tensor:
    """`good`, but for the elements that are left over where each rank takes numel // ranks: they are as in `base`."""
    even = base.numel() // ranks * ranks
    return torch.cat([good[:even], base[even:]])


# 1. Whole tensors.


def fullest(numels: Sequence[int], ranks: int) -> int:
    return max(loads_of(sorted(numels, reverse=True), ranks))


def loads_of(numels: Sequence[int], ranks: int) -> list[int]:
    """Each rank's elements where tensors go, in this order, to the rank that has least."""
    loads = [0] * ranks
    for numel in numels:
        loads[loads.index(min(loads))] += numel
    return loads


def fullest_mistakes(numels: Sequence[int], ranks: int) -> dict[str, int]:
    falling = sorted(numels, reverse=True)
    loads = loads_of(falling, ranks)
    return {
        "That is an equal share, which whole tensors cannot reach": -(-sum(numels) // ranks),
        "You took them as they came; the largest goes first": max(loads_of(numels, ranks)),
        "You dealt them out in turn; each goes to the rank that has least": max(
            sum(numels[rank::ranks]) for rank in range(ranks)
        ),
        # Dealing out in turn, from either end, comes to the same as greed from the smallest on.
        "You began with the smallest, or sorted them and dealt them out in turn; the largest goes first, and each to "
        "the rank that has least": sum(falling[::ranks]),
        "That is the largest tensor; a rank may have others besides": falling[0],
        "That is all of them together; how many of them does one rank get?": sum(numels),
        "That is rank 0; memory has to suffice for the fullest": loads[0],
        "You count tensors of equal size once; each takes its place": max(
            loads_of(sorted(set(numels), reverse=True), ranks)
        ),
        "That is the emptiest rank; memory has to suffice for the fullest": min(loads),
        "That is which rank it is; how much does it have?": loads.index(max(loads)),
    }


def fullest_right(case: Case, seen: Observation) -> str | None:
    numels, ranks = case.args[0]
    got, want = seen.records[0].value, fullest(numels, ranks)
    if got == want and isinstance(got, int):
        return None
    said = f"{case.about}: you say {short(got)}, and the fullest rank has {want}"
    if isinstance(got, list):
        return f"{said}: one number is asked for"
    if isinstance(got, float) and got == want:
        return f"{said}. The number is right, but elements are whole"
    for says, mistake in fullest_mistakes(numels, ranks).items():
        if got == mistake:
            return f"{said}. {says}"
    if isinstance(got, int) and -(-sum(numels) // ranks) <= got < want:
        return f"{said}. Less may be possible, but the rule is asked for: the largest first, to the rank that has least"
    return said


# 2. and 4. Stage 1, with and without groups.


def over_ranks(case: Case, by: float) -> list[Tensor]:
    """The sum of all ranks' gradients for each step, divided."""
    steps = len(case.args[0][1])
    return [torch.stack([args[1][step] for args in case.args]).sum(0) / by for step in range(steps)]


def stage1_wanted(case: Case) -> Wanted:
    row, ranks = case.args[0][0], case.ranks
    spans: Spans = case.args[0][2] if len(case.args[0]) > 2 else ()
    means = over_ranks(case, ranks)
    good, before = trained(row, means, spans), trained(row, means[:-1], spans)
    own = [trained(row, args[1], spans) for args in case.args]

    def everywhere(value: Tensor) -> list[Tensor]:
        return [value] * ranks

    mistakes = {
        "a row in which its own shard alone is new: hand the shards around": [
            patched(ranks, row, only(ranks, rank, good)) for rank in range(ranks)
        ],
        "only its own shard: return the whole row": list(good.tensor_split(ranks)),
        SUM: everywhere(trained(row, over_ranks(case, 1), spans)),
        TWICE: everywhere(trained(row, over_ranks(case, ranks**2), spans)),
        UNSHARED: everywhere(patched(ranks, row, own)),
        "what its own gradients alone train: take the mean over the ranks": own,
        "the row as it began: does the optimizer see the memory that you return?": everywhere(row),
        "a row in which the others' shards are one step late: gather what the update has changed": [
            patched(ranks, before, only(ranks, rank, good)) for rank in range(ranks)
        ],
        "the row after one step too few: each gradient counts, the last one, too": everywhere(before),
        "gradients where parameters are wanted: what do you gather?": everywhere(means[-1]),
        ANEW: everywhere(trained(row, means, spans, anew=True)),
        "what gradients give that were rounded to fp16: keep their dtype": everywhere(
            trained(row, [(mean * ranks).half().div(ranks).float() for mean in means], spans)
        ),
        "what gradients give in which earlier steps are still in: each step has its own": everywhere(
            trained(row, list(accumulate(means)), spans)
        ),
        "a row in which only rank 0's shard is wrong, it is as it began: does `if comm.rank:` skip it?": everywhere(
            patched(ranks, good, only(ranks, 0, row))
        ),
        "a row with elements at its end as they began: numel // N leaves a rest": everywhere(uncut(ranks, row, good)),
    }
    if not spans:
        return Wanted([good] * ranks, mistakes, "train one step on two ranks by hand, and print the shards")
    mistakes |= {says: everywhere(trained(row, means, cut)) for says, cut in wrong_cuts(row, ranks, spans).items()}
    look = "print the borders of each part in its shard: do the parts lie end to end, and fill it?"
    return Wanted([good] * ranks, mistakes, look)


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


# 3. Several buckets.


def buckets_wanted(case: Case) -> Wanted:
    ranks, rows, rate = case.ranks, case.args[0][0], case.args[0][2]
    gradients = [[args[1][index] for args in case.args] for index in range(len(rows))]

    def after(by: float) -> list[Tensor]:
        return [row - rate * (torch.stack(parts).sum(0) / by) for row, parts in zip(rows, gradients, strict=True)]

    good = after(ranks)
    stale = [
        [patched(ranks, row, only(ranks, rank, new)) for row, new in zip(rows, good, strict=True)]
        for rank in range(ranks)
    ]
    own = [
        patched(ranks, row, [row - rate * part for part in parts]) for row, parts in zip(rows, gradients, strict=True)
    ]
    mistakes: dict[str, list[Any]] = {
        "rows in which its own shards alone are new: hand the shards around after the update, and wait until they "
        "are here": stale,
        SUM: [after(1)] * ranks,
        TWICE: [after(ranks**2)] * ranks,
        UNSHARED: [own] * ranks,
        "the rows as they began: does update() see the memory that you return?": [rows] * ranks,
        "gradients where parameters are wanted: what do you gather?": [
            [torch.stack(parts).mean(0) for parts in gradients]
        ]
        * ranks,
        "the rows with the last bucket as it began: does the loop end too early?": [[*good[:-1], rows[-1]]] * ranks,
        "the rows in another order: item i is what became of rows[i]": [good[::-1]] * ranks,
        "one row too few: the last bucket counts, too": [good[:-1]] * ranks,
        "handles: handle.wait() gives the row": [[Other("Handle")] * len(rows)] * ranks,
    }
    look = "print one row: is it read before its call has ended, and changed by anything but its own update?"
    return Wanted([good] * ranks, mistakes, look)


def buckets_right(case: Case, seen: Observation) -> str | None:
    if not any(record.value[1] for record in seen.records):
        return f"{case.about}: it never calls update, which alone knows how a gradient changes a shard"
    records = [replace(record, value=record.value[0]) for record in seen.records]
    return right(buckets_wanted)(case, replace(seen, records=records))


def bucket_calls(case: Case, seen: Observation) -> str | None:
    numels = [row.numel() for row in case.args[0][0]]
    halves = ("reduce_scatter", "all_gather")
    for rank, record in enumerate(seen.records):
        others = sorted({called for called, _ in record.calls} - set(halves))
        if others:
            return f"{case.about}: rank {rank} calls {', '.join(others)}, which nobody needs here"
        for name in halves:
            got = [numel for called, numel in record.calls if called == name]
            if sorted(got) != sorted(numels):
                said = f"rank {rank} calls {name} {len(got)} times, and {plural(len(numels), 'bucket')} are due"
                return f"{case.about}: {said}: one reduce_scatter and one all_gather for each"
        if record.value[1] != len(numels):
            said = f"rank {rank} calls update {record.value[1]} times, and {plural(len(numels), 'bucket')} are due"
            return f"{case.about}: {said}: once for each"
    return None


def grouped_calls(case: Case, seen: Observation) -> str | None:
    """A reduce_scatter in each step, and an all_gather in each or after the last."""
    steps, numel = len(case.args[0][1]), case.args[0][0].numel()
    reduction, gather = ("reduce_scatter", numel), ("all_gather", numel)
    if all(record.calls == [*[reduction] * steps, gather] for record in seen.records):
        return None
    look = "groups are the optimizer's business, the wire sees the row"
    return calls_are(lambda case, rank: [reduction, gather] * steps, look)(case, seen)


# 6. The cost.


def cost_right(case: Case, seen: Observation) -> str | None:
    numel, ranks, way = case.args[0]
    half = wire_bytes("all_gather", numel, 4, ranks, 0)
    want = {"stage 0": 2, "stage 1, all-reduce": 3, "stage 1, reduce-scatter": 2}[way] * half
    got = seen.records[0].value
    if got == want and isinstance(got, int):
        return None
    said = f"{case.about}: you say {short(got)} bytes, and the meter counts {want}"
    if not isinstance(got, int | float):
        return f"{said}: return one whole number"
    if got == want:
        return f"{said}. The number is right, but bytes are whole: divide with //"
    if ranks == 1:
        return f"{said}. One rank has nobody to send to"
    if got * 4 == want:
        return f"{said}. You counted elements; in fp32 each has 4 bytes"
    if got * (ranks - 1) == want * ranks:
        return f"{said}. A ring of N ranks sends (N-1)/N of a tensor, not all of it"
    if got == want * ranks:
        return f"{said}. That is what all ranks together send; one rank is asked for"
    if got % half == 0:
        halves = plural(int(got // half), "half ring")
        return f"{said}. You count {halves}: an all-reduce is two, a reduce-scatter or an all-gather one"
    return said
