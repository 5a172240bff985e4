"""Exercise of lesson 02: gradients that travel in buckets, while backward goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any

import torch

from zerolab.collectives import Collectives, Handle, Link
from zerolab.collectives.call import Call
from zerolab.collectives.handle import Order
from zerolab.course.judge.case import Case, Record, plural
from zerolab.course.judge.claims import each_rank, microseconds, never
from zerolab.course.judge.draw import signed
from zerolab.course.judge.exercise import Claim, Exercise, Score
from zerolab.course.judge.model import Gives
from zerolab.course.judge.observe import Issued
from zerolab.ranks import spend

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


MISTAKES = r"""
Fill buckets from the last layer on, as gradients come
    in reversed(range(len(numels))) => in range(len(numels))
    rows = => buckets = [bucket[::-1] for bucket in reversed(buckets)]\n    rows =
A bucket may have exactly as many elements as the limit
    > limit => >= limit
A bucket is closed before it would exceed the limit, not after
    [layer, *buckets[-1]]) > limit => buckets[-1]) >= limit
the sum of the gradients: take their mean
    handle.wait() => handle.wait().mul_(comm.size)
the gradients from the last layer to the first: turn the list around
    list(parts) => list(parts)[::-1]
its own gradients, although calls were started: a call has ended when wait() of its handle returns
    handle.wait() => pass
NaN: backward took its memory back, so copy what it lends
    parts[layer].copy_(gradient) => parts = [*parts[:layer], gradient, *parts[layer + 1 :]]
NaN where a rank skips a layer: count it as zeros; new memory holds anything
    torch.zeros => torch.empty
That was before backward gave the first layer: a wire may read at once
    for layer, gradient => handles = [comm.all_reduce_async(row, average=True) for row in rows]\n    for layer, gradient
A layer of that bucket had not come yet: a wire may read at once
    >= layer => >= layer - 1
A complete bucket waits for the next layer: who tells you early that it is complete?
    >= layer => > layer
Its last layer is skipped; what else says that nothing can come any more?
    >= layer => == layer
"""
Tensor = torch.Tensor
LINK = Link(gbit_per_s=1, latency_us=250)
# Three hundred elements take longer than the layers that are computed meanwhile.
SLOW = Link(gbit_per_s=0.001)
LAYER_SECONDS = 1e-3
Skips = Sequence[tuple[int, int]]


def overlap_case(
    rng: Random, numels: Sequence[int], limit: int, ranks: int, skips: Skips = (), link: Any = LINK, **where: Any
) -> Case:
    """`skips` are (rank, layer)."""
    mine: list[list[Tensor | None]] = [[signed(rng, numel) for numel in numels] for _ in range(ranks)]
    for rank, layer in skips:
        mine[rank][layer] = None
    return Case([(list(numels), gradients, limit) for gradients in mine], link=link, **where)


def overlap_cases(rng: Random) -> list[Case]:
    def drawn(count: int) -> list[int]:
        return [rng.randint(1, 9) for _ in range(count)]

    cases: list[tuple[Any, ...]] = [
        # Exactly the limit, the whole, and a layer that is larger than the limit.
        ([5, 3, 4, 2, 6, 4], 10, 2),
        (drawn(11), 11, 3),
        ([4, 30, 2, 3, 5], 10, 4),
        # Layers without elements, one of them before a layer that is larger than the limit.
        ([3, 0, 7, 2, 0, 4], 10, 2),
        ([4, 30, 0], 10, 3),
        # Behind one that is larger, even a layer without elements begins the next bucket.
        ([0, 30, 4], 10, 2),
        # A bucket's first layer is skipped, then its last, then the whole, then the whole last bucket.
        ([4] * 6, 8, 2, [(1, 3)]),
        ([4] * 6, 8, 2, [(0, 2)]),
        ([4] * 6, 8, 3, [(2, 4), (2, 3), (2, 2)]),
        ([4] * 4, 8, 2, [(0, 1), (0, 0)]),
        # The first bucket on one rank, and layers of others on another.
        (drawn(5), 11, 2, [(1, 4), (1, 3), (0, 0), (0, 2)]),
        (drawn(5), 8, 4, [(3, 4), (0, 0), (0, 2)]),
        (drawn(3), 6, 1),
        # A layer without elements brings a full bucket above nothing.
        ([0, 6, 4], 10, 2),
    ]
    return [
        *(overlap_case(rng, *case) for case in cases),
        overlap_case(rng, drawn(5), 10, 2, [(1, 4), (0, 0), (0, 2)], None, world="processes"),
        overlap_case(rng, [*[9] * 6, 30, 300], 18, 2, link=SLOW),
        overlap_case(rng, [4096] * 8, 8192, 4, board=True),
    ]


class Watch(Issued):
    """An order of calls that notes how many layers were `lent` when each began, and whether a row was still written to:
    nobody may rely on a wire that reads late."""

    def __init__(self, inner: Order) -> None:
        super().__init__(inner, [])
        self.starts: list[int] = []
        self.lent = self.changed = 0

    def issue(self, call: Call, run: Callable[[], None], tensors: list[Tensor], result: Any, now: bool) -> Handle:
        self.starts.append(self.lent)
        number, before = len(self.starts), [tensor.clone() for tensor in tensors]

        def watched() -> None:
            if any(not torch.allclose(a, b, 0, 0, equal_nan=True) for a, b in zip(before, tensors, strict=True)):
                self.changed = self.changed or number
            run()

        return super().issue(call, watched, tensors, result, now)


def run_overlapped(
    fn: Callable[..., Any], comm: Collectives, numels: list[int], gradients: list[Tensor | None], limit: int
) -> dict[str, Any]:
    """A backward that computes, lends a gradient, and takes its memory back when it is asked for the next."""
    order = comm._issuer
    comm._issuer = watch = Watch(order)
    seen: dict[str, Any] = {"spoilt": [], "blocked": 0}
    begin = comm.transport.now()

    def backward() -> Iterator[tuple[int, Tensor]]:
        for layer, gradient in reversed([*enumerate(gradients)]):
            if gradient is not None:
                spend(LAYER_SECONDS)
                lent = gradient.clone()
                watch.lent += 1
                yield layer, lent
                if not torch.equal(lent, gradient):
                    seen["spoilt"].append(layer)
                lent.fill_(torch.nan)
        lost = comm.transport.now() - begin - watch.lent * LAYER_SECONDS
        seen["blocked"] = round(1e6 * lost) if lost > 1e-6 else 0

    # New memory is filled with NaN, so that what nobody wrote shows.
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        seen["means"] = fn(comm, numels, backward(), limit)
    finally:
        torch.use_deterministic_algorithms(False)
        comm._issuer = order
    return {**seen, "starts": watch.starts, "changed": watch.changed}


def starts_said(args: tuple[Any, ...], got: Any, want: Any) -> str:
    at = next(number for number, pair in enumerate(zip(got, want, strict=True)) if pair[0] != pair[1])
    return f"starts call {at + 1} when {plural(got[at], 'layer')} had come, and it is due after {want[at]}"


def sizes(calls: Sequence[tuple[str, int]]) -> str:
    return str([numel if name == "all_reduce" else name for name, numel in calls])


@each_rank
def nothing_blocks(case: Case, rank: int, record: Record) -> str | None:
    if case.world != "lockstep" or not (lost := record.value["blocked"]):
        return None
    said = f"rank {rank}'s backward stands still for {lost:,} microseconds"
    return f"{said}: a start needs no wait, and calls keep their order; wait for handles behind the loop"


EXERCISE = Exercise(
    "reduce_overlapped",
    overlap_cases,
    (
        Claim(
            "one all_reduce for each bucket, the last layers' first",
            Gives(
                lambda record: record.calls,
                "One call for each bucket: buckets take whole neighbours, from the last layer on, up to the limit",
                say=lambda args, got, want: f"reduces rows of {sizes(got)}, and {sizes(want)} are due",
            ),
        ),
        Claim(
            "every rank returns the mean gradient of each layer",
            Gives("means", "cut rows into layers, and read none before wait() of its handle returns"),
        ),
        Claim(
            "what backward lends is only read",
            never("spoilt", "rank {rank} wrote into the gradient of layer {it[0]}, which backward only lends: read it"),
        ),
        Claim(
            "a bucket leaves as soon as nothing can come for it",
            Gives("starts", "When layer k has come, nothing comes any more for k and those after it", say=starts_said),
        ),
        Claim(
            "a row is whole when its call begins",
            never(
                "changed",
                "rank {rank} wrote into the row of call {it} after the call had begun: copy the gradient first, then "
                "start, since a wire may read at once",
            ),
        ),
        Claim("backward never waits for the wire", nothing_blocks),
    ),
    run=run_overlapped,
    scores=(
        Score(
            "microseconds on the virtual clock",
            microseconds,
            None,
            "a complete bucket waits for something: who tells you early that it is complete?",
            slack=1,
        ),
    ),
    hints=(
        "numels and limit alone say which layer lies in which bucket, before backward begins, and alike on all ranks.",
        "Make a row of zeros for each bucket, and copy each gradient to its part. What was skipped is zero already.",
        "When layer k is here, nothing after k can come any more: start every bucket whose layers are all k or later.",
        "After the loop, start the buckets that are left, and only then wait for all handles.",
    ),
    mistakes=MISTAKES,
    text=TEXT,
    answer=(reduce_overlapped,),
    points=3,
)
