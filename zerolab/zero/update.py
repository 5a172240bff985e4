"""The optimizer step over what one rank owns, wherever that rests and in whatever dtype.

    at rest    main parameters and moments, in the dtypes of the recipe, in the place of the offload
    at hand    a sub-group of them in fp32, where the step is computed; with its gradients

A step brings one sub-group after the other to hand, gives it its gradients, lets torch's optimizer update it, writes
the new parameters to the rank's shard and puts the states back to rest. Where states rest as the step uses them, no
group ever leaves the hand.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from zerolab.memory import StateSize
from zerolab.memory.kinds import state_tensors
from zerolab.offload.groups import sub_groups
from zerolab.offload.places import host_empty
from zerolab.offload.rest import Rest, limit_of, rest_of
from zerolab.precision.recipe import Precision
from zerolab.zero import optimizer as optimizers
from zerolab.zero.stage import Stage
from zerolab.zero.units import Bucket


@dataclass(eq=False)
class Owned:
    """A part `[start, stop)` of what this rank keeps of a bucket. `tensor` is what torch's optimizer updates: the main
    parameters while they are at hand, else without elements; `gaps` is the padding in it."""

    bucket: Bucket
    group: Any
    start: int
    stop: int
    rest: Rest
    tensor: torch.Tensor
    gaps: list[tuple[int, int]]

    @property
    def numel(self) -> int:
        return self.stop - self.start

    def part(self, flat: torch.Tensor) -> torch.Tensor:
        """This part of a tensor as long as what the rank keeps of the bucket."""
        return flat[self.start : self.stop]


class Update:
    """The step. States rest in memory as the step uses them; `packed.py` and `swapped.py` have the other two ways."""

    def __init__(
        self,
        stage: Stage,
        buckets: Sequence[Bucket],
        factory: optimizers.Factory,
        precision: Precision | None,
        state_size: StateSize,
    ) -> None:
        self.stage = stage
        self.device = stage.comm.device if stage.offload.optimizer == "device" else torch.device("cpu")
        self.groups = own(stage, buckets, precision, state_size, self.device)
        self.owned = [owned for group in self.groups for owned in group]
        self.prepare()
        for group in self.groups:
            self.begin(group)
        for bucket in buckets:
            bucket.initial = None
        in_order = [group for bucket in buckets if bucket.trainable for group in bucket.plan.groups]
        self.optimizer = optimizers.build(factory, in_order, [(owned.group, owned.tensor) for owned in self.owned])

    @torch.no_grad()
    def step(self, factor: float) -> None:
        """Update all parameters with their gradients, times `factor`."""
        # A rank that owns no parameters steps its optimizer, too: learning-rate schedulers count the steps.
        for group in self.at_hand() if self.groups else [[]]:
            gradients = [self._gradient(owned) for owned in group]
            if gradients and factor != 1.0:
                # A step that fails half-way is called again and goes on where it stopped, so it must find the
                # gradients as they were before it scaled them.
                scale: Any = torch._foreach_mul if self.may_fail else torch._foreach_mul_
                gradients = scale(gradients, factor) or gradients
            for owned, gradient in zip(group, gradients, strict=True):
                owned.tensor.grad = gradient
            self.optimizer.step()
            for owned in group:
                # An optimizer passes over parameters that have no gradient: those of other groups.
                owned.tensor.grad = None
                target = owned.part(self.stage.store.open(owned.bucket))
                if target.data_ptr() != owned.tensor.data_ptr():
                    target.copy_(owned.tensor)
        self.stage.store.flush()

    # Where states rest: three ways.

    def prepare(self) -> None:
        """Before the first `begin`."""

    def begin(self, group: list[Owned]) -> None:
        """Make the main parameters of a group from the parameters."""
        for owned in group:
            source = self.initial(owned)
            if owned.rest.main is None:
                owned.tensor = owned.part(self._kept(owned.bucket))
            else:
                owned.tensor = self.allocate(owned.numel, owned.rest.main.dtype).copy_(source)

    def at_hand(self) -> Iterable[list[Owned]]:
        """The sub-groups, each at hand until the next is asked for."""
        return self.groups

    def resting(self) -> list[torch.Tensor]:
        """States that rest in memory, for the ledger."""
        return [*(owned.tensor for owned in self.owned if owned.rest.main is not None), *state_tensors(self.optimizer)]

    def passing(self) -> list[torch.Tensor | None]:
        """What is there while a step goes on, for the ledger."""
        return [owned.tensor.grad for owned in self.owned]

    may_fail = False
    """Whether a step may end half-way and be gone on with."""

    @property
    def half_done(self) -> bool:
        """Whether it did."""
        return False

    def disk_bytes(self) -> int:
        """Bytes of states on the disk, as the file system has them."""
        return 0

    def close(self) -> None:
        """Let go what outlives tensors."""

    # Helpers.

    def initial(self, owned: Owned) -> torch.Tensor:
        """The parameters of a part as the model had them."""
        bucket = owned.bucket
        return owned.part(self._kept(bucket) if bucket.initial is None else bucket.initial)

    def allocate(self, numel: int, dtype: torch.dtype) -> torch.Tensor:
        if self.stage.offload.optimizer == "device":
            return torch.empty(numel, dtype=dtype, device=self.device)
        return host_empty(numel, dtype)

    def _kept(self, bucket: Bucket) -> torch.Tensor:
        """What this rank updates of the parameters."""
        return self.stage.store.open(bucket)

    def _gradient(self, owned: Owned) -> torch.Tensor:
        """The reduced gradients of a part, where and as the step uses them."""
        return owned.part(owned.bucket.gradients.for_step(self.stage.shard_rank)).to(self.device, owned.rest.hand)


def own(
    stage: Stage,
    buckets: Sequence[Bucket],
    precision: Precision | None,
    state_size: StateSize,
    device: torch.device,
) -> list[list[Owned]]:
    """What this rank updates, by sub-groups: its shards' segments, or all of them at stage 0."""
    rank = stage.shard_rank

    def segments() -> Iterator[Any]:
        for number, bucket in enumerate(buckets):
            for segment in bucket.plan.segments(rank):
                yield number, segment, bucket.layout.align

    groups = []
    for parts in sub_groups(segments(), limit_of(precision, stage.offload)):
        group = []
        for number, segment in parts:
            bucket = buckets[number]
            offset = 0 if rank is None else bucket.layout.shard(rank)[0]
            rest = rest_of(bucket.dtype, precision, stage.offload, state_size.names)
            nothing = torch.empty(0, dtype=rest.hand, device=device)
            start, stop = segment.start - offset, segment.stop - offset
            inside = ((max(a, segment.start), min(b, segment.stop)) for a, b in bucket.layout.gaps())
            gaps = [(a - segment.start, b - segment.start) for a, b in inside if a < b]
            group.append(Owned(bucket, segment.group, start, stop, rest, nothing, gaps))
        groups.append(group)
    return groups
