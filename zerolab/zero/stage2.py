"""Stage 2: gradients are sharded too (ZeRO paper, section 5.2). A unit's whole gradient lives from the moment
backward brings it until its reduce-scatter has ended; only this rank's shard stays. The peak, not just the sum
at the step, is smaller. 2Ψ elements on the wire, as at stage 0; (m+1)Ψ over m micro-batches."""

from __future__ import annotations

import torch

from zerolab.collectives import Handle
from zerolab.zero.stage import Stage
from zerolab.zero.units import Bucket


class Stage2(Stage):
    number = 2
    shards_gradients = True

    def open_local(self, bucket: Bucket) -> torch.Tensor:
        return self.new_gradients(bucket, bucket.dtypes.grads)

    def reduce(self, bucket: Bucket, overlap: bool) -> Handle:
        local = self.to_reduce(bucket)
        if bucket.reduced is None:
            bucket.reduced = self.new_shard(bucket)
        # The first sum of a step may come where it stays; later ones are added to it.
        stays = not bucket.has_reduced and self.can_stay(bucket)
        out = bucket.reduced if stays else local.new_empty(bucket.layout.shard_numel)
        return self.reduce_scatter(local, out, overlap)

    def publish(self, bucket: Bucket) -> Handle | None:
        return self.comm.all_gather_async(bucket.shard, out=bucket.whole)
