"""Stage 0: data parallelism. Every rank keeps every parameter, gradient and optimizer state; gradients are averaged
by an all-reduce. 2Ψ elements on the wire, none saved."""

from __future__ import annotations

import torch

from zerolab.collectives import Handle
from zerolab.zero.stage import Stage
from zerolab.zero.units import Bucket


class Stage0(Stage):
    number = 0
    shards_optimizer = False

    def local_buffer(self, bucket: Bucket) -> torch.Tensor:
        gradients, dtypes = bucket.gradients, bucket.dtypes
        if gradients.reduced is None:
            gradients.reduced = gradients.whole_buffer(self.comm, dtypes.main_grads)
        # The first gradients of a step may be reduced where they stay; later ones must not mix with their sum.
        if dtypes.one_gradient and not gradients.summed:
            return gradients.reduced
        return gradients.whole_buffer(self.comm, dtypes.grads)

    def reduce(self, bucket: Bucket, overlap: bool) -> Handle:
        local = bucket.gradients.cast_local(self.comm, bucket.dtypes.reduce)
        return self.comm.all_reduce_async(local, average=True, now=not overlap)
