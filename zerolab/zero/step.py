"""The optimizer step: over what one rank owns, run by run, and back to where parameters are stored.

An elementwise optimizer (SGD, Adam, AdamW, RMSprop, ...) computes each element's update from that element's own
gradient and state, so a rank that holds a slice can update it alone, with the same bits as the whole would get.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from zerolab.flat.views import address
from zerolab.zero.bucket import Bucket
from zerolab.zero.tier import DeviceTier

Tensor = torch.Tensor
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
        in_order = [group for bucket in buckets if bucket.trainable for group in bucket.plan.groups]
        self.optimizer = build(factory, in_order, [(segment.group, segment.tensor) for segment in self.segments])

    @torch.no_grad()
    def step(self, factor: float) -> None:
        """Update all parameters with their gradients, times `factor`."""
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
        """Write new parameters to where they are stored."""
        target = segment.part(self.tier.open(segment.bucket))
        if address(target) != address(segment.tensor):
            self.tier.put(target, segment.tensor, self.stays)

    # What other tiers and dtypes put something else in the place of.

    def cut(self, buckets: Sequence[Bucket]) -> Sequence[ShardSegment]:
        """What this rank updates, as tensors that one optimizer group treats alike."""
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
                # `data` has a count of writes of its own (`guards/optimizer.py`).
                segment.tensor = segment.part(self.tier.open(segment.bucket)).data

    def memory(self, segment: ShardSegment) -> Tensor:
        """Memory for main parameters that are kept apart."""
        return torch.empty(segment.numel, dtype=segment.bucket.dtypes.main, device=self.comm.device)

    def at_hand(self) -> Iterable[Sequence[ShardSegment]]:
        """The groups of segments that are stepped at a time, each at hand until the next is asked for."""
        return [self.segments]

    def gradients_of(self, group: Sequence[ShardSegment]) -> list[Tensor]:
        """The gradients of a group, where and as the step uses them."""
        return [segment.part(segment.bucket.for_step()).to(segment.tensor) for segment in group]

    def call(self, group: Sequence[ShardSegment]) -> None:
        """Have the optimizer update the group."""
        self.optimizer.step()

    def forget(self) -> None:
        """When a step ends half-way: let go what it had begun."""
        for segment in self.segments:
            segment.tensor.grad = None

    def initial(self, segment: ShardSegment) -> Tensor:
        """The parameters of a segment as the model had them."""
        bucket = segment.bucket
        return segment.part(self.tier.open(bucket) if bucket.initial is None else bucket.initial)


def build(factory: Factory, groups: Sequence[Any], owned: Sequence[tuple[Any, Tensor]]) -> torch.optim.Optimizer:
    """An optimizer over this rank's (group, tensor) pairs. It has a parameter group for each of `groups`, in their
    order, also where this rank owns nothing of it: a scheduler does the same on every rank."""
    tensors: dict[Any, list[Tensor]] = {group: [] for group in groups}
    for group, tensor in owned:
        tensors[group].append(tensor)
    return factory([{"params": those, **dict(group)} for group, those in tensors.items()] or [{"params": []}])


def default_factory(lr: float, **options: Any) -> Factory:
    """AdamW, fused: one pass over parameter, gradient and both moments."""
    return partial(torch.optim.AdamW, lr=lr, fused=True, **options)
