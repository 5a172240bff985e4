"""Hybrid sharding: averages of ranks that shard together are averaged once more, over those that hold the same shards.

On a CPU that comes when the first average is collected. On a GPU it is queued right behind the first, on streams of its
own: neither the host nor what computes waits before the bucket is collected.
"""

from __future__ import annotations

import torch

from zerolab.collectives import Collectives, Handle
from zerolab.flat import Layout
from zerolab.gpu import door

Tensor = torch.Tensor


class Across:
    """Averages over `replicate` what was averaged over `comm`; does nothing without `replicate`. Each shard is averaged
    by itself: a rank whose average is as long as the bucket then adds in the same order as one that has only its own
    shard, and both end with the same bits."""

    def __init__(self, replicate: Collectives | None) -> None:
        self._replicate = replicate
        # Waits for reductions, in the place of the stream that computes.
        self._stream: torch.cuda.Stream | None = None

    def start(self, reduction: Handle, layout: Layout) -> list[Handle]:
        """Queue them behind a reduction that is queued on a GPU, to be waited for with it; none for any other."""
        if self._replicate is None or not reduction.queued:
            return []
        if self._stream is None:
            self._stream = door.stream(self._replicate.device)
        average = reduction.behind(self._stream)
        with door.on(self._stream):
            return [self._replicate.all_reduce_async(shard, average=True) for shard in shards(average, layout)]

    def finish(self, started: list[Handle], reduction: Handle, layout: Layout) -> None:
        """Return once a reduction's result is averaged, in place."""
        for handle in started:
            handle.wait()
        if self._replicate is not None and not started:
            for shard in shards(reduction.wait(), layout):
                self._replicate.all_reduce(shard, average=True)


def shards(average: Tensor, layout: Layout) -> tuple[Tensor, ...]:
    """Views of the shards in `average`: all of the layout's where it is as long as the bucket, else the one shard that
    it is; none of a bucket without elements."""
    if not average.numel():
        return ()
    count = layout.numel // layout.shard_numel if average.numel() == layout.numel else 1
    return average.split(average.numel() // count)
