"""Several instances of the sharded states (hybrid sharding): the ranks of one share them out, and gradients are
averaged over all. With S = ranks / instances, the first instance has ranks 0 to S-1, the next S to 2S-1 and so on, so
that each machine may have one of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from zerolab.collectives import Collectives, wire_bytes
from zerolab.errors import InputError
from zerolab.flat import BucketPlan

if TYPE_CHECKING:
    from zerolab.apps.plan.spec import RunSpec


def check_instances(instances: int, ranks: int, stage: int) -> None:
    """Raise an InputError unless so many instances divide the ranks, and there is something that they shard."""
    name = "num_distributed_optimizer_instances"
    if ranks % instances:
        raise InputError(f"{name} is {instances}, which does not divide {ranks} ranks; give a divisor of {ranks}")
    if instances > 1 and stage == 0:
        raise InputError(f"{name} is {instances}, but stage 0 shards nothing; choose stage 1, 2 or 3, or give 1")


def split(comm: Collectives, instances: int) -> tuple[Collectives, Collectives | None]:
    """The ranks that this one shards with, and those that hold its shards in the other instances. Every rank calls
    this."""
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


def traffic_across(plans: Sequence[BucketPlan], spec: RunSpec, skipped: bool = False) -> dict[str, list[int]]:
    """Bytes that each rank sends in a step to its like in other instances: {collective: [bytes by rank]}.

    Each reduction is followed by an all-reduce of a shard, or of all shards one by one where a rank has them all; with
    states on a disk, ranks tell each other whether theirs failed."""
    instances = spec.instances
    if instances == 1:
        return {}
    all_shards = spec.stage == 1 and spec.reduction == "all_reduce"
    times = spec.micro_batches if spec.reduce_each else 1
    calls = [
        (
            "all_reduce",
            plan.layout.shard_numel,
            plan.itemsize if spec.dtypes is None else spec.dtypes.itemsize("reduce"),
            times * (plan.layout.ranks if all_shards else 1),
        )
        for plan in plans
        if plan.trainable
    ]
    if spec.places.on_disk and not skipped:
        calls.append(("all_gather", instances, 8, 1))
    sent: dict[str, list[int]] = {}
    for name, numel, itemsize, how_often in calls:
        total = sent.setdefault(name, [0] * instances)
        for place in range(instances):
            total[place] += how_often * wire_bytes(name, numel, itemsize, instances, place)
    # The ranks of an instance send alike.
    return {name: [nbytes for nbytes in total for _ in range(spec.sharing)] for name, total in sent.items()}


def added(one: dict[str, list[int]], other: dict[str, list[int]]) -> dict[str, list[int]]:
    """Both, by collective and rank."""
    names = dict.fromkeys([*one, *other])
    ranks = len(next(iter((one or other).values())))
    nothing = [0] * ranks
    return {
        name: [a + b for a, b in zip(one.get(name, nothing), other.get(name, nothing), strict=True)] for name in names
    }
