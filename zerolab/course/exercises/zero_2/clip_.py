"""The exercise of lesson 04 on the norm that no rank can compute alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import torch

from zerolab.collectives import Collectives
from zerolab.course.judge.case import Case, Observation, Record, plural
from zerolab.course.judge.claims import each_rank, most_sent, number_of_calls
from zerolab.course.judge.draw import fine
from zerolab.course.judge.exercise import Claim, Exercise, Score
from zerolab.course.judge.mistakes import NEARLY, named
from zerolab.course.judge.same import alike, by_dtype, short

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


Tensor = torch.Tensor
POISON = 7777.0
HUGE = 1e25
"""Its square is no float32."""
SMALL = 1e-5
"""Near it, adding a little to a norm changes it."""


def run_clip(fn: Callable[..., Any], comm: Collectives, shards: list[Tensor], *others: Any) -> Any:
    """The norm it returns, the tensors that it was given, and the places of those that it put others in."""
    given = list(shards)
    norm = fn(comm, shards, *others)
    swapped = [index for index, shard in enumerate(given) if index >= len(shards) or shards[index] is not shard]
    return {"norm": norm, "shards": given, "swapped": swapped}


def clip_case(
    rng: Random,
    ranks: int,
    used: Sequence[Sequence[int]],
    norm_type: float,
    share: float | None,
    world: str = "lockstep",
    poison: Sequence[float] = (),
    scale: float = 1.0,
    dtype: torch.dtype = torch.float32,
    board: bool = False,
    place: Sequence[tuple[int, int, int]] = (),
) -> Case:
    """`used[rank]` are the elements of each shard that count; padding follows some. The limit is `share` of the norm,
    and 1 for gradients of zeros; without a share it lies between the largest norm of one rank and that of all. Each
    `poison` (NaN or inf) takes the place of one element, on any rank, in any place, or in that `place`."""
    each = [[scale * fine(rng, numel, dtype) for numel in numels] for numels in used]
    norm = norm_of(each, norm_type)
    own = max(norm_of([shards], norm_type) for shards in each)
    limit = (own + norm) / 2 if share is None else share * (norm or 1.0)
    places = [
        (rank, index, at) for rank, numels in enumerate(used) for index, n in enumerate(numels) for at in range(n)
    ]
    struck = list(place) or rng.sample(places, len(poison))
    for value, (rank, index, at) in zip(poison, struck, strict=True):
        each[rank][index][at] = value
    padding = [0 if board else rng.randint(0, 3) for _ in used[0]]
    args: list[tuple[Any, ...]] = []
    for numels, shards in zip(used, each, strict=True):
        pads = [torch.full((more,), rng.choice((POISON, math.nan)), dtype=dtype) for more in padding]
        padded = [torch.cat(pair) for pair in zip(shards, pads, strict=True)]
        args.append((padded, list(numels), limit, norm_type))
    size = "4 shards of 256 elements each" if board else f"used elements {[list(numels) for numels in used]}"
    above = "above" if norm > limit else "below"
    said = f"the norm is {above} the limit" if scale else f"all gradients are 0, the limit is {limit:g}"
    if poison:
        marks = [f"rank {rank} has one {value}" for value, (rank, *_) in zip(poison, struck, strict=True)]
        said = ", ".join(marks)
    said += f", gradients near {scale:g}" if scale not in (0.0, 1.0) else ""
    said += f", {dtype}" if dtype is not torch.float32 else ""
    return Case(args, world, f"on {plural(ranks, 'rank')}, {size}, norm_type {norm_type:g}, {said}", board=board)


def clip_cases(rng: Random) -> list[Case]:
    def used(ranks: int, count: int = 2) -> list[list[int]]:
        return [[rng.randint(1, 6) for _ in range(count)] for _ in range(ranks)]

    def share() -> float:
        return rng.uniform(0.1, 0.4)

    many = [[12, 12]] * 4
    # Ranks whose shards are empty.
    bare = [*used(3), [0, 0]]
    inf, nan = math.inf, math.nan
    return [
        clip_case(rng, 4, [[256] * 4] * 4, 2.0, 0.25, board=True),
        clip_case(rng, 2, used(2), 2.0, share()),
        clip_case(rng, 2, used(2), 2.0, rng.uniform(1.5, 3.0)),
        clip_case(rng, 3, used(3), 1.0, share()),
        clip_case(rng, 3, used(3), inf, share(), dtype=torch.bfloat16),
        clip_case(rng, 3, used(3), 3.0, share()),
        clip_case(rng, 2, used(2), 1.5, share(), dtype=torch.bfloat16),
        clip_case(rng, 3, used(3), 2.5, share(), dtype=torch.float64),
        clip_case(rng, 4, many, 120.0, share()),
        clip_case(rng, 1, used(1), 2.0, share()),
        clip_case(rng, 2, used(2), 2.0, 0.0),
        clip_case(rng, 2, used(2), 2.0, rng.choice((0.0, 1.0)), scale=0.0),
        clip_case(rng, 1, used(1), inf, 1.0, scale=0.0),
        clip_case(rng, 2, used(2), 1.0, 0.0, scale=0.0),
        clip_case(rng, 2, used(2), 2.0, share(), scale=SMALL),
        clip_case(rng, 2, used(2), 2.0, share(), scale=HUGE),
        clip_case(rng, 4, bare, 2.0, share()),
        clip_case(rng, 4, bare, inf, share()),
        clip_case(rng, 2, used(2), 2.0, share(), poison=[inf]),
        clip_case(rng, 3, used(3, 3), 2.0, share(), poison=[nan]),
        clip_case(rng, 2, used(2, 3), inf, share(), poison=[nan]),
        clip_case(rng, 3, used(3), inf, share(), poison=[nan]),
        clip_case(rng, 2, used(2), inf, share(), poison=[-inf, nan]),
        # Whoever takes a maximum from the first on, or from the last, meets a number before and after it.
        clip_case(rng, 3, [[2, 3, 2]] * 3, inf, share(), poison=[nan], place=[(1, 1, 1)]),
        # One of each, on two ranks, either way round.
        clip_case(rng, 2, [[2, 2]] * 2, inf, share(), poison=[inf, nan], place=[(0, 0, 1), (1, 1, 0)]),
        clip_case(rng, 2, [[2, 2]] * 2, inf, share(), poison=[nan, inf], place=[(0, 1, 1), (1, 0, 0)]),
        # No rank's own norm is above the limit, and that of all is; a shard with elements comes after an empty one.
        clip_case(rng, 3, used(3), rng.choice((1.0, 2.0)), None),
        clip_case(rng, 3, [[0, rng.randint(1, 4), 0, rng.randint(1, 4)] for _ in range(3)], 2.0, share()),
        order_case(rng),
        clip_case(rng, 2, used(2), 2.0, share(), world="processes"),
    ]


def order_case(rng: Random) -> Case:
    """Ranks whose sums are 1, 2**53 and 1, or as much times a power of 2: the sum of all is another one in float64 if
    rank 1's comes last."""
    unit = 2.0 ** rng.randint(-20, 20)
    sign = rng.choice((-1.0, 1.0))
    args: list[tuple[Any, ...]] = []
    for number in (unit, sign * 2**53 * unit, unit):
        args.append(([torch.tensor([number], dtype=torch.float64)], [1], 2**50 * unit, 1.0))
    return Case(args, about=f"on 3 ranks, one float64 each, that of rank 1 {2**53:,} times the others', norm_type 1")


def norm_of(each: Sequence[Sequence[Tensor]], norm_type: float) -> float:
    """The norm of all shards of all ranks, end to end."""
    whole = torch.cat([shard.double() for shards in each for shard in shards])
    return torch.linalg.vector_norm(whole, norm_type).item() if whole.numel() else 0.0


def counted(args: tuple[Any, ...]) -> list[Tensor]:
    """A rank's shards without their padding."""
    shards, used, *_ = args
    return [shard[:numel] for shard, numel in zip(shards, used, strict=True)]


def same(value: object, want: float) -> bool:
    return isinstance(value, float) and (alike(value, want, NEARLY) or (math.isnan(value) and math.isnan(want)))


def norm_right(case: Case, seen: Observation) -> str | None:
    """Every rank returns the norm over all ranks, as a float, and to the last bit the same one."""
    return norm_is_near(case, seen) or norms_are_one(case, seen)


@each_rank
def norm_is_near(case: Case, rank: int, record: Record) -> str | None:
    norm_type, each = case.args[0][3], [counted(args) for args in case.args]
    got, want = record.value["norm"], norm_of(each, norm_type)
    if same(got, want):
        return None
    if not isinstance(got, float):
        return f"rank {rank} returned {short(got)}, and a float is due"
    said, finely = (f"rank {rank} returned {got:{digits}}, and the norm is {want:{digits}}" for digits in ("g", ".12g"))
    single = record.sent and all(nbytes == 4 for _, nbytes in record.sent)
    if single and math.isfinite(want) and (math.isinf(got) or math.isclose(got, want, rel_tol=1e-3)):
        return f"{finely}. That is not float64, and neither is what travels: compute and gather in float64"
    if math.isclose(got, want, rel_tol=1e-3):
        return f"{finely}. That is not float64: convert the gradients before you take powers and sums"
    if math.isnan(want) and math.isinf(got):
        return f"{said}. Say which of the two it is, inf or nan: the caller may tell them apart"
    if math.isnan(want):
        return f"{said}. Python's max() and min() drop a nan that does not come first, so look for it yourself"
    if math.isinf(got) and math.isfinite(want):
        return f"{said}. Squares of large float32 numbers are no float32: convert before you take powers"
    says = named(mistaken_norms(case, each, rank, norm_type), lambda mistake: same(got, mistake))
    return f"{said}. {says or 'Put all shards end to end by hand, and compare what each rank contributes'}"


def norms_are_one(case: Case, seen: Observation) -> str | None:
    norms = [record.value["norm"] for record in seen.records]
    rank = next((rank for rank, norm in enumerate(norms) if norm != norms[0] and not math.isnan(norm)), None)
    if rank is None:
        return None
    said = f"rank {rank} returned {norms[rank]!r}, and rank 0 {norms[0]!r}"
    return f"{said}. A sum depends on the order: add the ranks' numbers in one order on all ranks"


def mistaken_norms(case: Case, each: Sequence[Sequence[Tensor]], rank: int, norm_type: float) -> dict[str, float]:
    """The norms that mistakes give, by what to say of them."""
    norms = [norm_of([shards], norm_type) for shards in each]
    limit = case.args[0][2]
    after = {"That is the limit, and the norm once all is scaled: return the norm that there was before": limit}
    mistakes = after if norm_of(each, norm_type) > limit else {}
    mistakes |= {
        "That is the norm of its own shards: the ranks have to exchange something": norms[rank],
        "Its padding counted: only the first `used` elements of a shard are gradients": norm_of(
            [args[0] for args in case.args], norm_type
        ),
        "You added norms; what adds up is the sum of |g|^p, before the root": sum(norms),
        "That is the 2-norm, whatever norm_type is": norm_of(each, 2.0),
    }
    signed = torch.cat([shard.double() for shards in each for shard in shards])
    if len(signed) and norm_type in (1.0, math.inf):
        cancelled = signed.sum() if norm_type == 1.0 else signed.max()
        mistakes["The signs count there: the norm is of |g|"] = float(cancelled)
    if not math.isinf(norm_type):
        whole = int(norm_type)
        mistakes["That is the largest |g|: large is not yet inf"] = norm_of(each, math.inf)
        mistakes[f"That is the {whole}-norm: norm_type need not be a whole number"] = norm_of(each, whole)
        power = norm_of(each, norm_type) ** norm_type
        mistakes["The root is missing: the ranks' sums of |g|^p make the norm to the power of p"] = power
        mistakes["That is a mean over the ranks, and a norm is a sum over them"] = (power / case.ranks) ** (
            1 / norm_type
        )
    return mistakes


@each_rank
def scaled(case: Case, rank: int, record: Record) -> str | None:
    """All ranks' shards were scaled in place, by one factor, down or not at all. Padding may be scaled or not."""
    _, _, limit, norm_type = case.args[0]
    norm = norm_of([counted(args) for args in case.args], norm_type)
    factor = limit / norm if math.isfinite(norm) and norm > limit else 1.0
    before, after = torch.cat(counted(case.args[rank])), used_after(record)
    if after.dtype != before.dtype:
        return f"the gradients of rank {rank} became {after.dtype}: scale them where they are"
    if not before.numel() or close(after, before * factor):
        return None
    found, said = ratio(before, after), f"the gradients of rank {rank}"
    if not math.isfinite(norm):
        return f"{said} have changed; with a norm that is not finite, leave them alone: the step will be skipped"
    if factor == 1.0 and not before.any():
        return f"{said} were 0 and are not: a norm of 0 is above no limit, and limit / norm is no number"
    if factor == 1.0:
        return f"{said} were scaled by {found}; a norm below the limit is no reason to scale up"
    if swapped := record.value["swapped"]:
        where = ", ".join(f"shards[{index}]" for index in swapped)
        return f"{said} are as they were: {where} became another tensor, and who holds the old one sees no change"
    alone = norm_of([counted(case.args[rank])], norm_type)
    if close(after, before):
        said = f"{said} are as they were"
        if limit == 0.0:
            return f"{said}, and 0 is a limit like any other: what is limit / norm?"
        if alone <= limit:
            look = "compare the norm of all with it, on every rank"
            return f"{said}: its own norm, {alone:g}, is below the limit of {limit:g}; {look}"
        return f"{said}: change the shards in place (mul_), a new tensor stays with you"
    said = f"{said} were scaled"
    if close(after, before * (limit / alone)):
        return f"{said} by their own norm: one factor for all ranks keeps the direction"
    if close(after, before * factor * factor):
        return f"{said} twice over: once with limit / norm is enough"
    if close(after, before * (limit / (norm + 1e-6))):
        return f"{said} by {found}, as if the norm were larger by 1e-6: divide by the norm alone"
    return f"{said} by {found}, and limit / norm is {factor:.7g}"


def used_after(record: Record) -> Tensor:
    return torch.cat(counted((record.value["shards"], record.after[1])))


def close(got: Tensor, want: Tensor) -> bool:
    return torch.allclose(got, want, rtol=by_dtype(want.dtype), atol=0.0, equal_nan=True)


def ratio(before: Tensor, after: Tensor) -> str:
    """By what the gradients were scaled, where that is one number."""
    found = (after / before).nan_to_num()
    low, high = found.min().item(), found.max().item()
    return f"{low:.7g}" if math.isclose(low, high, rel_tol=1e-6) else f"{low:.7g} to {high:.7g}"


EXERCISE = Exercise(
    "clip_",
    clip_cases,
    (
        Claim(
            "every rank returns the norm over all ranks' shards, padding left out",
            norm_right,
            (
                "Each rank has one number to tell: the sum of |g|^p over its used elements, or the largest |g| for "
                "p = inf. comm.all_gather of a tensor with one float64 gives every rank all of them.",
                "Shards may be empty, so begin a maximum at 0; and torch's max keeps a nan that Python's may drop.",
            ),
        ),
        Claim(
            "all shards are scaled in place by one factor, and never up",
            scaled,
            (
                "The factor is limit / norm where limit < norm < inf. In all other cases nothing is multiplied: "
                "think of a norm of 0, of nan, of inf.",
                "shard.mul_(factor) writes to the tensor that the caller knows; shard = shard * factor makes another.",
            ),
        ),
    ),
    scores=(
        Score("calls of collectives", number_of_calls, lambda case: 1, "put what the ranks exchange into one tensor"),
        Score(
            "bytes a rank sends",
            most_sent,
            lambda case: 8 * (case.ranks - 1),
            "one number of each rank is enough, whatever the number of shards",
        ),
    ),
    run=run_clip,
    hints=("comm.all_gather of a tensor with one float64 gives every rank all numbers, and all conclude alike.",),
    text=TEXT,
    answer=(clip_,),
    points=2,
)
