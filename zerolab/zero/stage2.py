"""Stage 2: gradients are sharded too (ZeRO paper, section 5.2). A unit's whole gradient lives from the moment
backward brings it until its reduce-scatter has ended; only this rank's shard stays. The peak, not just the sum
at the step, is smaller. 2Ψ elements on the wire, as at stage 0; (m+1)Ψ over m micro-batches."""

from __future__ import annotations

import torch

from zerolab.collectives import Handle
from zerolab.offload.places import host_empty
from zerolab.zero.stage import Stage
from zerolab.zero.units import Bucket


class Stage2(Stage):
    number = 2
    shards_gradients = True

    def open_local(self, bucket: Bucket) -> torch.Tensor:
        return self.new_gradients(bucket, bucket.dtypes.grads)

    def reduce(self, bucket: Bucket, overlap: bool) -> Handle:
        local, on_device = self.to_reduce(bucket), self.offload.optimizer == "device"
        if bucket.reduced is None:
            allocate = self.comm.allocate if on_device else host_empty
            bucket.reduced = allocate(bucket.layout.shard_numel, bucket.dtypes.main_grads)
        out = bucket.reduced
        if bucket.has_reduced or not on_device or out.dtype != local.dtype:
            out = local.new_empty(bucket.layout.shard_numel)
        return self.reduce_scatter(local, out, overlap)

    def publish(self, bucket: Bucket) -> Handle | None:
        return self.comm.all_gather_async(bucket.shard, out=bucket.whole)
