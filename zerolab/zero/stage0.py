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

    def open_local(self, bucket: Bucket) -> torch.Tensor:
        dtypes = bucket.dtypes
        if bucket.reduced is None:
            bucket.reduced = self.new_gradients(bucket, dtypes.main_grads)
        # The first gradients of a step may be reduced where they stay; later ones must not mix with their sum.
        if dtypes.one_gradient and not bucket.has_reduced:
            return bucket.reduced
        return self.new_gradients(bucket, dtypes.grads)

    def reduce(self, bucket: Bucket, overlap: bool) -> Handle:
        return self.all_reduce(self.to_reduce(bucket), overlap)
