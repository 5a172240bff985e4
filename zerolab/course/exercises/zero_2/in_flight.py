"""The exercise of lesson 04 on reductions under way: a bound, a clock, and nothing whole that is not needed."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import torch

from zerolab.collectives import Link
from zerolab.course.exercises.heard import heard
from zerolab.course.judge.case import Case
from zerolab.course.judge.claims import calls_are, microseconds, most_held
from zerolab.course.judge.draw import fine
from zerolab.course.judge.exercise import Claim, Exercise, Score
from zerolab.course.judge.model import Gives, does
from zerolab.course.judge.same import by_dtype
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
all shards, of the `limit` whole gradients under way, and of the one that just came. What travels, and the shards that
you return, have the gradients' dtype: the check draws float32, float64 and bfloat16, and limits from 1 to more than
there are gradients. About seven lines.
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


MISTAKES = r"""
shards of the sum over the ranks: take the mean
    , average=True =>
whole gradients: a rank keeps its shard of each
    comm.reduce_scatter_async => comm.all_reduce_async
the shards of its own gradients: nothing was added to them
    def in_flight(comm, gradients, limit):
        return [gradient.tensor_split(comm.size)[comm.rank] for gradient in gradients]
too few shards: those that were still under way at the end are lost
    return shards + [handle.wait() for handle in under_way] => return shards
the shards in another order than the gradients came in: which handle is the oldest?
    under_way.pop(0) => under_way.pop()
Wait for the oldest before you start one more
    if len(under_way) == limit: => if False:
That is one more than `limit`: wait for the oldest before you start one more
    len(under_way) == limit => len(under_way) > limit
A handle need not be waited for at once
    under_way.append => shards.append
    average=True)) => average=True).wait())
With reduce_scatter nothing is under way: reduce_scatter_async returns a handle at once
    under_way.append(comm.reduce_scatter_async => shards.append(comm.reduce_scatter
Take the next one first, so that calls travel while it is computed
    under_way.append(comm.reduce_scatter_async(gradient, average=True)) => pass
    in gradients: => in gradients:\n        under_way.append(comm.reduce_scatter_async(gradient, average=True))
arrived() blocks, returns the result, and does not end a call
    under_way.pop(0).wait() => under_way.pop(0).arrived()
arrived() blocks, returns the result, and does not end a call: each needs a wait()
    handle.wait() => handle.arrived()
"""
COMPUTE_SECONDS = 200e-6


def flight_cases(rng: Random) -> list[Case]:
    def case(ranks, numels, limit, dtype=torch.float32, world="lockstep", board=False):
        args = [([fine(rng, numel, dtype) for numel in numels], limit) for _ in range(ranks)]
        link = Link(gbit_per_s=0.25, latency_us=10) if world == "lockstep" else None
        return Case(args, world, link=link, board=board)

    def numels(count):
        return [rng.randint(1, 30) for _ in range(count)]

    shapes = [(2, 4, 2), (3, 5, 1), (4, 6, 3), (2, 9, 6), (2, 1, 3), (1, 3, 2), (3, 4, 9)]
    same = numels(3)
    return [
        case(4, [4096, 64, 64] * 3, 2, board=True),
        *(case(ranks, numels(count), limit) for ranks, count, limit in shapes),
        case(2, [*numels(2), 0, *numels(1)], 2),
        *(case(2, same, 2, dtype) for dtype in (torch.float32, torch.float32, torch.float64, torch.bfloat16)),
        case(2, numels(3), 2, world="processes"),
    ]


def run_flight(fn: Any, comm: Any, gradients: list[torch.Tensor], limit: int) -> Any:
    """Hand the gradients out one by one; log what is taken, started and first waited for, in the words of the text."""
    log: list[str] = []
    ended: list[int] = []

    def note(what: str, place: int, tensors: list[torch.Tensor]) -> None:
        if what in ("start", "wait", "arrived") and (did := f"{what} {place}") not in log:
            log.append(did)

    def backward() -> Iterator[torch.Tensor]:
        for at, gradient in enumerate(gradients):
            spend(COMPUTE_SECONDS)
            log.append(f"take {at}")
            # It belongs to whoever takes it.
            yield gradient.clone()
        ended.append(len(log))

    with heard(comm, note):
        shards = fn(comm, backward(), limit)
    # When no more come, any order will do. Who asks for what has arrived, and waits, too, does no harm.
    end = ended[0] if ended else len(log)
    waited = {did.replace("wait", "arrived") for did in log if did.startswith("wait")}
    return {"shards": shards, "order": [did for did in [*log[:end], *sorted(log[end:])] if did not in waited]}


def order_said(args: Any, got: list[str], want: list[str]) -> str:
    at = next((at for at, due in enumerate(want) if got[at : at + 1] != [due]), len(want))
    did, due = ([*those, "return"][at] for those in (got, want))
    return f"does {did} after {', '.join(want[max(0, at - 3) : at]) or 'nothing'}, where {due} is due"


EXERCISE: Exercise = Exercise(
    "in_flight",
    flight_cases,
    (
        Claim(
            "every rank returns its shard of each mean gradient, in order",
            Gives(
                "shards",
                "one for each gradient, in the order in which they come; and what belongs to a call must be left "
                "alone until its wait()",
                tolerance=by_dtype,
            ),
            (
                "comm.reduce_scatter_async(gradient, average=True) returns a handle at once; handle.wait() gives the "
                "shard.",
                "When no more gradients come, some handles are left: wait for them, in order.",
            ),
        ),
        Claim(
            "as many as allowed are under way, and never more",
            Gives(
                "order",
                "Start a call for each as it comes, even if it is empty; wait when one finds no room, for the oldest",
                say=order_said,
            ),
            ("Keep handles in a queue. If it is full when a gradient comes, the oldest leaves it first.",),
        ),
        Claim(
            "one reduce_scatter for each gradient",
            calls_are(
                lambda case, rank: does(EXERCISE, case).records[rank].calls, "start one for each gradient, as it comes"
            ),
        ),
    ),
    run=run_flight,
    scores=(
        Score(
            "microseconds on the virtual clock",
            microseconds,
            None,
            "somebody waits where nothing forces it to: wait when the next gradient is here and finds no room",
            slack=1,
        ),
        Score(
            "bytes held at the worst moment",
            most_held,
            None,
            "which list, or which variable, still knows a whole gradient whose reduction has ended?",
        ),
    ),
    hints=("Take a gradient; if the queue is full, wait for the oldest, and only then start the new one.",),
    memory=True,
    mistakes=MISTAKES,
    text=TEXT,
    answer=(in_flight,),
    points=3,
)
