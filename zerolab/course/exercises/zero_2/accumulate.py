"""Exercise of lesson 04: several micro-batches, in two ways."""

from __future__ import annotations

from random import Random
from typing import Any

import torch

from zerolab.course.exercises.heard import heard
from zerolab.course.judge.case import Case
from zerolab.course.judge.claims import calls_are, most_held, never
from zerolab.course.judge.draw import fine, sizes
from zerolab.course.judge.exercise import Claim, Exercise, Score
from zerolab.course.judge.model import Gives, does
from zerolab.course.judge.same import by_dtype

TEXT = """
Configurable

`micro_batches` holds this rank's whole gradient (1-D) of each micro-batch, one or more. Return its shard of the mean
over all ranks *and* all micro-batches.

- With `each=True`, reduce every micro-batch, and add up shards. The scoreboard looks at the bytes held: beside what
  the collective itself takes, four shards fit.
- With `each=False`, add up whole gradients, and reduce once.

The gradients belong to the caller: do not write to them, not even for a while. Only `reduce_scatter` is called, as
often as `each` says. What travels, and the shard that you return, have the gradients' dtype: the check draws float32,
float64 and bfloat16, and lengths that the ranks do not divide. About nine lines.
"""


def accumulate(comm, micro_batches: list[torch.Tensor], each: bool) -> torch.Tensor:
    """This rank's shard of the mean gradient over ranks and micro-batches."""
    ### BEGIN SOLUTION
    first, *others = micro_batches
    if each:
        total = comm.reduce_scatter(first, average=True)
        for gradient in others:
            total.add_(comm.reduce_scatter(gradient, average=True))
    else:
        whole = first.clone()
        for gradient in others:
            whole.add_(gradient)
        total = comm.reduce_scatter(whole, average=True)
    return total.div_(len(micro_batches))
    ### END SOLUTION


MISTAKES = r"""
the sum over ranks and micro-batches: take the mean over both
    first, average=True => first
    gradient, average=True => gradient
    whole, average=True => whole
    total.div_(len(micro_batches)) => total
the mean over the ranks alone: there are several micro-batches, too
    total.div_(len(micro_batches)) => total
the mean over the micro-batches alone: there are several ranks, too
    first, average=True => first
    gradient, average=True => gradient
    whole, average=True => whole
its shard of its own gradients: nothing was added to them
    def accumulate(comm, micro_batches, each):
        return torch.stack(micro_batches).mean(0).tensor_split(comm.size)[comm.rank]
the last micro-batch alone: a new shard is added to the old, not put in its place
    total.add_(comm.reduce_scatter(gradient, average=True)) => total = comm.reduce_scatter(gradient, average=True)
    len(micro_batches) => 1 if each else len(micro_batches)
"""


def micro_cases(rng: Random) -> list[Case]:
    def case(ranks, numel, count, each, dtype=torch.float32, **where):
        return Case([([fine(rng, numel, dtype) for _ in range(count)], each) for _ in range(ranks)], **where)

    drawn = enumerate(sizes(rng))
    return [
        case(4, 1024, 6, True, board=True),
        *(case(ranks, numel, rng.randint(2, 4), at % 2 == 0, world=world) for at, (ranks, numel, world) in drawn),
        *(case(*size, False) for size in ((2, 5, 3), (2, 5, 3), (3, 7, 2), (2, 6, 1), (1, 5, 3))),
        *(case(2, 7, 3, each, dtype) for dtype in (torch.float64, torch.bfloat16) for each in (True, False)),
    ]


def run_micro(fn: Any, comm: Any, micro_batches: list[torch.Tensor], each: bool) -> Any:
    """What it returns, and which gradients were written to, even if that was undone: torch counts writes, but for those
    through .data, so their numbers are looked at, too, before and after each collective."""
    given = [(gradient, gradient._version, gradient.tolist()) for gradient in micro_batches]
    written: set[int] = set()

    def look(*call: Any) -> None:
        for at, (gradient, version, numbers) in enumerate(given):
            if gradient._version != version or gradient.tolist() != numbers:
                written.add(at)

    with heard(comm, look):
        shard = fn(comm, micro_batches, each)
    look()
    return {"shard": shard, "written": sorted(written)}


EXERCISE: Exercise = Exercise(
    "accumulate",
    micro_cases,
    (
        Claim(
            "every rank returns its shard of the mean over ranks and micro-batches",
            Gives("shard", "compute the mean by hand for two ranks and two micro-batches", tolerance=by_dtype),
            ("A mean of means: over the ranks in reduce_scatter, over the micro-batches by one division at the end.",),
        ),
        Claim(
            "each=True reduces every micro-batch, each=False once",
            calls_are(
                lambda case, rank: does(EXERCISE, case).records[rank].calls,
                "what is added up before the wire, and what behind it?",
            ),
            (
                "each=True: reduce first, and add up shards. each=False: add up a copy of whole gradients, and reduce "
                "that.",
            ),
        ),
        Claim(
            "the gradients are never written to",
            never(
                "written",
                "rank {rank} wrote to the gradients {it}, even if only for a while: they belong to the caller, and "
                "somebody may read them meanwhile",
            ),
            (
                "add_, div_ and += write to the tensor on their left. Whose is it, also where there is a single "
                "micro-batch?",
            ),
        ),
    ),
    scores=(
        Score(
            "bytes held at the worst moment, each=True",
            most_held,
            None,
            "reduced each time, nothing but shards need be kept: is there a list of them, or a whole copy, as a "
            "division makes one?",
            slack=2 * 1024 + 64,
        ),
    ),
    hints=("The first micro-batch's shard can be the running sum; add_ the next ones to it.",),
    run=run_micro,
    memory=True,
    mistakes=MISTAKES,
    text=TEXT,
    answer=(accumulate,),
    points=2,
)
