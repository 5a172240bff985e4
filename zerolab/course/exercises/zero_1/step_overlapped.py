"""Exercise of lesson 03: several buckets, and what travels while something computes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import torch

from zerolab.collectives import Collectives, Handle, Link
from zerolab.collectives.call import Call
from zerolab.collectives.handle import Order
from zerolab.course.exercises.twice import begins_anew, snapshot
from zerolab.course.exercises.zero_1.claims import SUM, TWICE, UNSHARED, only, patched, tolerance
from zerolab.course.judge.case import Case, Observation, Other, Record, plural
from zerolab.course.judge.claims import each_rank, microseconds, part, untouched
from zerolab.course.judge.draw import about, signed
from zerolab.course.judge.exercise import Claim, Exercise, Score
from zerolab.course.judge.mistakes import Wanted, right
from zerolab.flat.layout import chunk_sizes
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


Tensor = torch.Tensor
Answer = Callable[..., Any]
LINK = Link(gbit_per_s=1, latency_us=100)
UPDATE_SECONDS = 1e-3


class Noted:
    """An order of calls that notes the name and the time of each as it is issued, and which are still under way."""

    def __init__(self, inner: Order, events: list[tuple[str, float]], now: Callable[[], float]) -> None:
        self.inner, self.events, self.now = inner, events, now
        self.issued: list[tuple[str, list[Tensor], Handle]] = []

    def issue(self, call: Call, run: Callable[[], None], tensors: list[Tensor], result: Any, now: bool) -> Handle:
        self.events.append((call.name, self.now()))
        handle = self.inner.issue(call, run, tensors, result, now)
        self.issued.append((call.name, tensors, handle))
        return handle

    def holding(self, *touched: Tensor) -> str:
        """The name of a call whose tensors these touch before anybody has waited for it, or ''. Calls end in order, so
        whoever has waited for a later one has waited for it."""
        for name, tensors, handle in reversed(self.issued):
            pending = handle._pending
            if pending is None or getattr(pending, "waited", True):
                break
            if any(overlap(mine, other) for mine in touched for other in tensors):
                return name
        return ""

    def close(self) -> None:
        self.inner.close()


def overlap(one: Tensor, other: Tensor) -> bool:
    """Whether two contiguous tensors share memory."""
    first, second = one.data_ptr(), other.data_ptr()
    return first < second + other.nbytes and second < first + one.nbytes


def run_step(
    fn: Answer,
    comm: Collectives,
    rows: list[Tensor],
    gradients: list[Tensor],
    rate: float,
    later: list[Tensor] | None,
) -> dict[str, Any]:
    """One step, with a plain SGD that takes a millisecond for each shard, and a second one if there are gradients for
    it. `events` are the first one's calls and updates, each with its time, `sizes` those of the shards that were
    updated, and `held` names calls under way whose tensors an update touched."""
    order, now = comm._issuer, comm.transport.now
    events: list[tuple[str, float]] = []
    sizes, held = [], []
    noted = Noted(order, events, now)

    def update(shard: Tensor, gradient: Tensor) -> None:
        events.append(("update", now()))
        sizes.append(shard.numel())
        if name := noted.holding(shard, gradient):
            held.append(name)
        spend(UPDATE_SECONDS)
        shard.sub_(rate * gradient)

    comm._issuer = noted
    try:
        first = fn(comm, rows, gradients, update)
    finally:
        comm._issuer = order
    seen = {"first": snapshot(first), "events": list(events), "kept": first, "sizes": list(sizes), "held": list(held)}
    return seen if later is None else {**seen, "again": fn(comm, list(rows), list(later), update)}


def bucket_case(
    rng: Random, ranks: int, numels: Sequence[int], world: str, dtype: torch.dtype = torch.float32, board: bool = False
) -> Case:
    rows = [signed(rng, numel, dtype) for numel in numels]
    rate = rng.choice((0.0625, 0.125, 0.25, 0.5))

    def drawn() -> list[Tensor]:
        return [signed(rng, numel, dtype) for numel in numels]

    args: list[tuple[Any, ...]] = [(rows, drawn(), rate, None if board else drawn()) for _ in range(ranks)]
    kind = "" if dtype is torch.float32 else f" of {str(dtype).removeprefix('torch.')}"
    what = f"{len(numels)} buckets of {numels[0]} elements" if board else f"buckets of {list(numels)} elements{kind}"
    said = about(ranks, numels[0], what) if board else f"on {plural(ranks, 'rank')}, {what}"
    return Case(args, world, said, LINK if world == "lockstep" else None, board)


def bucket_cases(rng: Random) -> list[Case]:
    def drawn(count: int) -> list[int]:
        return [rng.randint(3, 20) for _ in range(count)]

    shapes = [(2, [8, 8]), (3, [10, 10, 10]), (4, [3, 3]), (1, drawn(2)), (3, drawn(3)), (2, drawn(1))]
    cases = [bucket_case(rng, ranks, numels, "lockstep") for ranks, numels in shapes]
    cases.append(bucket_case(rng, 2, [*drawn(2), 0], "lockstep", torch.float64))
    cases.append(bucket_case(rng, 4, drawn(3), "lockstep", torch.bfloat16))
    # Rank 0's shards have 3, 2 and 3 elements, rank 1's have 2: an order by their sizes is not the same on both.
    cases.append(bucket_case(rng, 2, [5, 4, 5], "lockstep"))
    cases.append(bucket_case(rng, 2, [rng.randint(5, 20)] * 3, "processes"))
    return [bucket_case(rng, 4, [4096] * 4, "lockstep", board=True), *cases]


def after(case: Case, by: float, place: int = 1) -> list[Tensor]:
    """The rows after a step with the sum of all ranks' gradients, divided."""
    rows, _, rate, _ = case.args[0]
    parts = zip(*(args[place] for args in case.args), strict=True)
    return [row - rate * (torch.stack(part).sum(0) / by) for row, part in zip(rows, parts, strict=True)]


def buckets_again(case: Case) -> list[list[Tensor]]:
    """What the second call should give."""
    return [after(case, case.ranks, 3)] * case.ranks


def buckets_mistakes(case: Case) -> dict[str, list[Any]]:
    (rows, _, rate, _), ranks = case.args[0], case.ranks
    gradients = list(zip(*(args[1] for args in case.args), strict=True))
    good = after(case, ranks)
    stale = [
        [patched(ranks, row, only(ranks, rank, new)) for row, new in zip(rows, good, strict=True)]
        for rank in range(ranks)
    ]
    own = [
        patched(ranks, row, [row - rate * part for part in parts]) for row, parts in zip(rows, gradients, strict=True)
    ]
    return {
        "rows in which its own shards alone are new: hand the shards around after the update, and wait until they "
        "are here": stale,
        SUM: [after(case, 1)] * ranks,
        TWICE: [after(case, ranks**2)] * ranks,
        UNSHARED: [own] * ranks,
        "the rows as they began: does update() see the memory that you return?": [rows] * ranks,
        "gradients where parameters are wanted: what do you gather?": [
            [torch.stack(parts).sum(0) / ranks for parts in gradients]
        ]
        * ranks,
        "the rows with the last bucket as it began: does the loop end too early?": [[*good[:-1], rows[-1]]] * ranks,
        "the rows in another order: item i is what became of rows[i]": [good[::-1]] * ranks,
        "one row too few: the last bucket counts, too": [good[:-1]] * ranks,
        "handles: handle.wait() gives the row": [[Other("Handle")] * len(rows)] * ranks,
    }


def buckets_wanted(case: Case) -> Wanted:
    look = "print one row: is it read before its call has ended, and changed by anything but its own update?"
    return Wanted([after(case, case.ranks)] * case.ranks, lambda: buckets_mistakes(case), look)


def buckets_right(case: Case, seen: Observation) -> str | None:
    if not any(name == "update" for record in seen.records for name, _ in record.value["events"]):
        return "it never calls update, which alone knows how a gradient changes a shard"
    return part("first", right(buckets_wanted, tolerance))(case, seen)


@each_rank
def nothing_held(case: Case, rank: int, record: Record) -> str | None:
    """An update leaves alone what travels."""
    if not (held := record.value["held"]):
        return None
    said = f"rank {rank} calls update on a tensor of {held[0]}_async before that call's wait() has returned"
    return f"{said}: {'update first, then start the gather' if held[0] == 'all_gather' else 'wait first, then update'}"


@each_rank
def bucket_calls(case: Case, rank: int, record: Record) -> str | None:
    numels = [row.numel() for row in case.args[0][0]]
    halves = ("reduce_scatter", "all_gather")
    names = [name for name, _ in record.value["events"]]
    calls = record.calls[: len(names) - names.count("update")]
    if others := sorted({called for called, _ in calls} - set(halves)):
        return f"rank {rank} calls {', '.join(others)}, which nobody needs here"
    for name in halves:
        got = [numel for called, numel in calls if called == name]
        if sorted(got) != sorted(numels):
            said = f"rank {rank} calls {name} {plural(len(got), 'time')}, and {plural(len(numels), 'bucket')} are due"
            return f"{said}: one reduce_scatter and one all_gather for each"
    if names.count("update") != len(numels):
        said = f"rank {rank} calls update {plural(names.count('update'), 'time')}, and {len(numels)} are due"
        return f"{said}: once for each"
    shards = [chunk_sizes(numel, case.ranks)[rank] for numel in numels]
    if sorted(record.value["sizes"]) != sorted(shards):
        said = f"rank {rank} gives update tensors of {record.value['sizes']} elements, and its shards have {shards}"
        return f"{said}: a rank updates its own shard alone"
    return None


def overlapped_target(case: Case) -> int:
    """Updates take longer than the wire: before the first there is a reduction, after the last a gather, and nothing
    else stands still."""
    rows = case.args[0][0]
    half = LINK.ring_seconds("all_gather", rows[0].numel(), 4, case.ranks)
    return round(1e6 * (2 * half + len(rows) * UPDATE_SECONDS)) + 1


def stands_still(case: Case, seen: Observation) -> str:
    """Where the ranks wait for the wire, from when rank 0 issued its calls and began its updates."""
    at: dict[str, list[float]] = {"reduce_scatter": [], "update": [], "all_gather": []}
    for name, time in seen.records[0].value["events"]:
        at[name].append(time)
    ended = [begin + UPDATE_SECONDS for begin in at["update"]]
    for bucket, issued in enumerate(at["reduce_scatter"][1:], 1):
        if issued >= ended[bucket - 1] - 1e-9:
            said = f"bucket {bucket}'s reduce_scatter starts only after bucket {bucket - 1}'s update"
            return f"{said}: what keeps it from travelling meanwhile?"
    if at["all_gather"][0] >= ended[-1] - 1e-9:
        return "all gathers start after the last update: a bucket's can travel while the next one is updated"
    half = LINK.ring_seconds("all_gather", case.args[0][0][0].numel(), 4, case.ranks)
    if at["update"][0] > 1.5 * half:
        return "before the first update all reductions have ended: for which of them must it wait?"
    return "after an update the rank waits until its all_gather has ended: who needs that row before the end?"


EXERCISE = Exercise(
    "step_overlapped",
    bucket_cases,
    (
        Claim("no update touches what travels", nothing_held),
        Claim("every rank returns all rows, updated everywhere", buckets_right),
        Claim("the rows and gradients it is given stay as they were", untouched(0, 1)),
        Claim("one reduce_scatter, one update and one all_gather for each bucket", bucket_calls),
        Claim("a second call begins anew", begins_anew(buckets_again, tolerance)),
    ),
    scores=(
        Score(
            "microseconds on the virtual clock",
            microseconds,
            overlapped_target,
            stands_still,
        ),
    ),
    hints=(
        "reduce_scatter_async and all_gather_async return a handle at once; handle.wait() gives the result.",
        "Nothing keeps you from starting all reduce_scatters before you wait for the first.",
        "A bucket's all_gather can travel while the next bucket is updated: keep its handle, and wait at the very end.",
    ),
    run=run_step,
    text=TEXT,
    answer=(step_overlapped,),
    points=3,
)
