"""The exercise of lesson 04 on reductions under way: a bound, a clock, and nothing whole that is not needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from random import Random
from typing import Any

import torch

from zerolab.collectives import Collectives, Handle, Link
from zerolab.course.exercises.zero_2.models import shards_by_rank
from zerolab.course.judge.case import Case, Record, plural
from zerolab.course.judge.claims import calls_are, each_rank, microseconds, most_held, part
from zerolab.course.judge.draw import fine
from zerolab.course.judge.exercise import Claim, Exercise, Score
from zerolab.course.judge.mistakes import Wanted, right
from zerolab.course.judge.same import by_dtype
from zerolab.errors import InputError
from zerolab.ranks import spend

TEXT = """
Under way

`gradients` is an iterator. Like backward, it takes time for each gradient, and then hands it to you: 1-D, whole, this
rank's own, and perhaps without any element. From then on the gradient is yours, and nobody else keeps it. Return this
rank's shard of the mean of each, in order.

Start a `comm.reduce_scatter_async` for each gradient as it comes, so that it travels while the next one is computed.
But never have more than `limit` under way, counted from the start of a call to its `handle.wait()`, which every call
needs; and do not wait while there is room. So, when a gradient comes and `limit` calls are under way, the oldest must
end first:

    limit 2    take 0, start 0    take 1, start 1    take 2, wait 0, start 2    take 3, wait 1, start 3 ...

A virtual clock prices each gradient and each message. The scoreboard allows the time of this order, and the bytes of
all shards, of the `limit` whole gradients under way, and of the one that just came. The check draws gradients in
float32, float64 and bfloat16, and limits from 1 to more than there are gradients. About seven lines.
"""


def in_flight(comm, gradients, limit: int) -> list[torch.Tensor]:
    """This rank's shard of the mean of each gradient, in the order in which they come."""
    ### BEGIN SOLUTION
    under_way, shards = [], []
    for gradient in gradients:
        if len(under_way) == limit:
            shards.append(under_way.pop(0).wait())
        under_way.append(comm.reduce_scatter_async(gradient, average=True))
    return shards + [handle.wait() for handle in under_way]
    ### END SOLUTION


Tensor = torch.Tensor
LINK = Link(gbit_per_s=0.25, latency_us=10)
COMPUTE_SECONDS = 200e-6


def flight_case(
    rng: Random,
    ranks: int,
    numels: Sequence[int],
    limit: int,
    world: str,
    board: bool = False,
    dtype: torch.dtype = torch.float32,
) -> Case:
    args: list[tuple[Any, ...]] = [([fine(rng, numel, dtype) for numel in numels], limit) for _ in range(ranks)]
    what = "4,096, 64 and 64 elements, three times" if board else f"{list(numels)} elements"
    said = f"on {plural(ranks, 'rank')}, gradients of {what}, at most {limit} under way"
    said += f", {dtype}" if dtype is not torch.float32 else ""
    return Case(args, world, said, LINK if world == "lockstep" else None, board)


def flight_cases(rng: Random) -> list[Case]:
    def numels(count: int) -> list[int]:
        return [rng.randint(1, 30) for _ in range(count)]

    shapes = [(2, 4, 2), (3, 5, 1), (4, 6, 3), (2, 9, 6), (2, 1, 3), (1, 3, 2), (3, 4, 9)]
    cases = [flight_case(rng, ranks, numels(count), limit, "lockstep") for ranks, count, limit in shapes]
    cases.append(flight_case(rng, 2, [*numels(2), 0, *numels(1)], 2, "lockstep"))
    cases += [flight_case(rng, 2, numels(3), 2, "lockstep", dtype=dtype) for dtype in (torch.float64, torch.bfloat16)]
    cases.append(flight_case(rng, 2, numels(3), 2, "processes"))
    return [flight_case(rng, 4, [4096, 64, 64] * 3, 2, "lockstep", board=True), *cases]


def as_they_come(gradients: Sequence[Tensor], watch: Watch) -> Iterator[Tensor]:
    """What backward brings: each takes time, and belongs to whoever takes it."""
    for gradient in gradients:
        spend(COMPUTE_SECONDS)
        watch.taken += 1
        yield gradient.clone()
    watch.more = False


class Counted:
    """A handle that says when it is waited for."""

    def __init__(self, handle: Handle, watch: Watch) -> None:
        self.handle, self.watch = handle, watch
        self.number = watch.start()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.handle, name)

    def wait(self) -> Any:
        self.watch.end(self.number)
        return self.handle.wait()

    def arrived(self) -> Any:
        self.watch.asked = True
        return self.handle.arrived()


class Watch:
    """The rank's collectives, with a count of the calls that nobody has waited for yet. `early` are the calls under
    way when somebody first waited though there was room, and more to come; `newer` is the first call whose wait came
    before an older one's, and `late` how many gradients had been taken when the first of them was started too late.
    `asked` says whether somebody called arrived()."""

    def __init__(self, comm: Collectives, limit: int) -> None:
        self.comm, self.limit = comm, limit
        self.under_way: set[int] = set()
        self.started = self.most = 0
        self.more = True
        self.asked = False
        self.taken = 0
        self.early: int | None = None
        self.idle: int | None = None
        self.newer: tuple[int, int] | None = None
        self.late: int | None = None

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.comm, name)
        return partial(self.counted, found) if name.endswith("_async") else found

    def counted(self, call: Callable[..., Handle], *args: Any, **kwargs: Any) -> Counted:
        return Counted(call(*args, **kwargs), self)

    def start(self) -> int:
        self.started += 1
        if self.taken > self.started and self.late is None:
            self.late = self.taken
        self.under_way.add(self.started)
        self.most = max(self.most, len(self.under_way))
        return self.started

    def end(self, number: int) -> None:
        if number in self.under_way and self.more and len(self.under_way) < self.limit and self.early is None:
            self.early = len(self.under_way)
        if number in self.under_way and self.more and self.taken == self.started and self.idle is None:
            self.idle = len(self.under_way)
        oldest = min(self.under_way, default=number)
        if number in self.under_way and self.more and number > oldest and self.newer is None:
            self.newer = number, oldest
        self.under_way.discard(number)


def run_flight(fn: Callable[..., Any], comm: Collectives, gradients: list[Tensor], limit: int) -> Any:
    """Hand the gradients out one by one, and count what is under way."""
    watch = Watch(comm, limit)
    try:
        shards = fn(watch, as_they_come(gradients, watch), limit)
    except RuntimeError as error:
        if watch.asked and "Boolean value of Tensor" in str(error):
            raise InputError(f"arrived() {ARRIVED}, so it says neither yes nor no: wait() for the oldest") from error
        raise
    order = {"early": watch.early, "idle": watch.idle, "newer": watch.newer, "late": watch.late, "asked": watch.asked}
    return {"shards": shards, "most": watch.most, "left": len(watch.under_way), **order}


ARRIVED = "blocks, returns the result, and does not end a call"


def flight_wanted(case: Case) -> Wanted:
    dtype = case.args[0][0][0].dtype
    each = zip(*(args[0] for args in case.args), strict=True)
    total = [torch.stack(parts).double().sum(0).to(dtype) for parts in each]
    mean = [whole / case.ranks for whole in total]
    good, limit = shards_by_rank(case, mean), case.args[0][1]
    count = len(mean)
    mistakes: dict[str, Sequence[Any]] = {
        "shards of the sum over the ranks: take the mean": shards_by_rank(case, total),
        "whole gradients: a rank keeps its shard of each": [mean] * case.ranks,
        "no shard at all": [()] * case.ranks,
        "the shards of its own gradients: nothing was added to them": [
            shards_by_rank(case, args[0])[rank] for rank, args in enumerate(case.args)
        ],
    }
    if not all(len(whole) for whole in mean):
        mistakes["the shard of a gradient without elements too early: it takes a call, and its turn, as all do"] = [
            ahead(shards, [len(whole) for whole in mean], limit) for shards in good
        ]
        mistakes["no shards of gradients without elements: these have an empty one"] = [
            [mine for whole, mine in zip(mean, shards, strict=True) if len(whole)] for shards in good
        ]
    under_way = min(limit, count)
    if under_way > 1:
        turned = "the shards of the last calls with the newest first: at the end, too, the oldest comes first"
        mistakes[turned] = [[*shards[:-under_way], *reversed(shards[-under_way:])] for shards in good]
    if count > limit:
        mistakes["too few shards: those that were still under way at the end are lost"] = [
            shards[: count - limit] for shards in good
        ]
        mistakes["the shards in another order than the gradients came in: which handle is the oldest?"] = [
            [*shards[limit - 1 : count - 1], *shards[: limit - 1], shards[-1]] for shards in good
        ]
    return Wanted(good, mistakes, "what belongs to a call must be left alone until its wait()")


def ahead(shards: Sequence[Tensor], numels: Sequence[int], limit: int) -> list[Tensor]:
    """The shards in order, but for those of empty gradients, which nobody waits for."""
    ended: list[Tensor] = []
    waiting: list[Tensor] = []
    for shard, numel in zip(shards, numels, strict=True):
        if numel and len(waiting) == limit:
            ended.append(waiting.pop(0))
        (waiting if numel else ended).append(shard)
    return ended + waiting


@each_rank
def under_limit(case: Case, rank: int, record: Record) -> str | None:
    limit, count, saw = case.args[0][1], len(case.args[0][0]), record.value
    allowed, asked = min(limit, count), f"; arrived() {ARRIVED}" if saw["asked"] else ""
    if saw["most"] > limit:
        look = f"arrived() {ARRIVED}" if asked else "wait for the oldest before you start one more"
        return f"rank {rank} had {saw['most']} under way at once, and {limit} are allowed: {look}"
    started, empty = len(record.calls), sum(not len(gradient) for gradient in case.args[rank][0])
    if empty and started == count - empty:
        said = f"rank {rank} started {started} calls for {count} gradients"
        return f"{said}: one without elements needs a call, too, since it counts as under way"
    if saw["most"] < allowed:
        said = "none at all" if not saw["most"] else f"never more than {saw['most']}"
        return f"rank {rank} had {said} under way, and {allowed} may be: a handle need not be waited for at once"
    if left := saw["left"]:
        return f"rank {rank} returned while {left} of its calls had met no wait(): each needs one{asked}"
    if newer := saw["newer"]:
        said = f"rank {rank} waited for call {newer[0]} while call {newer[1]} was under way"
        return f"{said}: which handle is the oldest?"
    if late := saw["late"]:
        said = f"rank {rank} had taken {late} gradients when it started a call for an earlier one"
        return f"{said}: start each as it comes, before the next is taken"
    if early := saw["early"]:
        said = f"rank {rank} waited with {early} under way, and more gradients to come"
        return f"{said}: do not wait while there is room"
    if idle := saw["idle"]:
        said = f"rank {rank} waited with {idle} under way and no gradient at hand"
        return f"{said}: take the next one first, so that calls travel while it is computed"
    return None


def flight_target(case: Case) -> int:
    """A gradient starts when it is here and the one `limit` before it has ended; the wire takes one at a time."""
    gradients, limit = case.args[0]
    now, ended = 0.0, [0.0]
    for index, gradient in enumerate(gradients):
        now += COMPUTE_SECONDS
        if index >= limit:
            now = max(now, ended[index - limit + 1])
        ended.append(max(now, ended[-1]) + LINK.ring_seconds("reduce_scatter", gradient.numel(), 4, case.ranks))
    return round(1e6 * ended[-1]) + 1


def flight_held(case: Case) -> int:
    """All shards, the whole gradients under way and the one that comes, the ring's two chunks."""
    gradients, limit = case.args[0]
    sizes = [gradient.nbytes for gradient in gradients]
    whole = max(sum(sizes[at : at + limit + 1]) for at in range(len(sizes)))
    return sum(sizes) // case.ranks + whole + 2 * max(sizes) // case.ranks


EXERCISE = Exercise(
    "in_flight",
    flight_cases,
    (
        Claim(
            "every rank returns its shard of each mean gradient, in order",
            part("shards", right(flight_wanted, by_dtype)),
            (
                "comm.reduce_scatter_async(gradient, average=True) returns a handle at once; handle.wait() gives the "
                "shard.",
                "When no more gradients come, some handles are left: wait for them, in order.",
            ),
        ),
        Claim(
            "as many as allowed are under way, and never more",
            under_limit,
            ("Keep handles in a queue. If it is full when a gradient comes, the oldest leaves it first.",),
        ),
        Claim(
            "one reduce_scatter for each gradient",
            calls_are(
                lambda case, rank: [("reduce_scatter", gradient.numel()) for gradient in case.args[0][0]],
                "start one for each gradient, as it comes",
            ),
        ),
    ),
    run=run_flight,
    scores=(
        Score(
            "microseconds on the virtual clock",
            microseconds,
            flight_target,
            "somebody waits where nothing forces it to: wait when the next gradient is here and finds no room",
        ),
        Score(
            "bytes held at the worst moment",
            most_held,
            flight_held,
            "which list, or which variable, still knows a whole gradient whose reduction has ended?",
        ),
    ),
    hints=("Take a gradient; if the queue is full, wait for the oldest, and only then start the new one.",),
    memory=True,
    text=TEXT,
    answer=(in_flight,),
    points=3,
)
