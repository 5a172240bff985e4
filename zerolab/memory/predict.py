"""Bytes from a layout, padding included: what a rank keeps, and the most that comes on top during a step.

`predict` is exact: tests hold it to live storages, byte by byte. `predict_peaks` gives upper bounds, each under its
own name, for a model that runs its units in the order of the plans and in reverse for backward.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import groupby

from zerolab.errors import InputError
from zerolab.flat import BucketPlan
from zerolab.memory.states import StateSize, check_stage

IN_FLIGHT = 2
"""Buckets under reduction at once while the next one fills, where gradients are sharded."""


def predict(plans: Sequence[BucketPlan], stage: int, state_size: StateSize) -> dict[str, list[int]]:
    """Bytes of each kind of state that each rank keeps between two steps: {kind: [bytes by rank]}.

    Frozen buckets have parameters only. Raises InputError for an unknown stage and for no plans.
    """
    check_plans(plans, stage)
    ranks = range(plans[0].layout.ranks)
    trainable = [plan for plan in plans if plan.trainable]
    return {
        "parameters": [sum(kept(plan, sharded=stage >= 3) for plan in plans) for _ in ranks],
        "gradients": [sum(kept(plan, sharded=stage >= 2) for plan in trainable) for _ in ranks],
        "optimizer_states": [
            sum(optimizer_bytes(plan, rank if stage >= 1 else None, state_size) for plan in trainable) for rank in ranks
        ],
    }


def predict_peaks(
    plans: Sequence[BucketPlan],
    stage: int,
    micro_batches: int = 1,
    reduce_each: bool = True,
    prefetch: bool = True,
    clip: bool = False,
    resident: Collection[str] = (),
) -> dict[str, list[int]]:
    """The most bytes of each passing kind at one moment of a step, by rank:

    gathered_units         stage 3: the unit at hand, and with `prefetch` its neighbour; besides them the `resident`
                           units by name, which stay from first to last use, as an embedding tied to the head does
    gradient_buffers       gradients of one rank alone. With sharded gradients: the unit that backward fills and
                           the two buckets under reduction. Otherwise they are reduced where they stay, and only
                           further micro-batches need a buffer beside the sum.
    communication_buffers  what a ring receives into, results of reductions that wait to be added, and with `clip`
                           the ranks' shares of the norm

    On one rank every stage is stage 0.
    """
    check_plans(plans, stage)
    ranks = plans[0].layout.ranks
    stage = stage if ranks > 1 else 0
    repeated = micro_batches > 1 and reduce_each
    gathered = gathered_units(plans, 2 if prefetch else 1, resident) if stage >= 3 else 0
    local = local_gradients(plans, stage, micro_batches, reduce_each)
    scratch = max((ring_scratch(plan) for plan in plans if plan.trainable), default=0)
    if repeated and stage >= 2:
        scratch += largest_run([kept(plan, sharded=True) for plan in plans if plan.trainable], IN_FLIGHT)
    scratch = max(scratch, 8 * ranks if clip else 0)
    bounds = {"gathered_units": gathered, "gradient_buffers": local, "communication_buffers": scratch}
    return {kind: [bound] * ranks for kind, bound in bounds.items()}


def kept(plan: BucketPlan, sharded: bool = False) -> int:
    """Bytes of a buffer as long as the bucket, or as its shard."""
    return (plan.layout.shard_numel if sharded else plan.layout.numel) * plan.itemsize


def optimizer_bytes(plan: BucketPlan, rank: int | None, state_size: StateSize) -> int:
    """Bytes of optimizer states for one rank's segments of a bucket, or for those of the whole of it."""
    return sum(state_size.bytes(segment.numel, plan.itemsize) for segment in plan.segments(rank))


def gathered_units(plans: Sequence[BucketPlan], at_once: int, resident: Collection[str]) -> int:
    """Bytes of the units that stay, and of the largest `at_once` neighbours among the others."""
    staying = sum(kept(plan) for plan in plans if plan.unit in resident)
    passing = by_unit([plan for plan in plans if plan.unit not in resident])
    return staying + largest_run([sum(kept(plan) for plan in unit) for unit in passing], at_once)


def local_gradients(plans: Sequence[BucketPlan], stage: int, micro_batches: int, reduce_each: bool) -> int:
    """Bytes of gradients that wait for their reduction, at the worst moment."""
    units = [[kept(plan) for plan in unit if plan.trainable] for unit in by_unit(plans)]
    flat = [size for unit in units for size in unit]
    if stage >= 2 and micro_batches > 1 and not reduce_each:
        return sum(flat)
    if stage < 2 and (micro_batches == 1 or not reduce_each):
        return 0
    worst, start = 0, 0
    for unit in units:
        stop = start + len(unit)
        # Backward goes from the end: what it left before this unit is still under reduction.
        worst = max(worst, sum(flat[start : stop + IN_FLIGHT]))
        start = stop
    return worst


def ring_scratch(plan: BucketPlan) -> int:
    """Bytes that a ring reduce-scatter of the bucket receives into: one chunk on two ranks, two on more."""
    return kept(plan, sharded=True) * min(plan.layout.ranks - 1, 2)


def by_unit(plans: Sequence[BucketPlan]) -> list[list[BucketPlan]]:
    return [list(unit) for _, unit in groupby(plans, key=lambda plan: plan.unit)]


def largest_run(sizes: Sequence[int], length: int) -> int:
    """The largest sum of `length` neighbours."""
    return max((sum(sizes[start : start + length]) for start in range(len(sizes))), default=0)


def check_plans(plans: Sequence[BucketPlan], stage: int) -> None:
    check_stage(stage)
    if not plans:
        raise InputError("there are no bucket plans to predict from; give engine.plans")
