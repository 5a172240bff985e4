"""What all stages share, and the two questions that each answers in its own way:

    where a unit's parameters come from       always here | gathered before use, released after
    where a unit's gradients go               all-reduced | reduce-scattered into place | kept as a shard

Forward, backward, clipping and the optimizer step are the same code for all of them (`engine.py`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch

from zerolab.collectives import Collectives, Handle
from zerolab.flat.views import fill, point_at, zero_gaps
from zerolab.zero.units import Bucket, Unit


class Stage(ABC):
    """One stage on one rank."""

    number: int
    shards_optimizer = True
    shards_gradients = False
    shards_parameters = False

    def __init__(self, comm: Collectives) -> None:
        self.comm = comm

    # Where parameters come from.

    def place(self, bucket: Bucket) -> None:
        """Move a bucket's parameters into one flat buffer, rank 0's values on every rank."""
        bucket.whole = self.comm.allocate(bucket.layout.numel, bucket.dtype)
        fill(bucket.whole, bucket.layout, bucket.parameters)
        self.comm.broadcast(bucket.whole)
        point_at(bucket.whole, bucket.layout, bucket.parameters)
        start, stop = bucket.layout.shard(self.comm.rank)
        bucket.shard = bucket.whole[start:stop]

    def start_gathering(self, unit: Unit) -> None:
        """Begin to bring a unit's parameters here, if they are not."""

    def gather(self, unit: Unit) -> None:
        """Return once a unit's parameters are here."""

    def release(self, unit: Unit) -> None:
        """Let a unit's gathered parameters go."""

    def publish(self, bucket: Bucket) -> Handle | None:
        """After the optimizer step: hand this rank's new parameters to the others."""
        return None

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
        if average is not bucket.reduced:
            assert bucket.reduced is not None
            bucket.reduced.add_(average)
        bucket.local = None

    def optimized(self, bucket: Bucket) -> torch.Tensor:
        """The reduced gradients that this rank's optimizer uses."""
        assert bucket.reduced is not None
        return bucket.reduced

    # Helpers of the stages.

    def new_local(self, bucket: Bucket) -> torch.Tensor:
        local = self.comm.allocate(bucket.layout.numel, bucket.dtype)
        zero_gaps(local, bucket.layout)
        return local

    def all_reduce(self, tensor: torch.Tensor, overlap: bool) -> Handle:
        return self.comm.all_reduce_async(tensor, average=True, now=not overlap)

    def reduce_scatter(self, tensor: torch.Tensor, out: torch.Tensor, overlap: bool) -> Handle:
        return self.comm.reduce_scatter_async(tensor, average=True, out=out, now=not overlap)
