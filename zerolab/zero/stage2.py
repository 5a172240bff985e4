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

    def local_buffer(self, bucket: Bucket) -> torch.Tensor:
        return bucket.gradients.whole_buffer(self.comm, bucket.dtypes.grads)

    def reduce(self, bucket: Bucket, overlap: bool) -> Handle:
        gradients, dtypes, numel = bucket.gradients, bucket.dtypes, bucket.layout.shard_numel
        local = gradients.cast_local(self.comm, dtypes.reduce)
        on_device = self.offload.optimizer == "device"
        if gradients.reduced is None:
            # Where the optimizer uses it.
            gradients.reduced = (self.comm.allocate if on_device else self.host_memory)(numel, dtypes.main_grads)
        # The first sum of a step may come where it stays; later ones are added to it.
        stays = not gradients.summed and on_device and dtypes.main_grads == dtypes.reduce
        out = gradients.reduced if stays else local.new_empty(numel)
        return self.comm.reduce_scatter_async(local, average=True, out=out, now=not overlap)

    def publish(self, bucket: Bucket) -> Handle | None:
        return self.comm.all_gather_async(bucket.shard, out=bucket.whole)
