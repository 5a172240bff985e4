"""Exercise of lesson 04: several micro-batches, in two ways."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import torch

from zerolab.collectives import Collectives
from zerolab.course.exercises.zero_2.watch import Watched
from zerolab.course.judge.case import Case, Observation, plural
from zerolab.course.judge.claims import Calls, calls_are, most_held, never, part, untouched
from zerolab.course.judge.draw import about, fine, sizes
from zerolab.course.judge.exercise import Claim, Exercise, Score
from zerolab.course.judge.mistakes import Wanted, right
from zerolab.course.judge.same import by_dtype

TEXT = """
Configurable

`micro_batches` holds this rank's whole gradient (1-D) of each micro-batch, one or more. Return its shard of the mean
over all ranks *and* all micro-batches.

- With `each=True`, reduce every micro-batch, and add up shards. The scoreboard looks at the bytes held: beside what
  the collective itself takes, four shards fit.
- With `each=False`, add up whole gradients, and reduce once.

The gradients belong to the caller: do not write to them, not even for a while. Only `reduce_scatter` is called, as
often as `each` says. The check draws float32, float64 and bfloat16, and lengths that the ranks do not divide. About
nine lines.
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


def micro_case(
    rng: Random,
    ranks: int,
    numel: int,
    count: int,
    each: bool,
    world: str,
    board: bool = False,
    dtype: torch.dtype = torch.float32,
) -> Case:
    args: list[tuple[Any, ...]] = [([fine(rng, numel, dtype) for _ in range(count)], each) for _ in range(ranks)]
    what = f"{plural(count, 'micro-batch').replace('batchs', 'batches')} of {plural(numel, 'element')}, each={each}"
    what += f", {dtype}" if dtype is not torch.float32 else ""
    return Case(args, world, about(ranks, numel, what), board=board)


def micro_cases(rng: Random) -> list[Case]:
    cases = [micro_case(rng, 4, 1024, 6, True, "lockstep", board=True)]
    for index, (ranks, numel, world) in enumerate(sizes(rng)):
        cases.append(micro_case(rng, ranks, numel, rng.randint(2, 4), index % 2 == 0, world))
    rest = [(2, 5, 3), (3, 7, 2), (2, 6, 1)]
    cases += [micro_case(rng, ranks, numel, count, False, "lockstep") for ranks, numel, count in rest]
    others = [(dtype, each) for dtype in (torch.float64, torch.bfloat16) for each in (True, False)]
    return cases + [micro_case(rng, 2, 7, 3, each, "lockstep", dtype=dtype) for dtype, each in others]


def micro_wanted(case: Case) -> Wanted:
    ranks, count = case.ranks, len(case.args[0][0])
    dtype = case.args[0][0][0].dtype
    wholes = [torch.stack(args[0]).double().sum(0) for args in case.args]
    total = torch.stack(wholes).sum(0)

    def cut(whole: torch.Tensor) -> list[torch.Tensor]:
        return list(whole.to(dtype).tensor_split(ranks))

    last = torch.stack([args[0][-1] for args in case.args]).double().sum(0)
    mistakes = {
        "the sum over ranks and micro-batches: take the mean over both": cut(total),
        "the mean over the ranks alone: there are several micro-batches, too": cut(total / ranks),
        "the mean over the micro-batches alone: there are several ranks, too": cut(total / count),
        "the whole mean: a rank keeps its shard": [(total / ranks / count).to(dtype)] * ranks,
        "its shard of its own gradients: nothing was added to them": [
            cut(whole / count)[rank] for rank, whole in enumerate(wholes)
        ],
        "the last micro-batch alone: a new shard is added to the old, not put in its place": cut(last / ranks),
        "the last micro-batch alone, divided by their number: a new shard is added to the old": cut(
            last / ranks / count
        ),
    }
    return Wanted(cut(total / ranks / count), mistakes, "compute the mean by hand for two ranks and two micro-batches")


def micro_calls(case: Case, rank: int) -> Calls:
    gradients, each = case.args[0]
    return [("reduce_scatter", gradients[0].numel())] * (len(gradients) if each else 1)


def run_micro(fn: Callable[..., Any], comm: Collectives, gradients: list[torch.Tensor], each: bool) -> Any:
    """What it returns, and which gradients were written to, even if that was undone: torch counts writes, but for those
    through .data, so their numbers are looked at, too, before and after each collective."""
    given = [(gradient, gradient._version, gradient.tolist()) for gradient in gradients]
    written: set[int] = set()

    def look() -> None:
        for index, (gradient, version, numbers) in enumerate(given):
            if gradient._version != version or gradient.tolist() != numbers:
                written.add(index)

    shard = fn(Watched(comm, look), gradients, each)
    look()
    return {"shard": shard, "written": sorted(written)}


def micro_untouched(case: Case, seen: Observation) -> str | None:
    return untouched(0)(case, seen) or never_written(case, seen)


never_written = never(
    "written",
    "rank {rank} wrote to the gradients {it}, even if their numbers are as before: they belong to the caller, and "
    "somebody may read them meanwhile",
)


def micro_held(case: Case) -> int:
    """The shard added up so far, the last one and the next one, another in passing, and the ring's two chunks."""
    return 6 * case.args[0][0][0].nbytes // case.ranks + 64


EXERCISE = Exercise(
    "accumulate",
    micro_cases,
    (
        Claim(
            "every rank returns its shard of the mean over ranks and micro-batches",
            part("shard", right(micro_wanted, by_dtype)),
            ("A mean of means: over the ranks in reduce_scatter, over the micro-batches by one division at the end.",),
        ),
        Claim(
            "each=True reduces every micro-batch, each=False once",
            calls_are(micro_calls, "what is added up before the wire, and what behind it?"),
            (
                "each=True: reduce first, and add up shards. each=False: add up a copy of whole gradients, and reduce "
                "that.",
            ),
        ),
        Claim(
            "the gradients stay as they were",
            micro_untouched,
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
            micro_held,
            "reduced each time, nothing but shards need be kept; add each to one running sum, in place",
        ),
    ),
    hints=("The first micro-batch's shard can be the running sum; add_ the next ones to it.",),
    run=run_micro,
    memory=True,
    text=TEXT,
    answer=(accumulate,),
    points=2,
)
