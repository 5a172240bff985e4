"""The backward of `reduce_overlapped`: it computes, lends gradients, and notes what becomes of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any

import torch

from zerolab.collectives import Collectives, Handle, Link
from zerolab.collectives.call import Call
from zerolab.collectives.handle import Order
from zerolab.course.exercises.twice import snapshot
from zerolab.course.judge.case import Case, plural
from zerolab.course.judge.draw import signed
from zerolab.ranks import spend

Tensor = torch.Tensor
Answer = Callable[..., Any]

LINK = Link(gbit_per_s=1, latency_us=250)
# Three hundred elements take longer than the layers that are computed meanwhile.
SLOW = Link(gbit_per_s=0.001)
LAYER_SECONDS = 1e-3
Skips = Sequence[tuple[int, int]]


def overlap_case(
    rng: Random,
    numels: Sequence[int],
    limit: int,
    ranks: int,
    world: str = "lockstep",
    skips: Skips = (),
    link: Link = LINK,
    board: bool = False,
    again: bool = False,
) -> Case:
    """`skips` are (rank, layer). With `again` it is called a second time, where each rank skips another layer."""

    def drawn(skips: Skips) -> list[list[Tensor | None]]:
        mine: list[list[Tensor | None]] = [[signed(rng, numel) for numel in numels] for _ in range(ranks)]
        for rank, layer in skips:
            mine[rank][layer] = None
        return mine

    mine = drawn(skips)
    later = drawn([(rank, (rank + 1) % len(numels)) for rank in range(ranks)]) if again else [None] * ranks
    args: list[tuple[Any, ...]] = [(list(numels), mine[rank], limit, later[rank]) for rank in range(ranks)]
    skipped = {rank: [layer for who, layer in skips if who == rank] for rank in sorted({rank for rank, _ in skips})}
    lacks = "".join(f", rank {rank} skips {layers}" for rank, layers in skipped.items())
    lacks += ", called twice" if again else ""
    about = f"on {plural(ranks, 'rank')}, layers of {list(numels)}, limit {limit}{lacks}"
    return Case(args, world, about, link if world == "lockstep" else None, board)


def overlap_cases(rng: Random) -> list[Case]:
    def drawn(count: int) -> list[int]:
        return [rng.randint(1, 9) for _ in range(count)]

    def holes(numels: Sequence[int], limit: int, ranks: int) -> Skips:
        """The layers of the first bucket, on one rank; of the last one, on another."""
        first = buckets_of(numels, limit)[0]
        return [*((ranks - 1, layer) for layer in first), (0, 0), (0, len(numels) // 2)]

    two, four = drawn(5), drawn(5)
    cases = [
        # Exactly the limit, the whole, and a layer that is larger than the limit.
        overlap_case(rng, [5, 3, 4, 2, 6, 4], 10, 2),
        overlap_case(rng, drawn(11), 11, 3),
        overlap_case(rng, [4, 30, 2, 3, 5], 10, 4),
        # Layers without elements, one of them before a layer that is larger than the limit.
        overlap_case(rng, [3, 0, 7, 2, 0, 4], 10, 2),
        overlap_case(rng, [4, 30, 0], 10, 3),
        # Behind one that is larger, even a layer without elements begins the next bucket.
        overlap_case(rng, [0, 30, 4], 10, 2),
        # A bucket's first layer is skipped, then its last, then the whole, then the whole last bucket.
        overlap_case(rng, [4] * 6, 8, 2, skips=[(1, 3)]),
        overlap_case(rng, [4] * 6, 8, 2, skips=[(0, 2)]),
        overlap_case(rng, [4] * 6, 8, 3, skips=[(2, 4), (2, 3), (2, 2)]),
        overlap_case(rng, [4] * 6, 8, 2, skips=[(0, 1), (0, 0)]),
        overlap_case(rng, two, 11, 2, skips=holes(two, 11, 2)),
        overlap_case(rng, four, 8, 4, skips=holes(four, 8, 4)),
        overlap_case(rng, drawn(3), 6, 1),
        overlap_case(rng, [*[9] * 6, 30, 300], 18, 2, link=SLOW),
        overlap_case(rng, drawn(4), 9, 2, skips=[(1, 0)], again=True),
        overlap_case(rng, two, 10, 2, "processes", skips=holes(two, 10, 2)),
        # A layer without elements brings a full bucket above nothing.
        overlap_case(rng, [0, 6, 4], 10, 2),
    ]
    return [*cases, overlap_case(rng, [4096] * 8, 8192, 4, board=True)]


def buckets_of(numels: Sequence[int], limit: int, forward: bool = False) -> list[list[int]]:
    """Layers by bucket, from the last layer to the first (or the other way)."""
    buckets: list[list[int]] = []
    layers = range(len(numels))
    for layer in layers if forward else reversed(layers):
        if not buckets or sum(numels[other] for other in buckets[-1]) + numels[layer] > limit:
            buckets.append([])
        buckets[-1].append(layer)
    return buckets


class Watch:
    """An order of calls that notes how far backward was when each began, and the calls whose row was still written
    to: nobody may rely on a wire that reads late."""

    def __init__(self, inner: Order) -> None:
        self.inner = inner
        self.lent: list[int] = []
        self.ended = False
        self.starts: list[list[int]] = []
        self.changed: list[int] = []

    def issue(self, call: Call, run: Callable[[], None], tensors: list[Tensor], result: Any, now: bool) -> Handle:
        number, before = len(self.starts), [tensor.clone() for tensor in tensors]
        self.starts.append([*self.lent, *([-1] if self.ended else [])])

        def watched() -> None:
            if any(not torch.allclose(a, b, 0, 0, equal_nan=True) for a, b in zip(before, tensors, strict=True)):
                self.changed.append(number)
            run()

        return self.inner.issue(call, watched, tensors, result, now)

    def close(self) -> None:
        self.inner.close()


def run_overlapped(
    fn: Answer,
    comm: Collectives,
    numels: list[int],
    gradients: list[Tensor | None],
    limit: int,
    later: list[Tensor | None] | None,
) -> dict[str, Any]:
    """What `watched_call` sees of one call; of a second one, if there are `later` gradients, what it returns."""
    seen = watched_call(fn, comm, numels, gradients, limit)
    if later is None:
        return {**seen, "first": seen.pop("means")}
    means = seen.pop("means")
    seen |= {"first": snapshot(means), "kept": means}
    return {**seen, "again": watched_call(fn, comm, numels, later, limit)["means"]}


def watched_call(
    fn: Answer, comm: Collectives, numels: list[int], gradients: list[Tensor | None], limit: int
) -> dict[str, Any]:
    """A backward that computes, lends a gradient, and takes its memory back when it is asked for the next. Of each
    call, `starts` has the layers lent so far, with -1 behind them once backward has ended."""
    order = comm._issuer
    comm._issuer = watch = Watch(order)
    spoilt: list[int] = []
    begin = comm.transport.now()
    blocked = 0.0

    def backward() -> Iterator[tuple[int, Tensor]]:
        nonlocal blocked
        for layer in reversed(range(len(numels))):
            gradient = gradients[layer]
            if gradient is not None:
                spend(LAYER_SECONDS)
                lent = gradient.clone()
                watch.lent.append(layer)
                yield layer, lent
                if not torch.equal(lent, gradient):
                    spoilt.append(layer)
                lent.fill_(torch.nan)
        blocked = comm.transport.now() - begin - len(watch.lent) * LAYER_SECONDS
        watch.ended = True

    # New memory is filled with NaN, so that what nobody wrote shows.
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        means = fn(comm, list(numels), backward(), limit)
    finally:
        torch.use_deterministic_algorithms(False)
        comm._issuer = order
    seen = {"means": means, "starts": watch.starts, "changed": watch.changed, "spoilt": spoilt}
    return {**seen, "blocked": round(1e6 * blocked)}
