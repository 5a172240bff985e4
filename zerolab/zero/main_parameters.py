"""Main parameters, whole: what the optimizer updates, where a precision keeps it in another dtype than forward uses."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from zerolab.collectives import Collectives, phase
from zerolab.flat.views import view
from zerolab.zero.bucket import Bucket
from zerolab.zero.tiers.stored_step import StoredStep

Tensor = torch.Tensor


def gather_main(comm: Collectives, buckets: Sequence[Bucket], step: StoredStep, to: int | None) -> dict[str, Tensor]:
    """The main parameters by name, on the CPU of every rank, or of rank `to` alone; none of a bucket whose parameters
    are updated in the dtype in which forward uses them. A collective."""
    found: dict[str, Tensor] = {}
    mine = to in (None, comm.rank)
    for bucket, own in own_main(buckets, step).items():
        with phase("consolidate"):
            whole = own if own.numel() == bucket.layout.numel else comm.all_gather(own.to(comm.device))
        if mine:
            found |= {slot.name: view(whole, slot).cpu().clone() for slot in bucket.layout.slots}
    return found


def own_main(buckets: Sequence[Bucket], step: StoredStep) -> dict[Bucket, Tensor]:
    """What this rank updates of each bucket, in the dtype in which it does, on the CPU."""
    found = {}
    for bucket in buckets:
        if bucket.trainable and bucket.dtypes.main != bucket.dtype:
            begin, end = bucket.owned
            found[bucket] = torch.zeros(end - begin, dtype=bucket.dtypes.main)
            if bucket.dtypes.shard == bucket.dtypes.main:
                # Stage 3 keeps its shards as main parameters.
                found[bucket].copy_(bucket.tier.fetch(bucket, torch.empty_like(found[bucket])))
    for states in step.stored():
        for segment, name, codec, raw in states:
            if name == "main" and segment.bucket in found:
                start = segment.start
                values = codec.view(raw, segment.numel)
                found[segment.bucket][start : start + segment.numel].copy_(values)
    return found
