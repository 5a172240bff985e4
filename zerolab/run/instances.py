"""Several instances of the sharded states (hybrid sharding): ranks 0 to S-1 have the first, S to 2S-1 the next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from zerolab.collectives import Collectives, wire_bytes
from zerolab.flat import BucketPlan
from zerolab.run import RunSpec


def split(comm: Collectives, instances: int) -> tuple[Collectives, Collectives | None]:
    """The ranks that this one shards with, and those with its shards. Every rank calls this."""
    if instances == 1:
        return comm, None
    size = comm.size // instances
    shard = comm.split(lambda rank: rank // size, name="shard")
    replicate = comm.split(lambda rank: rank % size, name="replicate")
    assert shard is not None
    return shard, replicate


def of_all(by_rank: dict[str, list[Any]], instances: int) -> dict[str, list[Any]]:
    """Figures of one instance's ranks as those of all ranks."""
    return {name: values * instances for name, values in by_rank.items()}


def traffic_across(plans: Sequence[BucketPlan], run: RunSpec, skipped: bool = False) -> dict[str, list[int]]:
    """Bytes that each rank sends in a step to its like in other instances: {collective: [bytes by rank]}.

    Each reduction is followed by an all-reduce of a shard, or of all one by one where a rank has them all; with states
    on a disk, ranks tell each other whether theirs failed."""
    instances = run.instances
    if instances == 1:
        return {}
    all_shards = run.stage == 1 and run.reduction == "all_reduce"
    times = 1 if run.defer_reduction else run.micro_batches
    calls = [
        (
            "all_reduce",
            plan.layout.shard_numel,
            plan.itemsize if run.dtypes is None else run.dtypes.itemsize("reduce"),
            times * (plan.layout.ranks if all_shards else 1),
        )
        for plan in plans
        if plan.trainable
    ]
    if run.places.on_disk and not skipped:
        calls.append(("all_gather", instances, 8, 1))
    sent: dict[str, list[int]] = {}
    for name, numel, itemsize, how_often in calls:
        total = sent.setdefault(name, [0] * instances)
        for place in range(instances):
            total[place] += how_often * wire_bytes(name, numel, itemsize, instances, place)
    # The ranks of an instance send alike.
    return {name: [nbytes for nbytes in total for _ in range(run.sharing)] for name, total in sent.items()}


def added(one: dict[str, list[int]], other: dict[str, list[int]]) -> dict[str, list[int]]:
    """Both, by collective and rank."""
    names = dict.fromkeys([*one, *other])
    ranks = len(next(iter((one or other).values())))
    nothing = [0] * ranks
    pairs = {name: zip(one.get(name, nothing), other.get(name, nothing), strict=True) for name in names}
    return {name: [a + b for a, b in both] for name, both in pairs.items()}
