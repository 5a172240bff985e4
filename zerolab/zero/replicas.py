"""Hybrid sharding: what was averaged over the ranks that shard together is averaged once more, over those that hold the
same shards.

Each shard is averaged by itself: a rank whose average is as long as the bucket then adds in the same order as one that
has only its own shard, and both end with the same bits. On a CPU the second average comes when the first is collected.
On a GPU it is queued right behind the first, on streams of its own: neither the host nor what computes waits before the
bucket is collected.
"""

from __future__ import annotations

from typing import Any

import torch

from zerolab.collectives import Collectives, Handle
from zerolab.flat import Layout
from zerolab.gpu import door
from zerolab.zero.bucket import Bucket
from zerolab.zero.reducer import Reducer

Tensor = torch.Tensor


class ReplicatedReducer(Reducer):
    """Averages over the ranks of `comm`, too, which hold the same shards."""

    def __init__(self, comm: Collectives, *settings: Any) -> None:
        super().__init__(*settings)
        self._comm = comm
        # Waits for reductions, in the place of the stream that computes.
        self._stream: torch.cuda.Stream | None = None
        self._behind: dict[Handle, list[Handle]] = {}

    def start(self, bucket: Bucket) -> Handle:
        reduction = super().start(bucket)
        self._behind[reduction] = []
        if reduction.queued:
            self._stream = self._stream or door.stream(self._comm.device)
            average = reduction.behind(self._stream)
            with door.on(self._stream):
                parts = shards(average, bucket.layout)
                self._behind[reduction] = [self._comm.all_reduce_async(part, average=True) for part in parts]
        return reduction

    def average(self, bucket: Bucket, handle: Handle) -> Tensor:
        started = self._behind.pop(handle)
        for one in started:
            one.wait()
        average = super().average(bucket, handle)
        if not started:
            for part in shards(average, bucket.layout):
                self._comm.all_reduce(part, average=True)
        return average

    def calls(self, handle: Handle) -> list[Handle]:
        return [*self._behind.pop(handle), handle]


def shards(average: Tensor, layout: Layout) -> tuple[Tensor, ...]:
    """Views of the shards in `average`: all of the layout's where it is as long as the bucket, else the one shard that
    it is; none of a bucket without elements."""
    if not average.numel():
        return ()
    count = layout.numel // layout.shard_numel if average.numel() == layout.numel else 1
    return average.split(average.numel() // count)
