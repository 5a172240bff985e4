"""The exercise of lesson 06 on overflow: one rank has it, all must know, and nobody may look too early."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import torch

from zerolab.collectives import Collectives, Link
from zerolab.course.judge.case import Case, Record, plural
from zerolab.course.judge.claims import call, each_rank, most_sent
from zerolab.course.judge.draw import signed
from zerolab.course.judge.exercise import Claim, Exercise, Score
from zerolab.course.judge.model import Gives
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

The check draws 1 to 5 ranks, empty shards, and inf, -inf or nan from any rank in any bucket, in one shard or in
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


MISTAKES = """
Each knows of its own shards alone: they have to agree
    comm.all_reduce(torch.tensor([float(bad)])).item() > 0 => bad
"""
Tensor = torch.Tensor
Poison = tuple[int, int, int, float]
"""(rank, bucket, element, value): what that rank's gradient has there."""
LINK = Link(gbit_per_s=1, latency_us=20)
LARGEST = 65_504.0
LARGE = 48_000.0
"""Two of them are more than fp16 holds, one is not."""
VOTE = "One rank's overflow is enough to stop all: how do you read the vote?"
VOTES = "Several ranks may overflow at once: what do their votes add up to?"
REVERSED = "It is the other way round: True means that there is an overflow"
EMPTY = "Nobody's shard has an inf or nan: what do you make of a shard without elements?"
FINITE = "A sum or a norm of many large numbers overflows by itself, and is no overflow: inf and nan alone are"
LOOK = "Is inf an overflow for you, and do you look at a shard after its wait(), not before?"
NAN = "A nan is an overflow, too, as inf minus inf: it is larger than nothing, and equal to nothing"


class Waiting:
    """A reduction under way. Calls of a rank end in order, so whoever waits for one has waited for those before it;
    only then are their results put where the caller looks for them."""

    def __init__(self, shards: Sequence[Tensor], running: list[Any], left: int) -> None:
        self.shards, self.running, self.left = shards, running, left

    def wait(self) -> Tensor:
        """Until no more than so many are left."""
        while len(self.running) > self.left:
            self.shards[-len(self.running)].copy_(self.running.pop(0).wait())
        return self.shards[-self.left - 1]


def run_check(
    fn: Callable[..., Any], comm: Collectives, gradients: list[Tensor], late: bool, last_step: list[Tensor], why: str
) -> Any:
    """Start a reduction of each gradient, show memory that still holds the shards of the step before, and ask."""
    if late:
        spend(1e-3)
    shards = [old.clone() for old in last_step]
    # A reduction writes over its input.
    running = [comm.reduce_scatter_async(gradient.clone()) for gradient in gradients]
    handles = [Waiting(shards, running, left) for left in reversed(range(len(shards)))]
    verdict = fn(comm, shards, handles)
    handles[-1].wait()
    return verdict


def one_case(
    rng: Random, ranks: int, numels: Sequence[int], said: str, why: str, poisons: Sequence[Poison] = (), **where: Any
) -> Case:
    """Gradients as they travel, divided by N already. Large ones have sums over the ranks with which any other sum in
    fp16 overflows, over elements or of one number of each rank. `why` says what a wrong verdict has overlooked."""
    args: list[tuple[Any, ...]] = []
    for rank in range(ranks):
        gradients = [signed(rng, numel, torch.float16) for numel in numels]
        if why is FINITE:
            gradients = [torch.full_like(gradient, LARGE / ranks if ranks > 1 else LARGEST) for gradient in gradients]
        for owner, bucket, element, value in poisons:
            if owner == rank:
                gradients[bucket][element] = value
        old = [signed(rng, chunk_sizes(numel, ranks)[rank], torch.float16) for numel in numels]
        args.append((gradients, rank == ranks - 1 and ranks > 1, old, why))
    about = f"on {plural(ranks, 'rank')}, buckets of {list(numels)} elements, {said}"
    return Case(args, about=about, **({"link": LINK} | where))


def cases(rng: Random) -> list[Case]:
    inf, nan = math.inf, math.nan

    def numels(ranks: int) -> list[int]:
        return [rng.randint(ranks, 9) for _ in range(3)]

    def one(ranks: int, numels: Sequence[int], said: str, why: str, *poisons: Poison) -> Case:
        return one_case(rng, ranks, numels, said, why, poisons)

    def place(ranks: int, numel: int, shard: int) -> int:
        """An element of a shard."""
        return rng.randrange(*chunk_bounds(numel, ranks)[shard])

    def poisoned(ranks: int, value: float, why: str = VOTE, bucket: int = 1, **where: Any) -> Case:
        """One rank's gradient has a bad element in another rank's shard."""
        sizes = [256] * 8 if where.get("board") else numels(ranks)
        owner = 2 if where.get("board") else rng.randrange(ranks)
        shard = (owner + 1) % ranks
        poison = (owner, bucket, place(ranks, sizes[bucket], shard), value)
        said = f"rank {owner} brings {value} to rank {shard}'s shard of bucket {bucket}"
        return one_case(rng, ranks, sizes, said, why, [poison], **where)

    twice, summed = numels(3), numels(2)
    both = [(0, bucket, place(3, twice[bucket], shard), inf) for bucket, shard in ((0, 1), (2, 2))]
    finite = [(rank, 0, place(2, summed[0], 1), LARGE) for rank in range(2)]
    return [
        # One rank overflows in less and less: what overlooks it overlooks it whatever the others say.
        one(1, numels(1), "nothing overflows", REVERSED),
        one(1, [6], "all elements are inf", LOOK, *[(0, 0, at, inf) for at in range(6)]),
        one(1, [8], "one element is inf", "One bad element among good ones is enough", (0, 0, 4, inf)),
        one(1, [8, 5, 6], "one element of bucket 0 is inf", "Look at every bucket, not at one", (0, 0, 3, inf)),
        poisoned(2, inf),
        poisoned(4, inf, bucket=5, board=True),
        poisoned(2, nan, NAN),
        poisoned(2, -inf, "It may overflow downwards, too: -inf is not finite"),
        poisoned(3, inf, bucket=0),
        poisoned(4, nan, NAN, bucket=2),
        poisoned(5, inf),
        one(3, twice, "the shards of two ranks have an inf", VOTES, *both),
        one(2, [4], "one shard has an inf, the other a -inf", VOTES, (0, 0, 0, inf), (0, 0, 3, -inf)),
        one(
            2,
            [512],
            "256 elements of a shard are inf",
            "How far does what you send count?",
            *[(0, 0, at, inf) for at in range(256)],
        ),
        one(2, summed, f"each rank brings a finite {LARGE:g}, and fp16 ends at {LARGEST:g}", VOTE, *finite),
        one(2, summed, "nothing overflows", REVERSED),
        one(1, [60, 70], "gradients are as large as fp16 has them, but all are finite", FINITE),
        one(3, [60, 70], "gradients are large, but all are finite", FINITE),
        one(4, [1, 2, 1], "rank 1's shard alone has inf, some shards are empty", VOTE, (1, 1, 1, inf)),
        one(4, [1, 2, 1], "nothing overflows, some shards are empty", EMPTY),
        poisoned(2, inf, world="processes", link=None),
    ]


@each_rank
def one_vote(case: Case, rank: int, record: Record) -> str | None:
    """After the reductions, one collective with one number of each rank."""
    buckets = len(case.args[0][0])
    calls = record.calls[buckets:]
    if calls in ([("all_reduce", 1)], [("all_gather", case.ranks)]):
        return None
    if not calls:
        return f"rank {rank} calls no collective, so it cannot know of the others"
    if len(calls) > 1:
        said = f"rank {rank} calls {plural(len(calls), 'collective')} for {plural(buckets, 'bucket')}"
        return f"{said}: one vote is enough for all of them"
    return f"rank {rank} calls {call(calls[0])}: one number of each rank is enough"


EXERCISE = Exercise(
    "agreed_overflow",
    cases,
    (
        Claim(
            "all ranks say the same: whether any shard has an inf or nan after its reduction",
            Gives(look=lambda case: case.args[0][-1], say=lambda args, got, want: f"says {got}, and {want} is due"),
        ),
        Claim("one collective for all buckets, with one number of each rank", one_vote),
    ),
    scores=(Score("bytes a rank sends", most_sent, None, "what is more than one number?", slack=16),),
    hints=(
        "Three steps: wait, look at your own shards, vote.",
        "tensor.isfinite().all() is False for inf, -inf and nan alike, and True for a tensor without elements.",
        "A tensor with one number, 1 or 0, summed over the ranks: more than 0 means that somebody overflows.",
    ),
    run=run_check,
    mistakes=MISTAKES,
    without=frozenset({"dtype"}),
    text=TEXT,
    answer=(agreed_overflow,),
    points=2,
)
