"""What all stages share, and the two questions that each answers in its own way:

    where a unit's parameters come from       always here | gathered before use, released after
    where a unit's gradients go               all-reduced | reduce-scattered into place | kept as a shard

Forward, backward, clipping and the optimizer step are the same code for all of them (`engine.py`). Where parameters
rest, on the device, on the host or on a disk, is the business of the stage's `store` (`stores.py`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

import torch

from zerolab.collectives import Collectives, Handle
from zerolab.flat.views import fill, point_at, shard_of
from zerolab.offload.places import NOWHERE, Offload, host_empty
from zerolab.zero.stores import make_store
from zerolab.zero.units import Bucket, Unit


class Stage(ABC):
    """One stage on one rank. The ranks of `comm` hold one shard each. With `replicate`, the ranks of that group hold
    the same shard as this one, and gradients are averaged over both groups."""

    number: int
    shards_optimizer = True
    shards_gradients = False
    shards_parameters = False

    def __init__(self, comm: Collectives, offload: Offload = NOWHERE, replicate: Collectives | None = None) -> None:
        self.comm, self.replicate = comm, replicate
        self.offload = offload
        self.store = make_store(comm, offload)
        # The rank whose shard of each bucket this rank's optimizer updates; None: it updates all.
        self.shard_rank = comm.rank if self.shards_optimizer else None

    def host_memory(self, numel: int, dtype: torch.dtype) -> torch.Tensor:
        """Memory of the host, for an optimizer that steps there."""
        return host_empty(numel, dtype, self.comm.device)

    # Where parameters come from.

    def flatten(self, bucket: Bucket, initial: torch.Tensor | None = None) -> None:
        """Move a bucket's parameters into one flat buffer, rank 0's values on every rank. `initial` is that buffer, if
        they lie in it already."""
        if initial is None:
            initial = self.comm.allocate(bucket.layout.numel, bucket.dtypes.main)
            fill(initial, bucket.layout, bucket.parameters)
        self.overwrite_by_rank_0(initial)
        bucket.whole = initial
        if bucket.dtypes.main != bucket.dtype:
            bucket.whole = self.comm.allocate(bucket.layout.numel, bucket.dtype).copy_(initial)
            if bucket.trainable:
                rank = self.shard_rank
                bucket.initial = initial if rank is None else shard_of(initial, bucket.layout, rank).clone()
        point_at(bucket.whole, bucket.layout, bucket.parameters)
        whole, rank = bucket.whole, self.shard_rank
        bucket.shard = whole if rank is None else shard_of(whole, bucket.layout, rank)

    def overwrite_by_rank_0(self, tensor: torch.Tensor) -> torch.Tensor:
        """Write the first rank's values to `tensor`, on every rank; returns it."""
        self.comm.broadcast(tensor)
        return tensor if self.replicate is None else self.replicate.broadcast(tensor)

    def prefetch(self, units: Sequence[Unit], count: int) -> None:
        """These units come next: begin to gather the first `count`, and to read what the one after has on a disk."""

    def gather(self, unit: Unit) -> None:
        """Return once a unit's parameters are here."""

    def settle(self, unit: Unit) -> None:
        """Return once no collective uses the memory of its gathered parameters, and no rank reads this one's shards for
        it."""

    def release(self, unit: Unit) -> None:
        """Let a unit's gathered parameters go."""

    def publish(self, bucket: Bucket) -> Handle | None:
        """After the optimizer step: hand this rank's new parameters to the others."""
        return None

    # Where gradients go.

    @abstractmethod
    def local_buffer(self, bucket: Bucket) -> torch.Tensor:
        """A buffer as long as the bucket for the gradients of this rank alone."""

    @abstractmethod
    def reduce(self, bucket: Bucket, overlap: bool) -> Handle:
        """Begin to average the local gradients over the ranks. The handle's result is the average: of the whole
        bucket, or of this rank's shard. `overlap`: beside the computation that follows."""


def settle_all(stage: Stage, units: Iterable[Unit]) -> None:
    for unit in units:
        stage.settle(unit)
