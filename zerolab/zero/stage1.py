"""Stage 1: optimizer states are sharded (ZeRO paper, section 5.1). A rank updates its own shard of the parameters
and hands the result around by an all-gather.

Gradients are reduced in one of two ways. All-reduce, as most texts tell it: 3Ψ elements on the wire with the
all-gather. Reduce-scatter, since a rank needs only its shard's sum: 2Ψ, no more than stage 0. The gradient
buffer stays whole either way; that nobody needs the rest of it is stage 2's discovery.
"""

from __future__ import annotations

from zerolab.collectives import Collectives, Handle
from zerolab.flat.views import shard_of
from zerolab.offload.places import Offload
from zerolab.zero.stage import Stage
from zerolab.zero.stage0 import Stage0
from zerolab.zero.units import Bucket


class Stage1(Stage0):
    """Stage 1 with all-reduce."""

    number = 1
    shards_optimizer = True

    def publish(self, bucket: Bucket) -> Handle | None:
        return self.comm.all_gather_async(bucket.shard, out=bucket.whole)


class Stage1ReduceScatter(Stage1):
    """Stage 1 with reduce-scatter."""

    def reduce(self, bucket: Bucket, overlap: bool) -> Handle:
        local = bucket.gradients.cast_local(self.comm, bucket.dtypes.reduce)
        mine = shard_of(local, bucket.layout, self.comm.rank)
        return self.comm.reduce_scatter_async(local, average=True, out=mine, now=not overlap)


def stage1(comm: Collectives, offload: Offload, reduction: str, replicate: Collectives | None) -> Stage:
    kind = Stage1 if reduction == "all_reduce" else Stage1ReduceScatter
    return kind(comm, offload, replicate)
