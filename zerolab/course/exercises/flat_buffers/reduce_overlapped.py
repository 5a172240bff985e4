"""Exercise of lesson 02: gradients that travel in buckets, while backward goes on."""

from __future__ import annotations

import torch

from zerolab.course.exercises.flat_buffers.average_gradients import mean_of
from zerolab.course.exercises.flat_buffers.backward import (
    LAYER_SECONDS,
    LINK,
    SLOW,
    buckets_of,
    overlap_cases,
    run_overlapped,
)
from zerolab.course.exercises.twice import begins_anew
from zerolab.course.judge.case import Case, Observation, Record, once, plural
from zerolab.course.judge.claims import call, each_rank, microseconds, never, part
from zerolab.course.judge.exercise import Claim, Exercise, Score
from zerolab.course.judge.mistakes import Wanted, compared, named
from zerolab.course.judge.same import alike

TEXT = """
Behind backward

Exercise 4 begins to send when all computing is done. Here gradients leave in buckets, while backward computes:

    compute   layer 3  layer 2  layer 1  layer 0
    wire                        bucket (3, 2) ..  bucket (1, 0) ..

`numels` are the layers' sizes in forward order. `backward` is an iterator that computes for a millisecond of the
virtual clock, then gives `(layer, gradient)`, from the last layer to the first. The gradient is 1-D and float32, and
it is *lent*: when you ask for the next one, backward uses that memory again. Read it, and leave it as it is. A rank
may skip layers, and then gets no gradient for them; they count as zeros.

- A bucket holds whole neighbouring layers. Fill buckets from the last layer on; a layer that would bring a bucket
  above `limit` elements begins the next one. A layer that is larger than `limit` has a bucket of its own. A layer may
  have no elements, and so may a bucket.
- For each bucket, start one `comm.all_reduce_async(row, average=True)`, as soon as nothing can come for it any more,
  in the same order on all ranks: the last layers' bucket first. Rows have no padding, and nobody writes into a row
  from the start of its call until `wait()` returns.
- Backward never waits: the wire may be slower than it.
- Return the mean gradient of each layer, in forward order.

The check draws layers, limits and who skips what, on 1 to 4 ranks; once the wire is slower than backward, and once it
calls a second time, with other gradients. About seventeen lines.
"""


def reduce_overlapped(comm, numels: list[int], backward, limit: int) -> list[torch.Tensor]:
    """The mean gradients in forward order; a bucket travels while backward goes on."""
    ### BEGIN SOLUTION
    buckets, flat = [[]], torch.zeros(sum(numels))
    for layer in reversed(range(len(numels))):
        if buckets[-1] and sum(numels[other] for other in [layer, *buckets[-1]]) > limit:
            buckets.append([])
        buckets[-1].append(layer)
    rows = flat.split([sum(numels[layer] for layer in bucket) for bucket in reversed(buckets)])[::-1]
    parts, handles = flat.split(numels), []
    for layer, gradient in backward:
        parts[layer].copy_(gradient)
        while len(handles) < len(rows) and buckets[len(handles)][-1] >= layer:
            handles.append(comm.all_reduce_async(rows[len(handles)], average=True))
    handles += [comm.all_reduce_async(row, average=True) for row in rows[len(handles) :]]
    for handle in handles:
        handle.wait()
    return list(parts)
    ### END SOLUTION


Tensor = torch.Tensor


def overlap_right(case: Case, seen: Observation) -> str | None:
    return known_by_calls(case, seen) or compared(overlap_wanted(case), seen)


@each_rank
def known_by_calls(case: Case, rank: int, record: Record) -> str | None:
    """Mistakes in values that the calls, or who skips what, help to tell."""
    numels, _, limit, _ = case.args[0]
    buckets, want = buckets_of(numels, limit), overlap_wanted(case).values[rank]
    value = record.value if isinstance(record.value, list) else []
    if alike(value, want, 1e-5):
        return None
    spoilt = [layer for layer, mean in enumerate(value) if isinstance(mean, Tensor) and mean.isnan().any()]
    if spoilt:
        said = f"rank {rank}'s gradient of layer {spoilt[0]} has NaN"
        if who := [one for one, (_, mine, *_) in enumerate(case.args) if mine[spoilt[0]] is None]:
            return f"{said}, and rank {who[0]} skips it: count it as zeros; new memory holds anything"
        return f"{said}: backward took its memory back, or nobody wrote there: copy what it lends"
    if len(value) == len(buckets) < len(numels):
        said = f"rank {rank} returned {len(value)} rows, and there are {len(numels)} layers"
        return f"{said}: cut buckets into layers again"
    own = own_gradients(case, rank)
    if record.calls and alike(value, own, 1e-5):
        said = f"rank {rank} started {plural(len(record.calls), 'call')}, and returned its own gradients"
        return f"{said}: a call has ended when wait() of its handle returns"
    mixed = [own[n] if n in buckets[-1] else mean for n, mean in enumerate(want)]
    if not alike(value, mixed, 1e-5):
        return None
    said = f"rank {rank}'s gradients are right but for the bucket that leaves last"
    if len(record.calls) >= len(buckets):
        return f"{said}, which comes back unaveraged: its call was started; was its handle waited for?"
    return f"{said}, which nobody averaged: no layer comes behind it that would close it"


def own_gradients(case: Case, rank: int) -> list[Tensor]:
    numels, gradients, *_ = case.args[rank]
    return [torch.zeros(n) if g is None else g for n, g in zip(numels, gradients, strict=True)]


@once
def overlap_wanted(case: Case) -> Wanted:
    gradients = [args[1] for args in case.args]
    like = [torch.zeros(numel) for numel in case.args[0][0]]
    good = mean_of(gradients, like, case.ranks)
    mistakes = {
        "the sum of the gradients: take their mean": [mean_of(gradients, like, 1)] * case.ranks,
        "the gradients from the last layer to the first: turn the list around": [good[::-1]] * case.ranks,
        "its own gradients, which nobody averaged": [own_gradients(case, rank) for rank in range(case.ranks)],
    }
    return Wanted([good] * case.ranks, mistakes, "what a call is still filling must not be read: wait for each handle")


def again_wanted(case: Case) -> list[list[Tensor]]:
    """What the second call should give."""
    like = [torch.zeros(numel) for numel in case.args[0][0]]
    return [mean_of([args[3] for args in case.args], like, case.ranks)] * case.ranks


def first_calls(record: Record) -> list[tuple[str, int]]:
    """The calls of the first of two calls of the answer."""
    return record.calls[: len(record.value["starts"])]


@each_rank
def overlap_calls(case: Case, rank: int, record: Record) -> str | None:
    numels, _, limit, _ = case.args[0]

    def lengths(buckets: list[list[int]]) -> list[int]:
        return [sum(numels[layer] for layer in bucket) for bucket in buckets]

    calls, want = first_calls(record), lengths(buckets_of(numels, limit))
    got = [numel for _, numel in calls]
    if others := sorted({name for name, _ in calls} - {"all_reduce"}):
        return f"rank {rank} calls {', '.join(others)}: one all_reduce for each bucket is all"
    if got == want:
        return None
    mistakes = {
        f"neighbours share a bucket while they have {limit} elements at most": got == numels[::-1],
        "one row for all cannot leave before backward has ended": got == [sum(numels)],
        "a layer without elements is a layer, and one above the limit has a bucket of its own": (
            got == [row for row in want if row]
        ),
        "which bucket is ready first?": got == want[::-1],
        "fill buckets from the last layer on, as gradients come": (
            sorted(got) == sorted(lengths(buckets_of(numels, limit, forward=True)))
        ),
        f"a layer without elements brings no bucket above {limit}, not even a full one": (
            [row for row in got if row] == want
        ),
        f"a bucket may have exactly {limit} elements": got == lengths(buckets_of(numels, limit - 1)),
        f"a bucket is closed before it would exceed {limit}, not after": (
            any(numel > limit and numel not in numels for numel in got)
        ),
        "the last bucket has nobody behind it that would close it": sum(got) < sum(numels),
    }
    at = next((i for i, pair in enumerate(zip(got, want, strict=False)) if pair[0] != pair[1]), len(want))
    look = f"look at call {at + 1}, {call(calls[at]) if at < len(got) else 'nothing'}"
    return f"rank {rank} reduces rows of {got}, and {want} are due: {named(mistakes, bool) or look}"


@each_rank
def rows_are_whole(case: Case, rank: int, record: Record) -> str | None:
    """Nobody writes into a row between the start of its call and the wire's reading of it."""
    if not record.value["changed"]:
        return None
    numels, _, limit, _ = case.args[0]
    number = record.value["changed"][0]
    lent = record.value["starts"][number]
    due = [layer for layer in buckets_of(numels, limit)[number] if case.args[rank][1][layer] is not None]
    said = f"rank {rank} wrote into the row of call {number + 1} after the call had begun"
    if not lent:
        return f"{said}, which was before backward gave the first layer: a wire may read at once"
    if late := sorted(set(due) - set(lent)):
        return f"{said}: layer {late[0]} of that bucket had not come yet; a wire may read at once"
    return f"{said}: all its layers had come, so copy the gradient first, then start; a wire may read at once"


lent_is_read_only = never(
    "spoilt",
    "rank {rank} wrote into the gradient of layer {it[0]}, which backward only lends: read it, and leave it as it is",
)


@each_rank
def starts_in_spite_of_skips(case: Case, rank: int, record: Record) -> str | None:
    """A rank that skips layers starts a bucket with the first layer behind which nothing can come for it. (Of buckets
    without a skipped layer the clock tells.)"""
    numels, _, limit, _ = case.args[0]
    comes = [layer for layer in reversed(range(len(numels))) if case.args[rank][1][layer] is not None]
    for bucket, lent in zip(buckets_of(numels, limit), record.value["starts"], strict=True):
        due = next((at for at, layer in enumerate(comes) if layer <= bucket[-1]), None)
        if due is None or len(lent) <= due + 1:
            continue
        if all(layer in comes for layer in bucket):
            break
        said = f"rank {rank} starts the bucket of layers {bucket} later than when layer {comes[due]} came"
        if bucket[-1] in comes:
            return f"{said}: one of its layers is skipped, and need not come"
        if any(layer in comes for layer in bucket):
            return f"{said}: its last layer is skipped; what else says that nothing can come any more?"
        return f"{said}: it is skipped whole, so two buckets are ready at once"
    return None


@each_rank
def nothing_blocks(case: Case, rank: int, record: Record) -> str | None:
    """Where the wire is slower than backward, backward goes on all the same."""
    if case.link is not SLOW or (lost := record.value["blocked"]) <= 1:
        return None
    said = f"the wire is slow here, and rank {rank}'s backward stands still for {lost:,} microseconds"
    return f"{said}: a start needs no wait for the call before; calls keep their order"


def overlap_target(case: Case) -> int:
    """A bucket leaves when its last layer is there and the bucket before it has arrived."""
    numels, _, limit, _ = case.args[0]
    computed = arrived = 0.0
    for bucket in buckets_of(numels, limit):
        computed += len(bucket) * LAYER_SECONDS
        numel = sum(numels[layer] for layer in bucket)
        arrived = max(arrived, computed) + LINK.ring_seconds("all_reduce", numel, 4, case.ranks)
    return round(1e6 * arrived) + 1


def not_in_turns(case: Case, seen: Observation) -> str | None:
    """On the board, where all have the same work, it takes less than backward and wire one after the other."""
    if not case.board:
        return None
    numels, _, limit, _ = case.args[0]
    rows = [sum(numels[layer] for layer in bucket) for bucket in buckets_of(numels, limit)]
    wire = sum(LINK.ring_seconds("all_reduce", row, 4, case.ranks) for row in rows)
    turns = round(1e6 * (wire + len(numels) * LAYER_SECONDS))
    if microseconds(case, seen) < turns - 1:
        return None
    said = f"it takes {microseconds(case, seen):,} microseconds, as if backward and wire took turns"
    return f"{said}: look for a wait inside the loop, or calls that start after it"


EXERCISE = Exercise(
    "reduce_overlapped",
    overlap_cases,
    (
        Claim("every rank returns the mean gradient of each layer", part("first", overlap_right)),
        Claim("what backward lends is only read", lent_is_read_only),
        Claim("one all_reduce for each bucket, the last layers' first", overlap_calls),
        Claim("a row is whole when its call begins", rows_are_whole),
        Claim("buckets travel while backward goes on", not_in_turns),
        Claim("skipped layers hold no bucket back", starts_in_spite_of_skips),
        Claim("backward never waits for the wire", nothing_blocks),
        Claim("a second call begins anew", begins_anew(again_wanted)),
    ),
    run=run_overlapped,
    scores=(
        Score(
            "microseconds on the virtual clock",
            microseconds,
            overlap_target,
            "a complete bucket waits for something: who tells you early that it is complete?",
        ),
    ),
    hints=(
        "numels and limit alone say which layer lies in which bucket, before backward begins, and alike on all ranks.",
        "Make a row of zeros for each bucket, and copy each gradient to its part. What was skipped is zero already.",
        "When layer k is here, nothing after k can come any more: start every bucket whose layers are all k or later.",
        "After the loop, start the buckets that are left, and only then wait for all handles.",
    ),
    text=TEXT,
    answer=(reduce_overlapped,),
    points=3,
)
