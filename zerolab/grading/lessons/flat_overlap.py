"""Exercise of lesson 02: gradients that travel in buckets, while backward goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any

import torch

from zerolab.collectives import Collectives, Link
from zerolab.grading.case import Case, Observation, plural
from zerolab.grading.claims import Wanted, alike, call, microseconds, right
from zerolab.grading.draw import signed
from zerolab.grading.exercise import Claim, Exercise, Score
from zerolab.grading.lessons.flat_travel import mean_of
from zerolab.ranks import spend

Tensor = torch.Tensor
Answer = Callable[..., Any]

LINK = Link(gbit_per_s=1, latency_us=250)
LAYER_SECONDS = 1e-3


def overlap_case(
    rng: Random, numels: Sequence[int], limit: int, ranks: int, world: str, skips: bool = False, board: bool = False
) -> Case:
    mine: list[list[Tensor | None]] = [[signed(rng, numel) for numel in numels] for _ in range(ranks)]
    skipped = []
    if skips:
        # The layers of the first bucket, on one rank; of the last one, on another.
        skipped = [(ranks - 1, layer) for layer in buckets_of(numels, limit)[0]] + [(0, 0), (0, len(numels) // 2)]
        for rank, layer in skipped:
            mine[rank][layer] = None
    args: list[tuple[Any, ...]] = [(list(numels), mine[rank], limit) for rank in range(ranks)]
    lacks = f", rank {ranks - 1} skips {buckets_of(numels, limit)[0]}, rank 0 {[0, len(numels) // 2]}" if skips else ""
    about = f"on {plural(ranks, 'rank')}, layers of {list(numels)}, limit {limit}{lacks}"
    return Case(args, world, about, LINK if world == "lockstep" else None, board)


def overlap_cases(rng: Random) -> list[Case]:
    def drawn(count: int) -> list[int]:
        return [rng.randint(1, 9) for _ in range(count)]

    cases = [
        # Exactly the limit, the whole, and a layer that is larger than the limit.
        overlap_case(rng, [5, 3, 4, 2, 6, 4], 10, 2, "lockstep"),
        overlap_case(rng, drawn(5), 11, 3, "lockstep"),
        overlap_case(rng, [4, 30, 2, 3, 5], 10, 4, "lockstep"),
        overlap_case(rng, drawn(5), 11, 2, "lockstep", skips=True),
        overlap_case(rng, drawn(5), 8, 4, "lockstep", skips=True),
        overlap_case(rng, drawn(3), 6, 1, "lockstep"),
        overlap_case(rng, drawn(4), 10, 2, "processes", skips=True),
    ]
    return [*cases, overlap_case(rng, [4096] * 8, 8192, 4, "lockstep", board=True)]


def buckets_of(numels: Sequence[int], limit: int, forward: bool = False) -> list[list[int]]:
    """Layers by bucket, from the last layer to the first (or the other way)."""
    buckets: list[list[int]] = []
    layers = range(len(numels))
    for layer in layers if forward else reversed(layers):
        if not buckets or sum(numels[other] for other in buckets[-1]) + numels[layer] > limit:
            buckets.append([])
        buckets[-1].append(layer)
    return buckets


def run_overlapped(fn: Answer, comm: Collectives, numels: list[int], gradients: list[Tensor | None], limit: int) -> Any:
    """A backward that computes, lends a gradient, and takes its memory back when it is asked for the next."""

    def backward() -> Iterator[tuple[int, Tensor]]:
        for layer in reversed(range(len(numels))):
            gradient = gradients[layer]
            if gradient is not None:
                spend(LAYER_SECONDS)
                lent = gradient.clone()
                yield layer, lent
                lent.fill_(torch.nan)

    return fn(comm, list(numels), backward(), limit)


def overlap_right(case: Case, seen: Observation) -> str | None:
    numels, _, limit = case.args[0]
    buckets = buckets_of(numels, limit)
    for rank, record in enumerate(seen.records):
        value = record.value if isinstance(record.value, list) else []
        if alike(value, overlap_wanted(case).values[rank], 1e-5):
            continue
        spoilt = [layer for layer, mean in enumerate(value) if isinstance(mean, Tensor) and mean.isnan().any()]
        if spoilt:
            said = f"rank {rank}'s gradient of layer {spoilt[0]} has NaN in it"
            return f"{case.about}: {said}: backward took its memory back, or nobody wrote there: copy what it lends"
        if len(value) == len(buckets) < len(numels):
            said = f"rank {rank} returned {len(value)} rows, and there are {len(numels)} layers"
            return f"{case.about}: {said}: cut buckets into layers again"
        own = own_gradients(case, rank)
        if record.calls and alike(value, own, 1e-5):
            said = f"rank {rank} started {plural(len(record.calls), 'call')}, and returned its own gradients"
            return f"{case.about}: {said}: a call has ended when wait() of its handle returns"
        mixed = [own[n] if n in buckets[-1] else mean for n, mean in enumerate(overlap_wanted(case).values[rank])]
        if alike(value, mixed, 1e-5):
            said = f"rank {rank}'s gradients are right but for the bucket that leaves last, which nobody averaged"
            return f"{case.about}: {said}: no layer comes behind it that would close it"
    return right(overlap_wanted)(case, seen)


def own_gradients(case: Case, rank: int) -> list[Tensor]:
    numels, gradients, _ = case.args[rank]
    return [torch.zeros(n) if g is None else g for n, g in zip(numels, gradients, strict=True)]


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


def overlap_calls(case: Case, seen: Observation) -> str | None:
    numels, _, limit = case.args[0]

    def lengths(buckets: list[list[int]]) -> list[int]:
        return [sum(numels[layer] for layer in bucket) for bucket in buckets]

    want = lengths(buckets_of(numels, limit))
    for rank, record in enumerate(seen.records):
        got = [numel for _, numel in record.calls]
        others = sorted({name for name, _ in record.calls} - {"all_reduce"})
        if others:
            return f"{case.about}: rank {rank} calls {', '.join(others)}: one all_reduce for each bucket is all"
        if got == want:
            continue
        said = f"{case.about}: rank {rank} reduces rows of {got}, and {want} are due"
        if got == numels[::-1]:
            return f"{said}: neighbours share a bucket while they have {limit} elements at most"
        if got == [sum(numels)]:
            return f"{said}: one row for all cannot leave before backward has ended"
        if got == want[::-1]:
            return f"{said}: which bucket is ready first?"
        if sorted(got) == sorted(lengths(buckets_of(numels, limit, forward=True))):
            return f"{said}: fill buckets from the last layer on, as gradients come"
        if got == lengths(buckets_of(numels, limit - 1)):
            return f"{said}: a bucket may have exactly {limit} elements"
        if any(numel > limit and numel not in numels for numel in got):
            return f"{said}: a bucket is closed before it would exceed {limit}, not after"
        if sum(got) < sum(numels):
            return f"{said}: the last bucket has nobody behind it that would close it"
        at = next((i for i, pair in enumerate(zip(got, want, strict=False)) if pair[0] != pair[1]), len(want))
        odd = call(record.calls[at]) if at < len(got) else "nothing"
        return f"{said}: look at call {at + 1}, {odd}"
    return None


def overlap_target(case: Case) -> int:
    """A bucket leaves when its last layer is there and the bucket before it has arrived."""
    numels, _, limit = case.args[0]
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
    numels, _, limit = case.args[0]
    rows = [sum(numels[layer] for layer in bucket) for bucket in buckets_of(numels, limit)]
    wire = sum(LINK.ring_seconds("all_reduce", row, 4, case.ranks) for row in rows)
    turns = round(1e6 * (wire + len(numels) * LAYER_SECONDS))
    if microseconds(case, seen) < turns - 1:
        return None
    said = f"it takes {microseconds(case, seen):,} microseconds, as if backward and wire took turns"
    return f"{case.about}: {said}: look for a wait inside the loop, or calls that start after it"


OVERLAPPED = Exercise(
    "reduce_overlapped",
    overlap_cases,
    (
        Claim("every rank returns the mean gradient of each layer", overlap_right),
        Claim("one all_reduce for each bucket, the last layers' first", overlap_calls),
        Claim("buckets travel while backward goes on", not_in_turns),
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
)
