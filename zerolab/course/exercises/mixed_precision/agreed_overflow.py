"""The exercise of lesson 06 on overflow: one rank has it, all must know, and nobody may look too early."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import torch

from zerolab.collectives import Collectives, Link
from zerolab.course.judge.case import Case, Observation, Record, plural
from zerolab.course.judge.claims import Calls, call, each_rank, ring_bytes
from zerolab.course.judge.draw import signed
from zerolab.course.judge.exercise import Claim, Exercise, Score
from zerolab.course.judge.same import short
from zerolab.flat.layout import chunk_bounds, chunk_sizes
from zerolab.ranks import spend

TEXT = """
Agree

Gradients of several buckets, each divided by N already, are being added up over the ranks in fp16 while you are
called. `shards[i]` will hold this rank's shard of bucket i's mean, and `handles[i].wait()` returns when it does.
Before that it holds numbers of the step before. As always with `comm`, calls end in the order in which they were
issued, bucket 0's first. A shard may be empty.

Return `True`, on *every* rank, if *any* element of *any* rank's shards is inf, -inf or nan; otherwise `False`, on
every rank. Use one collective for all buckets together, an `all_reduce` of one number or an `all_gather` of one from
each rank. About four lines.

The check draws 1 to 4 ranks, empty shards, and inf, -inf or nan from any rank in any bucket, in one shard or in
several. Two gradients may be finite and their sum not: the shard then has an inf, and that is an overflow. And all
sums may be finite but as large as fp16 has them: what *you* add up must not overflow then.
"""


def agreed_overflow(comm, shards: list[torch.Tensor], handles: list) -> bool:
    """Whether the step must be skipped, the same on all ranks."""
    ### BEGIN SOLUTION
    for handle in handles:
        handle.wait()
    bad = any(not shard.isfinite().all() for shard in shards)
    return comm.all_reduce(torch.tensor([float(bad)])).item() > 0
    ### END SOLUTION


Tensor = torch.Tensor
Poison = tuple[int, int, int, float]
"""(rank, bucket, element, value): what that rank's gradient has there."""
LINK = Link(gbit_per_s=1, latency_us=20)
LATE_SECONDS = 1e-3
EMPTY = "Nobody's shard has an inf or nan: what do you make of a shard without elements?"
REVERSED = "It is the other way round: True means that there is an overflow"
LARGEST = 65_504.0
LARGE = 48_000.0
"""Two of them are more than fp16 holds, one is not."""


class Reductions:
    """Reductions under way. Calls of a rank end in order, so whoever waits for one has waited for those before it; only
    then are their results put where the caller looks for them."""

    def __init__(self, comm: Collectives, gradients: Sequence[Tensor], shards: Sequence[Tensor]) -> None:
        self.shards = shards
        # A reduction writes over its input.
        self.handles = [comm.reduce_scatter_async(gradient.clone()) for gradient in gradients]
        self.waited = 0

    def wait(self, index: int) -> Tensor:
        while self.waited <= index:
            self.shards[self.waited].copy_(self.handles[self.waited].wait())
            self.waited += 1
        return self.shards[index]


class Waiting:
    """The handle of one of them."""

    def __init__(self, reductions: Reductions, index: int) -> None:
        self._reductions, self._index = reductions, index

    def wait(self) -> Tensor:
        return self._reductions.wait(self._index)


def run_check(
    fn: Callable[..., Any], comm: Collectives, gradients: list[Tensor], late: bool, last_step: list[Tensor]
) -> Any:
    """Start a reduction of each gradient, show memory that still holds the shards of the step before, and ask."""
    if late:
        spend(LATE_SECONDS)
    shards = [old.clone() for old in last_step]
    reductions = Reductions(comm, gradients, shards)
    verdict = fn(comm, shards, [Waiting(reductions, index) for index in range(len(shards))])
    waited = reductions.waited
    for handle in reductions.handles:
        handle.wait()
    return {"verdict": verdict, "waited": waited}


def one_case(
    rng: Random,
    ranks: int,
    numels: Sequence[int],
    poisons: Sequence[Poison],
    said: str,
    world: str = "lockstep",
    large: bool = False,
    board: bool = False,
) -> Case:
    """Gradients as they travel, divided by N already. With `large`, their sums over the ranks are so large that an fp16
    sum of anything more, over elements or of one number of each rank, would overflow."""
    args: list[tuple[Any, ...]] = []
    for rank in range(ranks):
        gradients = [signed(rng, numel, torch.float16) for numel in numels]
        if large:
            gradients = [torch.full_like(gradient, LARGE / ranks if ranks > 1 else LARGEST) for gradient in gradients]
        for owner, bucket, element, value in poisons:
            if owner == rank:
                gradients[bucket][element] = value
        old = [signed(rng, chunk_sizes(numel, ranks)[rank], torch.float16) for numel in numels]
        args.append((gradients, rank == ranks - 1 and ranks > 1, old))
    what = "8 buckets of 256 elements" if board else f"buckets of {list(numels)} elements"
    link = LINK if world == "lockstep" else None
    return Case(args, world, f"on {plural(ranks, 'rank')}, {what}, {said}", link, board)


def place(rng: Random, ranks: int, numel: int, shard: int) -> int:
    """An element of a shard."""
    start, stop = chunk_bounds(numel, ranks)[shard]
    return rng.randrange(start, stop)


def poisoned(
    rng: Random, ranks: int, value: float, name: str, bucket: int = 1, world: str = "lockstep", board: bool = False
) -> Case:
    """One rank's gradient has a bad element in another rank's shard."""
    numels = [256] * 8 if board else [rng.randint(ranks, 9) for _ in range(3)]
    owner = rng.randrange(ranks)
    shard = (owner + 1) % ranks
    if board:
        owner, shard = 2, 3
    said = f"rank {owner} brings {name} to rank {shard}'s shard of bucket {bucket}"
    at = place(rng, ranks, numels[bucket], shard)
    return one_case(rng, ranks, numels, [(owner, bucket, at, value)], said, world, board=board)


ALL, ONE, FIRST = "all elements are inf", "one element is inf", "one element of bucket 0 is inf"
CLEAN = "nothing overflows"


def alone(rng: Random) -> list[Case]:
    """One rank overflows in less and less: what overlooks it overlooks it whatever the others say."""
    every: list[Poison] = [(0, 0, at, math.inf) for at in range(6)]
    one: list[Poison] = [(0, 0, rng.randrange(5), math.inf)]
    return [
        one_case(rng, 1, [rng.randint(2, 9) for _ in range(3)], [], CLEAN),
        one_case(rng, 1, [6], every, ALL),
        one_case(rng, 1, [8], one, ONE),
        one_case(rng, 1, [8, 5, 6], one, FIRST),
    ]


def cases(rng: Random) -> list[Case]:
    def numels(ranks: int, count: int = 3) -> list[int]:
        return [rng.randint(ranks, 9) for _ in range(count)]

    inf, nan = math.inf, math.nan
    twice = numels(3)
    both: list[Poison] = [(0, 0, place(rng, 3, twice[0], 1), inf), (0, 2, place(rng, 3, twice[2], 2), inf)]
    summed = numels(2)
    spot = rng.randrange(summed[0])
    sums: list[Poison] = [(rank, 0, spot, LARGE) for rank in range(2)]
    bare = [1, 2, 1]
    return [
        *alone(rng),
        poisoned(rng, 2, inf, "inf"),
        poisoned(rng, 4, inf, "inf", bucket=5, board=True),
        poisoned(rng, 2, nan, "nan"),
        poisoned(rng, 2, -inf, "-inf"),
        poisoned(rng, 3, inf, "inf", bucket=0),
        poisoned(rng, 4, nan, "nan", bucket=2),
        one_case(rng, 3, twice, both, "the shards of two ranks have an inf"),
        one_case(rng, 2, [4], [(0, 0, 0, inf), (0, 0, 3, -inf)], "one shard has an inf, the other a -inf"),
        one_case(rng, 2, [512], [(0, 0, at, inf) for at in range(256)], "256 elements of a shard are inf"),
        one_case(rng, 2, summed, sums, f"each rank brings a finite {LARGE:g}, and fp16 ends at {LARGEST:g}"),
        one_case(rng, 2, numels(2), [], CLEAN),
        one_case(rng, 1, [60, 70], [], "gradients are as large as fp16 has them, but all are finite", large=True),
        one_case(rng, 3, [60, 70], [], "gradients are large, but all are finite", large=True),
        one_case(rng, 4, bare, [(1, 1, 1, inf)], "rank 1's shard alone has inf, some shards are empty"),
        one_case(rng, 4, bare, [], "nothing overflows, some shards are empty"),
        poisoned(rng, 2, inf, "inf", world="processes"),
    ]


def overflows(case: Case) -> list[bool]:
    """Whether each rank's own shards have an inf or nan after the reduction."""
    means = [torch.stack(parts).sum(0) for parts in zip(*(args[0] for args in case.args), strict=True)]
    return [
        any(not mean.tensor_split(case.ranks)[rank].isfinite().all() for mean in means) for rank in range(case.ranks)
    ]


def agreed(case: Case, seen: Observation) -> str | None:
    own = overflows(case)
    want = any(own)
    got = [record.value["verdict"] for record in seen.records]
    if all(value is want for value in got):
        return None
    for rank, value in enumerate(got):
        if not isinstance(value, bool):
            return f"rank {rank} returned {short(value)}, and True or False is due"
    said = f"the ranks say {got if case.ranks > 1 else got[0]}, and {want} is due"
    if case.ranks > 1 and got == own:
        return f"{said}. Each knows of its own shards alone: they have to agree"
    if not want and all(got) and "large" not in case.about:
        empty = any(numel < case.ranks for numel in map(len, case.args[0][0]))
        return f"{said}. {EMPTY if empty else REVERSED}"
    if min(record.value["waited"] for record in seen.records) < len(case.args[0][0]) and want:
        return f"{said}. A shard holds the last step's numbers until its reduction has ended: what says that it has?"
    if len(set(got)) > 1:
        return f"{said}. They do not agree: who tells whom?"
    return f"{said}. {why(case, want, own)}"


OVERLOOKED = {
    ALL: "Is inf an overflow for you, and do you look at a shard after its wait(), not before?",
    ONE: "One bad element among good ones is enough",
    FIRST: "Look at every bucket, not at one",
}


def why(case: Case, want: bool, own: Sequence[bool]) -> str:
    """What a wrong verdict on all ranks has overlooked, by the case."""
    if not want and "large" in case.about:
        return "A sum or a norm of many large numbers overflows by itself, and is no overflow: inf and nan alone are"
    if not want:
        return EMPTY
    for about, look in OVERLOOKED.items():
        if case.about.endswith(about):
            return look
    if "256" in case.about:
        return "How far does what you send count?"
    if sum(own) > 1:
        return "Several ranks may overflow at once: what do their votes add up to?"
    if "nan" in case.about:
        return "A nan is an overflow, too, as inf minus inf: it is larger than nothing, and equal to nothing"
    if "-inf" in case.about:
        return "It may overflow downwards, too: -inf is not finite"
    return "One rank's overflow is enough to stop all: how do you read the vote?"


def vote(case: Case) -> list[Calls]:
    return [[("all_reduce", 1)], [("all_gather", case.ranks)]]


@each_rank
def one_vote(case: Case, rank: int, record: Record) -> str | None:
    """After the reductions, one collective with one number of each rank."""
    buckets = len(case.args[0][0])
    calls = record.calls[buckets:]
    if calls in vote(case):
        return None
    if not calls:
        return f"rank {rank} calls no collective, so it cannot know of the others"
    if len(calls) == buckets > 1:
        said = f"rank {rank} calls {plural(len(calls), 'collective')} for {plural(buckets, 'bucket')}"
        return f"{said}: one vote is enough for all of them"
    if len(calls) > 1:
        return f"rank {rank} calls {len(calls)} collectives: one is enough"
    return f"rank {rank} calls {call(calls[0])}: one number of each rank is enough"


def vote_bytes(case: Case, seen: Observation) -> int:
    """Bytes beside those of the reductions."""
    due = [("reduce_scatter", gradient.numel()) for gradient in case.args[0][0]]
    return max(record.nbytes - ring_bytes(due, 2, case.ranks, rank) for rank, record in enumerate(seen.records))


def vote_target(case: Case) -> int:
    """One number of at most eight bytes, which everybody else hears."""
    return 8 * (case.ranks - 1)


EXERCISE = Exercise(
    "agreed_overflow",
    cases,
    (
        Claim("all ranks say the same: whether any shard has an inf or nan after its reduction", agreed),
        Claim("one collective for all buckets, with one number of each rank", one_vote),
    ),
    scores=(Score("bytes a rank sends to agree", vote_bytes, vote_target, "what is more than one number?"),),
    hints=(
        "Three steps: wait, look at your own shards, vote.",
        "tensor.isfinite().all() is False for inf, -inf and nan alike, and True for a tensor without elements.",
        "A tensor with one number, 1 or 0, summed over the ranks: more than 0 means that somebody overflows.",
    ),
    run=run_check,
    text=TEXT,
    answer=(agreed_overflow,),
    points=2,
)
