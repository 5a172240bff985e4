"""What all stages share, and the two questions that each answers in its own way:

    where a unit's parameters come from       always here | gathered before use, released after
    where a unit's gradients go               all-reduced | reduce-scattered into place | kept as a shard

Forward, backward, clipping and the optimizer step are the same code for all of them (`engine.py`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch

from zerolab.collectives import Collectives, Handle
from zerolab.flat.views import fill, point_at, zero_gaps
from zerolab.offload.places import NOWHERE, Offload, host_empty
from zerolab.zero.units import Bucket, Unit


class Stage(ABC):
    """One stage on one rank."""

    number: int
    shards_optimizer = True
    shards_gradients = False
    shards_parameters = False

    def __init__(self, comm: Collectives, offload: Offload = NOWHERE) -> None:
        self.comm = comm
        self.offload = offload

    # Where parameters come from.

    def prepare(self, buckets: Sequence[Bucket]) -> None:
        """Before the first `place`."""

    def place(self, bucket: Bucket, first: torch.Tensor | None = None) -> None:
        """Move a bucket's parameters into one flat buffer, rank 0's values on every rank. `first` is that buffer, if
        they lie in it already."""
        if first is None:
            first = self.comm.allocate(bucket.layout.numel, bucket.dtypes.main)
            fill(first, bucket.layout, bucket.parameters)
        self.comm.broadcast(first)
        bucket.whole = first
        if bucket.dtypes.main != bucket.dtype:
            bucket.whole = self.comm.allocate(bucket.layout.numel, bucket.dtype).copy_(first)
            if bucket.trainable:
                bucket.first = self.own(bucket, first).clone() if self.shards_optimizer else first
        point_at(bucket.whole, bucket.layout, bucket.parameters)
        bucket.shard = self.own(bucket, bucket.whole)

    def start_gathering(self, unit: Unit) -> None:
        """Begin to bring a unit's parameters here, if they are not."""

    def gather(self, unit: Unit) -> None:
        """Return once a unit's parameters are here."""

    def settle(self, unit: Unit) -> None:
        """Return once no collective uses the memory of its gathered parameters."""

    def release(self, unit: Unit) -> None:
        """Let a unit's gathered parameters go."""

    def publish(self, bucket: Bucket) -> Handle | None:
        """After the optimizer step: hand this rank's new parameters to the others."""
        return None

    def expect(self, unit: Unit) -> None:
        """A unit will be gathered, but not next: begin what takes longest."""

    def open_shard(self, bucket: Bucket) -> torch.Tensor:
        """What this rank's optimizer updates of the parameters, to be written; buckets come one after the other."""
        return bucket.shard if self.shards_optimizer else bucket.whole

    def close_shards(self) -> None:
        """After the last one is written."""

    def settle_shards(self) -> None:
        """When a step ends half-way: wait until all shards that are being written are on the disk. A shard that the
        step has not finished stays open, and the next call of `step` goes on with it."""

    def close(self) -> None:
        """Let go what outlives tensors."""

    def disk_bytes(self) -> int:
        """Bytes of parameters on the disk, as the file system has them."""
        return 0

    # Where gradients go.

    @abstractmethod
    def open_local(self, bucket: Bucket) -> torch.Tensor:
        """A buffer as long as the bucket for the gradients of this rank alone."""

    @abstractmethod
    def reduce(self, bucket: Bucket, overlap: bool) -> Handle:
        """Begin to average `bucket.local` over the ranks."""

    def collect(self, bucket: Bucket, handle: Handle) -> None:
        """Once reduced: add to `bucket.reduced`, unless it came there by itself, and let `bucket.local` go."""
        average = handle.wait()
        assert bucket.reduced is not None
        if average is not bucket.reduced:
            add(bucket.reduced, average, bucket.has_reduced)
        bucket.local = None

    def optimized(self, bucket: Bucket) -> torch.Tensor:
        """The reduced gradients that this rank's optimizer uses."""
        assert bucket.reduced is not None
        return bucket.reduced

    # Helpers of the stages.

    def new_gradients(self, bucket: Bucket, dtype: torch.dtype) -> torch.Tensor:
        """A buffer as long as the bucket, its padding zero."""
        gradients = self.comm.allocate(bucket.layout.numel, dtype)
        zero_gaps(gradients, bucket.layout)
        return gradients

    def new_shard(self, bucket: Bucket) -> torch.Tensor:
        """Memory for this rank's part of the reduced gradients, where the optimizer wants them."""
        allocate = self.comm.allocate if self.offload.optimizer == "device" else host_empty
        return allocate(bucket.layout.shard_numel, bucket.dtypes.main_grads)

    def can_stay(self, bucket: Bucket) -> bool:
        """Whether a reduction may write to `new_shard`: it has the place and the dtype of what is reduced."""
        return self.offload.optimizer == "device" and bucket.dtypes.main_grads == bucket.dtypes.reduce

    def to_reduce(self, bucket: Bucket) -> torch.Tensor:
        """`bucket.local` in the dtype in which it travels and is added up."""
        assert bucket.local is not None
        if bucket.local.dtype != bucket.dtypes.reduce:
            bucket.local = self.comm.allocate(bucket.layout.numel, bucket.dtypes.reduce).copy_(bucket.local)
        return bucket.local

    def own(self, bucket: Bucket, whole: torch.Tensor) -> torch.Tensor:
        """This rank's part of a buffer as long as the bucket."""
        start, stop = bucket.layout.shard(self.comm.rank)
        return whole[start:stop]

    def all_reduce(self, tensor: torch.Tensor, overlap: bool) -> Handle:
        return self.comm.all_reduce_async(tensor, average=True, now=not overlap)

    def reduce_scatter(self, tensor: torch.Tensor, out: torch.Tensor, overlap: bool) -> Handle:
        return self.comm.reduce_scatter_async(tensor, average=True, out=out, now=not overlap)


def add(total: torch.Tensor, more: torch.Tensor, begun: bool) -> None:
    """Add to a sum of gradients, wherever it lies and whatever its dtype; or begin it."""
    more = more.to(total.device)
    if begun:
        total.add_(more)
    else:
        total.copy_(more)
