"""The exercise of lesson 04 on the norm that no rank can compute alone."""

from __future__ import annotations

import math
from random import Random
from typing import Any

import torch

from zerolab.course.judge.case import Case, Observation
from zerolab.course.judge.claims import most_sent, number_of_calls
from zerolab.course.judge.draw import fine
from zerolab.course.judge.exercise import Claim, Exercise, Score
from zerolab.course.judge.model import Gives
from zerolab.course.judge.same import by_dtype, short

TEXT = r"""
One norm

`shards` are this rank's parts of several gradients, 1-D. Of `shards[i]` the first `used[i]` elements are gradients;
what follows is padding with anything in it, and must not count in the norm; it may be scaled or not. A rank's shards
may be empty.

The p-norm of all gradients of all ranks is $(\sum |g|^p)^{1/p}$, and for `norm_type=torch.inf` the largest $|g|$.
`norm_type` is 1 or more, not always a whole number. `limit` may be 0. Compute in float64, where every sum that the
check draws fits. If the norm is above `limit`, multiply all gradients by `limit / norm`, in place, in the tensors
that you were given, by the same factor on all ranks; else leave them as they are. Return the norm, a float, the same
on every rank to the last bit.

If the norm is inf or nan because one rank has such a gradient, every rank returns that, and leaves the gradients
alone: the step will be skipped. The scoreboard allows one collective that sends eight bytes to each other rank.

The check draws gradients in float32, float64 and bfloat16, very large and very small ones, and zeros; shards without
elements; and an inf or nan on any rank, in any place, or one of each (then the norm is nan). About thirteen lines.
"""


def clip_(comm, shards: list[torch.Tensor], used: list[int], limit: float, norm_type: float) -> float:
    """Scale all ranks' gradients down to a norm of `limit`; returns the norm they had."""
    ### BEGIN SOLUTION
    gradients = [shard[:numel] for shard, numel in zip(shards, used, strict=True)]
    norms = [torch.zeros((), dtype=torch.float64)]
    for gradient in gradients:
        if len(gradient):
            norms.append(torch.linalg.vector_norm(gradient, norm_type, dtype=torch.float64))
    # The norm of parts' norms is the norm of all.
    own = torch.linalg.vector_norm(torch.stack(norms), norm_type)
    norm = torch.linalg.vector_norm(comm.all_gather(own.view(1)), norm_type)
    if limit < norm < torch.inf:
        for gradient in gradients:
            gradient.mul_(limit / norm)
    return norm.item()
    ### END SOLUTION


MISTAKES = r"""
That is the norm of its own shards: the ranks have to exchange something
    comm.all_gather(own.view(1)) => own.view(1)
Its padding counted: only the first `used` elements of a shard are gradients
    shard[:numel] => shard
You added norms; what adds up is the sum of |g|^p, before the root
    torch.linalg.vector_norm(comm.all_gather(own.view(1)), norm_type) => comm.all_gather(own.view(1)).sum()
That is the 2-norm, whatever norm_type is
    gradients = [ => norm_type = 2.0\n    gradients = [
The root is missing: the ranks' sums of |g|^p make the norm to the power of p
    norm.item() => (norm**norm_type).item()
That is the limit, and the norm once all is scaled: return the norm that there was before
    norm.item() => min(norm.item(), limit)
They were scaled by the rank's own norm: one factor for all ranks keeps the direction
    limit / norm => limit / own
A norm below the limit is no reason to scale up
    limit < norm < torch.inf => norm < torch.inf
With a norm that is not finite, leave them alone: the step will be skipped
    limit < norm < torch.inf => not norm <= limit
They are as they were: change the tensors that you were given in place (mul_), on every rank
    gradient.mul_(limit / norm) => gradient * (limit / norm)
"""


def run_clip(
    fn: Any, comm: Any, shards: list[torch.Tensor], used: list[int], limit: float, norm_type: float
) -> dict[str, Any]:
    """The norm it returns, and the gradients in the tensors that it was given, over the largest that was there."""
    gradients = [shard[:numel] for shard, numel in zip(shards, used, strict=True)]
    largest = max((x for x in torch.cat(gradients).abs().tolist() if 0 < x < math.inf), default=1.0)
    norm = fn(comm, shards, used, limit, norm_type)
    return {"norm": norm, "gradients": [gradient / largest for gradient in gradients]}


def clip_cases(rng: Random) -> list[Case]:
    inf, nan = math.inf, math.nan

    def used(ranks, count=2):
        return [[rng.randint(1, 6) for _ in range(count)] for _ in range(ranks)]

    def case(used, norm_type=2.0, share=None, scale=1.0, dtype=torch.float32, poison=(), **where):
        """`used[rank]` are the elements of each shard that count; padding follows the first, and more. The limit is
        `share` of the norm, and 1 for gradients of zeros. Each of `poison` is a number, and its rank, shard and
        element."""
        each = [[scale * fine(rng, numel, dtype) for numel in numels] for numels in used]
        norm = torch.cat([shard.double() for shards in each for shard in shards]).norm(norm_type).item()
        limit = (rng.uniform(0.1, 0.4) if share is None else share) * (norm or 1.0)
        for number, rank, index, at in poison:
            each[rank][index][at] = number
        padding = [0 if where else rng.randint(0 if at else 1, 3) for at in range(len(used[0]))]
        args = []
        for numels, shards in zip(used, each, strict=True):
            pads = [torch.full((more,), rng.choice((7777.0, nan)), dtype=dtype) for more in padding]
            padded = [torch.cat(pair) for pair in zip(shards, pads, strict=True)]
            args.append((padded, list(numels), float(f"{limit:.3g}"), norm_type))
        return Case(args, **where)

    def struck(sizes, norm_type, *numbers):
        """Some of these numbers on any rank, in any place."""
        places = [(r, i, at) for r, numels in enumerate(sizes) for i, n in enumerate(numels) for at in range(n)]
        struck = rng.sample(places, len(numbers))
        return case(sizes, norm_type, poison=[(x, *place) for x, place in zip(numbers, struck, strict=True)])

    # Ranks whose shards are empty.
    bare = [*used(3), [0, 0]]
    two = [[2, 2]] * 2
    # Of three ranks' sums, 1, 2**53 and 1 times a power of 2, that of all is another one if rank 1's comes last.
    unit = 2.0 ** rng.randint(-20, 20)
    sums = [torch.tensor([x * unit], dtype=torch.float64) for x in (1, rng.choice((-1, 1)) * 2**53, 1)]
    return [
        case([[256] * 4] * 4, share=0.25, board=True),
        case(used(2)),
        case(used(2), share=rng.uniform(1.5, 3.0)),
        case(used(3), 1.0),
        case(used(3), inf, dtype=torch.bfloat16),
        case(used(2), 1.5, dtype=torch.bfloat16),
        case(used(3), 2.5, dtype=torch.float64),
        case([[12, 12]] * 4, 120.0),
        case(used(1)),
        case(used(2), share=0.0),
        case(used(1), inf, 1.0, scale=0.0),
        case(used(2), 1.0, 0.0, scale=0.0),
        # Near so small a norm, adding a little to it changes it; and the square of so large a one is no float32.
        case(used(2), scale=1e-5),
        case(used(2), scale=1e25),
        case(bare),
        case(bare, inf),
        struck(used(2), 2.0, inf),
        struck(used(3, 3), 2.0, nan),
        struck(used(3), inf, nan),
        struck(used(2), inf, -inf, nan),
        # Whoever takes a maximum from the first on, or from the last, meets a number before and after it.
        case([[2, 3, 2]] * 3, inf, poison=[(nan, 1, 1, 1)]),
        # One of each, on two ranks, either way round.
        case(two, inf, poison=[(inf, 0, 0, 1), (nan, 1, 1, 0)]),
        case(two, inf, poison=[(nan, 0, 1, 1), (inf, 1, 0, 0)]),
        # The limit lies between the largest norm of one rank and that of all.
        case(used(3), 1.0, 0.95),
        # A shard with elements comes after an empty one.
        case([[0, rng.randint(1, 4), 0, rng.randint(1, 4)] for _ in range(3)]),
        Case([([each], [1], 2**50 * unit, 1.0) for each in sums]),
        case(used(2), world="processes"),
    ]


def norms_are_one(case: Case, seen: Observation) -> str | None:
    norms = [record.value["norm"] for record in seen.records]
    rank = next((rank for rank, norm in enumerate(norms) if norm != norms[0] and not math.isnan(norm)), None)
    if rank is None:
        return None
    said = f"rank {rank} returned {norms[rank]!r}, and rank 0 {norms[0]!r}"
    return f"{said}. A sum depends on the order: add the ranks' numbers in one order on all ranks"


EXERCISE = Exercise(
    "clip_",
    clip_cases,
    (
        Claim(
            "every rank returns the norm over all ranks' shards, padding left out",
            Gives(
                "norm",
                "Put all shards end to end by hand, in float64, and compare what each rank contributes",
                say=lambda args, got, want: f"returned {short(got)}, and the norm is {want}",
            ),
            (
                "Each rank has one number to tell: the sum of |g|^p over its used elements, or the largest |g| for "
                "p = inf. comm.all_gather of a tensor with one float64 gives every rank all of them.",
                "Shards may be empty, so begin a maximum at 0; and torch's max keeps a nan that Python's may drop.",
            ),
        ),
        Claim("all ranks return the same norm to the last bit", norms_are_one),
        Claim(
            "all shards are scaled in place by one factor, and never up",
            Gives(
                "gradients",
                "limit / norm is one number on all ranks",
                tolerance=by_dtype,
                say=lambda *_: "ends with gradients that are not those times limit / norm",
            ),
            (
                "The factor is limit / norm where limit < norm < inf. In all other cases nothing is multiplied: "
                "think of a norm of 0, of nan, of inf.",
                "shard.mul_(factor) writes to the tensor that the caller knows; shard = shard * factor makes another.",
            ),
        ),
    ),
    scores=(
        Score("calls of collectives", number_of_calls, None, "put what the ranks exchange into one tensor"),
        Score(
            "bytes a rank sends", most_sent, None, "one number of each rank is enough, whatever the number of shards"
        ),
    ),
    run=run_clip,
    hints=("comm.all_gather of a tensor with one float64 gives every rank all numbers, and all conclude alike.",),
    mistakes=MISTAKES,
    without=frozenset({"inputs"}),
    text=TEXT,
    answer=(clip_,),
    points=2,
)
