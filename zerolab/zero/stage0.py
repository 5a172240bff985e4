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
        if bucket.reduced is None:
            bucket.reduced = self.new_local(bucket)
        # The first gradients of a step may be reduced where they stay; later ones must not mix with their sum.
        return self.new_local(bucket) if bucket.has_reduced else bucket.reduced

    def reduce(self, bucket: Bucket, overlap: bool) -> Handle:
        assert bucket.local is not None
        return self.all_reduce(bucket.local, overlap)
