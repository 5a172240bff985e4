"""The exercise of lesson 06 on overflow: one rank has it, all must know, and nobody may look too early."""

from __future__ import annotations

import math
from random import Random

import torch

from zerolab.course.judge.case import Case, Record, plural
from zerolab.course.judge.claims import call, each_rank, most_sent
from zerolab.course.judge.draw import signed
from zerolab.course.judge.exercise import Claim, Exercise, Score
from zerolab.course.judge.model import Gives
from zerolab.flat.layout import chunk_sizes

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


MISTAKES = r"""
Each knows of its own shards alone: they have to agree
    comm.all_reduce(torch.tensor([float(bad)])).item() > 0 => bad
Is inf an overflow for you, and do you look at a shard after its wait(), not before?
    bad = any(not shard.isfinite().all() for shard in shards) => pass
    for handle => bad = any(not shard.isfinite().all() for shard in shards)\n    for handle
A nan is an overflow, too, as inf minus inf: it is larger than nothing, and equal to nothing
    not shard.isfinite().all() => shard.isinf().any()
Several ranks may overflow at once: what do their votes add up to?
    .item() > 0 => .item() == 1
One rank's overflow is enough to stop all: how do you read the vote?
    .item() > 0 => .item() == comm.size
It is the other way round: True means that there is an overflow
    .item() > 0 => .item() == 0
A sum of many large numbers overflows by itself, and is no overflow: inf and nan alone are
    not shard.isfinite().all() => not shard.sum().isfinite()
"""
LARGEST = 65_504.0
LARGE = 48_000.0
"""Two of them are more than fp16 holds, one is not."""


class Waiting:
    """A reduction under way. Calls of a rank end in order, so whoever waits for one has waited for those before it;
    only then are their results put where the caller looks for them."""

    def __init__(self, shards, running, left):
        self.shards, self.running, self.left = shards, running, left

    def wait(self):
        """Until no more than so many are left."""
        while len(self.running) > self.left:
            self.shards[-len(self.running)].copy_(self.running.pop(0).wait())
        return self.shards[-self.left - 1]


def run_check(fn, comm, gradients, last_step):
    """Start a reduction of each gradient, show memory that still holds the shards of the step before, and ask."""
    shards = [old.clone() for old in last_step]
    # A reduction writes over its input.
    running = [comm.reduce_scatter_async(gradient.clone()) for gradient in gradients]
    handles = [Waiting(shards, running, left) for left in reversed(range(len(shards)))]
    verdict = fn(comm, shards, handles)
    handles[-1].wait()
    return verdict


def cases(rng: Random) -> list[Case]:
    """Gradients as they travel, divided by N already."""
    inf, nan = math.inf, math.nan

    def one(ranks, numels, said, *poisons, **where):
        """Poison is (rank, bucket, element, value): what that rank's gradient has there."""
        gradients = [[signed(rng, numel, torch.float16) for numel in numels] for _ in range(ranks)]
        for owner, bucket, element, value in poisons:
            gradients[owner][bucket][element] = value
        return case(gradients, numels, said, **where)

    def large(ranks, each):
        """Any sum but that over the ranks overflows in fp16, over elements or of one number of each rank."""
        gradients = [[torch.full((numel,), each / ranks, dtype=torch.float16) for numel in (60, 70)]] * ranks
        return case(gradients, [60, 70], f"gradients add up to {each:g} everywhere, but all are finite")

    def case(gradients, numels, said, **where):
        ranks = len(gradients)
        sizes = [chunk_sizes(numel, ranks) for numel in numels]
        old = [[signed(rng, each[rank], torch.float16) for each in sizes] for rank in range(ranks)]
        about = f"on {plural(ranks, 'rank')}, buckets of {numels} elements, {said}"
        return Case([*zip(gradients, old, strict=True)], about=about, **where)

    def three(ranks):
        return [rng.randint(ranks, 9) for _ in range(3)]

    def poisoned(ranks, value, bucket=1, **where):
        owner, sizes = rng.randrange(ranks), three(ranks)
        poison = (owner, bucket, rng.randrange(sizes[bucket]), value)
        return one(ranks, sizes, f"rank {owner} brings {value} to bucket {bucket}", poison, **where)

    finite = [(rank, 0, 0, LARGE) for rank in range(2)]
    return [
        # One rank overflows in less and less: what overlooks it overlooks it whatever the others say.
        one(1, three(1), "nothing overflows"),
        one(1, [6], "all elements are inf", *[(0, 0, at, inf) for at in range(6)]),
        one(1, [8], "one element is inf", (0, 0, 4, inf)),
        one(1, [8, 5, 6], "one element of bucket 0 is inf", (0, 0, 3, inf)),
        poisoned(2, inf),
        one(4, [256] * 8, "rank 2 brings inf to bucket 5", (2, 5, rng.randrange(256), inf), board=True),
        poisoned(2, nan),
        poisoned(2, -inf),
        poisoned(3, inf, bucket=0),
        poisoned(5, nan, bucket=2),
        one(3, three(3), "the shards of two ranks have an inf", (0, 0, 0, inf), (0, 2, -1, inf)),
        one(2, [4], "one shard has an inf, the other a -inf", (0, 0, 0, inf), (0, 0, 3, -inf)),
        one(2, [512], "256 elements of a shard are inf", *[(0, 0, at, inf) for at in range(256)]),
        one(2, three(2), f"each rank brings a finite {LARGE:g}, and fp16 ends at {LARGEST:g}", *finite),
        one(2, three(2), "nothing overflows"),
        large(1, LARGEST),
        large(3, LARGE),
        one(4, [1, 2, 1], "rank 1's shard alone has inf, some shards are empty", (1, 1, 1, inf)),
        one(4, [1, 2, 1], "nothing overflows, some shards are empty"),
        poisoned(2, inf, world="processes"),
    ]


@each_rank
def one_vote(case: Case, rank: int, record: Record) -> str | None:
    """After the reductions, one collective with one number of each rank."""
    votes = record.calls[len(case.args[0][0]) :]
    if votes in ([("all_reduce", 1)], [("all_gather", case.ranks)]):
        return None
    said = ", ".join(map(call, votes)) or "no collective"
    return f"rank {rank} calls {said}: one vote is enough for all buckets, with one number of each rank"


EXERCISE = Exercise(
    "agreed_overflow",
    cases,
    (
        Claim(
            "all ranks say the same: whether any shard has an inf or nan after its reduction",
            Gives(say=lambda args, got, want: f"says {got}, and {want} is due"),
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
