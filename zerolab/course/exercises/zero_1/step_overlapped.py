"""Exercise of lesson 03: several buckets, and what travels while something computes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import Any

import torch

from zerolab.collectives import Link
from zerolab.course.exercises.heard import heard
from zerolab.course.exercises.zero_1.claims import tolerance
from zerolab.course.judge.case import Case
from zerolab.course.judge.claims import microseconds, never
from zerolab.course.judge.draw import signed
from zerolab.course.judge.exercise import Claim, Exercise, Score
from zerolab.course.judge.model import Gives
from zerolab.ranks import spend

TEXT = """
Overlapped

Parameters come in several rows, called buckets, each with a gradient. `update(shard, gradient)` changes a shard in
place and computes for one millisecond. One after the other, the ranks wait for the wire, then the wire waits for the
ranks:

    wire      reduce 0 .......... gather 0 reduce 1 .......... gather 1
    compute            update 0                     update 1

A virtual clock prices each message and each update. Arrange one step so that the ranks wait for the first reduction
alone, then update without a pause: the wire works for the next bucket, or the last one, meanwhile. Each `*_async`
form returns a handle at once; `handle.wait()` blocks until the call has ended, and returns its result. Calls of a
rank run one at a time, in the order in which you issue them. About nine lines; train copies of the rows and return
them, and leave rows and gradients as you got them. Call `update` once for each bucket, with this rank's shard of it
alone and the mean gradient of that: how far it goes is drawn anew. Tensors of a call are left alone until its
`wait()`. The check draws buckets of several sizes and dtypes on 1 to 4 ranks, and calls a second time with other
gradients.
"""


def step_overlapped(comm, rows: list[torch.Tensor], gradients: list[torch.Tensor], update) -> list[torch.Tensor]:
    """The rows after one step, gradients averaged over the ranks."""
    ### BEGIN SOLUTION
    rows = [row.clone() for row in rows]
    reductions = [comm.reduce_scatter_async(gradient, average=True) for gradient in gradients]
    gathers = []
    for row, reduction in zip(rows, reductions, strict=True):
        shard = row.tensor_split(comm.size)[comm.rank]
        update(shard, reduction.wait())
        gathers.append(comm.all_gather_async(shard, out=row))
    return [gather.wait() for gather in gathers]
    ### END SOLUTION


MISTAKES = r"""
rows in which its own shards alone are new: hand the shards around after the update, and wait until they are here
    gathers.append(comm.all_gather_async(shard, out=row)) => pass
    [gather.wait() for gather in gathers] => rows
what the sum of the gradients gives: take their mean
    , average=True =>
what gradients give that are divided by N twice: average=True has divided them already
    reduction.wait() => reduction.wait() / comm.size
shards that were trained without those of the other ranks' gradients: reduce before you update
    reduction.wait() => gradients[len(gathers)].tensor_split(comm.size)[comm.rank].clone()
the rows as they began: does update() see the memory that you return?
    update(shard => update(shard.clone()
the rows in another order: item i is what became of rows[i]
    in gathers] => in gathers[::-1]]
"""
LINK = Link(gbit_per_s=1, latency_us=100)
UPDATE_SECONDS = 1e-3


def overlap(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two contiguous tensors share memory."""
    first, second = one.data_ptr(), other.data_ptr()
    return first < second + other.nbytes and second < first + one.nbytes


def run_step(fn: Any, comm: Any, rows: list[torch.Tensor], gradients: list[torch.Tensor], rate: float) -> Any:
    """One step, with a plain SGD that takes a millisecond for each shard: the rows, the sizes of the shards that were
    updated, how often each collective was called, and what to say of an update that touched a call under way."""
    under_way: dict[int, list[torch.Tensor]] = {}
    sizes, held = [], []

    def note(what: str, place: int, tensors: list[torch.Tensor]) -> None:
        if what == "start":
            under_way[place] = tensors
        elif what == "wait":
            under_way.pop(place, None)

    def update(shard, gradient):
        sizes.append(shard.numel())
        for place, tensors in under_way.items():
            if any(overlap(mine, other) for mine in (shard, gradient) for other in tensors):
                held.append(calls[place].name)
        spend(UPDATE_SECONDS)
        shard.sub_(rate * gradient)

    with heard(comm, note) as calls:
        rows = fn(comm, rows, gradients, update)
    # A rank that is alone need call nobody.
    called = Counter(call.name for call in calls if comm.size > 1)
    return {"rows": rows, "sizes": sorted(sizes), "held": held[:1], "calls": called}


def bucket_case(
    rng: Random, ranks: int, numels: Sequence[int], dtype: torch.dtype = torch.float32, **where: Any
) -> Case:
    def drawn():
        return [signed(rng, numel, dtype) for numel in numels]

    rows, rate = drawn(), rng.choice((0.0625, 0.125, 0.25, 0.5))
    where = {"link": LINK, **where}
    return Case([(rows, drawn(), rate) for _ in range(ranks)], **where)


def bucket_cases(rng: Random) -> list[Case]:
    def drawn(count):
        return [rng.randint(3, 20) for _ in range(count)]

    shapes = [(2, [8, 8]), (3, [10, 10, 10]), (4, [3, 3]), (1, drawn(2)), (3, drawn(3)), (2, drawn(1))]
    return [
        bucket_case(rng, 4, [4096] * 4, board=True),
        *(bucket_case(rng, ranks, numels) for ranks, numels in shapes),
        bucket_case(rng, 2, [*drawn(2), 0], torch.float64),
        bucket_case(rng, 4, drawn(3), torch.bfloat16),
        # Rank 0's shards have 3, 2 and 3 elements, rank 1's have 2: an order by their sizes is not the same on both.
        bucket_case(rng, 2, [5, 4, 5]),
        # What is kept by the sizes shows.
        bucket_case(rng, 2, [8, 8]),
        bucket_case(rng, 2, [rng.randint(5, 20)] * 3, world="processes", link=None),
    ]


EXERCISE = Exercise(
    "step_overlapped",
    bucket_cases,
    (
        Claim(
            "no update touches what travels",
            never(
                "held",
                "rank {rank} calls update on a tensor of {it[0]} before that call's wait() has returned: a shard is "
                "updated after the wait for its reduction, and before its gather starts",
            ),
        ),
        Claim(
            "one update for each bucket, of its shard",
            Gives(
                "sizes",
                "Once for each bucket: a rank updates its own shard alone, and update alone knows how",
                say=lambda args, got, want: f"gives update tensors of {got} elements, and its shards have {want}",
            ),
        ),
        Claim(
            "every rank returns all rows, updated everywhere",
            Gives(
                "rows",
                "print one row: is it read before its call has ended, and changed by anything but its own update?",
                tolerance=tolerance,
            ),
        ),
        Claim(
            "one reduce_scatter and one all_gather for each bucket",
            Gives("calls", "", say=lambda args, got, want: f"makes the calls {got}, and {want} are due"),
        ),
    ),
    scores=(
        Score(
            "microseconds on the virtual clock",
            microseconds,
            None,
            "what keeps the calls of one bucket from travelling while another one is updated?",
            slack=1,
        ),
    ),
    hints=(
        "reduce_scatter_async and all_gather_async return a handle at once; handle.wait() gives the result.",
        "Nothing keeps you from starting all reduce_scatters before you wait for the first.",
        "A bucket's all_gather can travel while the next bucket is updated: keep its handle, and wait at the very end.",
    ),
    run=run_step,
    mistakes=MISTAKES,
    text=TEXT,
    answer=(step_overlapped,),
    points=3,
)
