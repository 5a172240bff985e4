"""The optimizer step: over what one rank owns, run by run, and back to where parameters are stored.

An elementwise optimizer computes each element's update from that element's own gradient and state, so a rank that holds
a slice can update it alone, with the same bits as the whole would get.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from zerolab.collectives.call import phase
from zerolab.collectives.contract import Collectives
from zerolab.flat.views import address, numbers, values_here
from zerolab.zero.bucket import Bucket, DeviceTier

Tensor = torch.Tensor


@dataclass(frozen=True)
class StepResult:
    """What a step did. `norm` is the gradients' norm before clipping, or None if clipping is off."""

    norm: float | None = None
    skipped: bool = False
    loss_scale: float = 1.0


@torch.no_grad()
def gradient_norm(comm: Collectives, buckets: list[Bucket], norm_type: float = 2.0) -> float:
    """The p-norm of the gradients of all buckets over all ranks; NaN where they have no values."""
    own = _partial(comm, buckets, norm_type)
    with phase("norm"):
        partials = numbers(comm.all_gather(own), instead=[math.nan] * comm.size)
    if math.isinf(norm_type):
        # max() would drop a NaN that is not its first argument.
        return math.nan if any(map(math.isnan, partials)) else max(partials)
    return float(sum(partials) ** (1.0 / norm_type))


def clip_factor(norm: float | None, max_norm: float | None) -> float:
    """What brings gradients of this norm down to `max_norm`, as torch.nn.utils.clip_grad_norm_ does. NaN stays NaN."""
    return 1.0 if norm is None or max_norm is None else min(max_norm / (norm + 1e-6), 1.0)


def measure(
    comm: Collectives, buckets: list[Bucket], clip_norm: float | None, norm_type: float, scale: float | None = None
) -> tuple[StepResult, float]:
    """Whether to step, which all ranks see alike, and the factor that unscales and clips the gradients."""
    if clip_norm is None and scale is None:
        return StepResult(), 1.0
    scale = 1.0 if scale is None else scale
    # Without clipping the largest gradient is enough to see an overflow.
    norm = gradient_norm(comm, buckets, float("inf") if clip_norm is None else norm_type) / scale
    clipped = None if clip_norm is None else norm
    # Gradients without values are taken to be finite, and to be clipped.
    if not norm < float("inf") and values_here():
        return StepResult(clipped, True, scale), 0.0
    return StepResult(clipped, False, scale), clip_factor(clipped, clip_norm) / scale


def _partial(comm: Collectives, buckets: list[Bucket], norm_type: float) -> Tensor:
    """This rank's maximum, or its sum of |g|^p, in double precision from piece to piece; [1] on the rank's device."""
    norms, holders = [], []
    for bucket in buckets:
        shard, (start, _) = bucket.reduced_shard(), bucket.layout.shard(bucket.comm.rank)
        for piece in bucket.layout.pieces(bucket.comm.rank):
            part = shard[piece.start - start : piece.stop - start]
            norms.append(part.abs() if part.is_complex() else part)
            holders.append(bucket.holders.get(piece.slot.name, 1))
    if not norms:
        return torch.zeros(1, dtype=torch.float64, device=comm.device)
    # 16-bit sums would overflow where the gradients do not.
    wide = torch.float64 if any(norm.dtype == torch.float64 for norm in norms) else torch.float32
    each = torch.stack(torch._foreach_norm(norms, norm_type, dtype=wide)).double()
    if math.isinf(norm_type):
        return each.max().view(1).to(comm.device)
    each = each.pow(norm_type)
    if max(holders) > 1:
        each = torch.stack([own / count for own, count in zip(each, holders, strict=True)])
    return each.sum().view(1).to(comm.device)


Factory = Callable[..., torch.optim.Optimizer]


@dataclass(eq=False)
class ShardSegment:
    """What torch's optimizer updates as one tensor: the elements `[start, stop)` of what this rank owns of a bucket.

    group   the optimizer's options for its parameters
    tensor  its main parameters while they are at hand, else without elements
    """

    bucket: Bucket
    group: Any
    start: int
    stop: int
    tensor: Tensor

    @property
    def numel(self) -> int:
        return self.stop - self.start

    @property
    def begin(self) -> int:
        """Where in its bucket it begins."""
        return self.bucket.owned[0] + self.start

    def part(self, flat: Tensor) -> Tensor:
        """This segment of a tensor as long as what the rank owns of the bucket."""
        return flat[self.start : self.stop]


class OptimizerStep:
    """The step where all states are stored as it uses them, on the device."""

    stays = True
    """Whether main parameters keep their memory after the step of their group, so that a copy may still read it."""
    hand: Sequence[ShardSegment] = ()
    """What is stepped now: only these segments have gradients at this moment."""

    def __init__(self, tier: DeviceTier, buckets: Sequence[Bucket], factory: Factory) -> None:
        self.tier, self.comm = tier, tier.comm
        self.segments: Sequence[ShardSegment] = self.cut(buckets)
        self.begin()
        for bucket in buckets:
            bucket.initial = None
        # A group for each of the model's, also where this rank owns nothing of it: schedulers do the same everywhere.
        owned: dict[Any, list[Tensor]]
        owned = {group: [] for bucket in buckets if bucket.trainable for group in bucket.plan.groups}
        for segment in self.segments:
            owned[segment.group].append(segment.tensor)
        groups = [{"params": tensors, **dict(group)} for group, tensors in owned.items()]
        self.optimizer = factory(groups or [{"params": []}])

    @torch.no_grad()
    def step(self, factor: float) -> None:
        for group in self.at_hand():
            self.hand = group
            gradients = self.gradients_of(group)
            if gradients and factor != 1.0:
                torch._foreach_mul_(gradients, factor)
            for segment in reversed(group):
                # The list gives its reference up, so that the gradient's memory is free before the next group's.
                segment.tensor.grad = gradients.pop()
            self.call(group)
            for segment in group:
                segment.tensor.grad = None
                self.write_back(segment)
        self.hand = ()
        self.tier.flush()

    def write_back(self, segment: ShardSegment) -> None:
        target = segment.part(self.tier.open(segment.bucket))
        if address(target) != address(segment.tensor):
            self.tier.put(target, segment.tensor, self.stays)

    # What other tiers and dtypes put something else in the place of.

    def cut(self, buckets: Sequence[Bucket]) -> Sequence[ShardSegment]:
        return [
            ShardSegment(bucket, run.group, run.start - bucket.owned[0], run.stop - bucket.owned[0], torch.empty(0))
            for bucket in buckets
            for run in bucket.plan.segments(bucket.owner)
        ]

    def begin(self) -> None:
        """Make the main parameters from the parameters."""
        for segment in self.segments:
            if segment.bucket.rows.keeps_main:
                segment.tensor = self.memory(segment).copy_(self.initial(segment))
            else:
                # `data` has a count of writes of its own (`guards.py`).
                segment.tensor = segment.part(self.tier.open(segment.bucket)).data

    def memory(self, segment: ShardSegment) -> Tensor:
        return torch.empty(segment.numel, dtype=segment.bucket.dtypes.main, device=self.comm.device)

    def at_hand(self) -> Iterable[Sequence[ShardSegment]]:
        """The groups of segments that are stepped at a time, each at hand until the next is asked for."""
        return [self.segments]

    def gradients_of(self, group: Sequence[ShardSegment]) -> list[Tensor]:
        return [segment.part(segment.bucket.for_step()).to(segment.tensor) for segment in group]

    def call(self, group: Sequence[ShardSegment]) -> None:
        self.optimizer.step()

    def forget(self) -> None:
        """When a step ends half-way: let go what it had begun."""
        for segment in self.segments:
            segment.tensor.grad = None

    def initial(self, segment: ShardSegment) -> Tensor:
        bucket = segment.bucket
        return segment.part(self.tier.open(bucket) if bucket.initial is None else bucket.initial)
