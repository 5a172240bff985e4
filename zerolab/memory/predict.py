"""Bytes from a layout, padding included: what a rank keeps, and the most that comes on top during a step.

`predict` is exact: tests hold it to live storages, byte by byte. `predict_peaks` gives upper bounds, each under its
own name, for a model that runs its units in the order of the plans and in reverse for backward.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import groupby

import torch

from zerolab.errors import InputError
from zerolab.flat import BucketPlan
from zerolab.memory.limits import NO_LIMITS, Stage3Limits, Walk
from zerolab.offload.formats import StateSize, check_places, format_of, sub_group_limit
from zerolab.offload.groups import count_parts, round_up_to_page, sub_groups
from zerolab.offload.places import NOWHERE, Offload, ledger
from zerolab.precision.recipe import Precision, find_precision
from zerolab.zero.reducer import IN_FLIGHT
from zerolab.zero.table import check_stage


def predict(
    plans: Sequence[BucketPlan],
    stage: int,
    state_size: StateSize,
    precision: Precision | str | None = None,
    offload: Offload = NOWHERE,
) -> dict[str, list[int]]:
    """Bytes of each kind of state that each rank keeps between two steps: {kind: [bytes by rank]}.

    A kind off the device has its place before its name ("host:optimizer_states"). Without a `precision` every state
    has its parameters' dtype. Frozen buckets have parameters only. Raises InputError for an unknown stage or precision,
    for no plans, and for what the stage cannot do (`check_places`).
    """
    check_plans(plans, stage)
    books = [predict_rank(plans, stage, rank, state_size, precision, offload) for rank in range(plans[0].layout.ranks)]
    return {kind: [book.get(kind, 0) for book in books] for kind in books[0]}


def predict_rank(
    plans: Sequence[BucketPlan],
    stage: int,
    rank: int,
    state_size: StateSize,
    precision: Precision | str | None = None,
    offload: Offload = NOWHERE,
) -> dict[str, int]:
    """What `predict` says of one rank: {kind: bytes}."""
    check_plans(plans, stage)
    precision = find_precision(precision)
    check_places(stage, precision, offload)
    book = {"parameters": 0, "gradients": 0, "optimizer_states": 0}
    gradients = ledger("host" if stage >= 2 and offload.optimizer != "device" else "device", "gradients")
    for place, nbytes in parameter_bytes(plans, stage, precision, offload):
        book[place] = book.get(place, 0) + nbytes
    for plan in plans:
        if plan.trainable:
            width = precision.itemsize("main_grads") if precision else plan.itemsize
            book[gradients] = book.get(gradients, 0) + numel(plan, sharded=stage >= 2) * width
    for place, nbytes in optimizer_bytes(plans, rank if stage >= 1 else None, state_size, precision, offload):
        book[place] = book.get(place, 0) + nbytes
    return book


def predict_peaks(
    plans: Sequence[BucketPlan],
    stage: int,
    micro_batches: int = 1,
    reduce_each: bool = True,
    prefetch: bool = True,
    clip: bool = False,
    resident: Collection[str] = (),
    limits: Stage3Limits = NO_LIMITS,
) -> dict[str, list[int]]:
    """The most bytes of each kind that comes and goes within a step, at one moment of it, by rank:

    gathered_units         stage 3: the unit that computes, and with `prefetch` the next, or what `limits` says; besides
                           them the `resident` units by name, which stay from first to last use, as an embedding tied to
                           the head does
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
    gathered = walk_of(plans, resident, limits, prefetch).peak if stage >= 3 else 0
    local = local_gradients(plans, stage, micro_batches, reduce_each)
    scratch = max((ring_scratch(plan) for plan in plans if plan.trainable), default=0)
    if repeated and stage >= 2:
        scratch += largest_run([kept(plan, sharded=True) for plan in plans if plan.trainable], IN_FLIGHT)
    scratch = max(scratch, 8 * ranks if clip else 0)
    bounds = {"gathered_units": gathered, "gradient_buffers": local, "communication_buffers": scratch}
    return {kind: [bound] * ranks for kind, bound in bounds.items()}


def predict_building(plans: Sequence[BucketPlan], stage: int) -> int:
    """The most bytes of parameters on a rank while an engine builds a model that was on the meta device: at stage 3 the
    shards so far, and the unit that is being made. For parameters that are kept in their own dtype on the device (no
    precision, no offload)."""
    check_plans(plans, stage)
    if stage < 3 or plans[0].layout.ranks == 1:
        return sum(kept(plan) for plan in plans)
    shards, most = 0, 0
    for _, unit in groupby(plans, key=lambda plan: plan.unit):
        buckets = list(unit)
        waiting = sum(map(kept, buckets))
        for plan in buckets:
            if plan.persistent:
                # It stays where it came into being.
                shards, waiting = shards + kept(plan), waiting - kept(plan)
                most = max(most, shards + waiting)
                continue
            shards += kept(plan, sharded=True)
            most = max(most, shards + waiting)
            # A bucket is let go when its shard has been copied.
            waiting -= kept(plan)
    return most


def numel(plan: BucketPlan, sharded: bool = False) -> int:
    return plan.layout.shard_numel if sharded else plan.layout.numel


def kept(plan: BucketPlan, sharded: bool = False, width: int | None = None) -> int:
    """Bytes of a buffer as long as the bucket, or as its shard; of its own dtype, or of values so many bytes wide."""
    return numel(plan, sharded) * (plan.itemsize if width is None else width)


def parameter_bytes(
    plans: Sequence[BucketPlan], stage: int, precision: Precision | None, offload: Offload
) -> Iterator[tuple[str, int]]:
    """Where parameters rest, and their bytes, bucket by bucket; the persistent ones first."""
    for plan in plans:
        if plan.persistent:
            yield "parameters", kept(plan)
    plans = [plan for plan in plans if not plan.persistent]
    away = set(offload.shards_on_disk(plan.layout.shard_numel for plan in plans))
    for number, plan in enumerate(plans):
        cast = precision is not None and precision.sharded_main and plan.itemsize == precision.itemsize("params")
        width = precision.itemsize("main_params") if precision is not None and cast else plan.itemsize
        nbytes = kept(plan, sharded=stage >= 3, width=width)
        if offload.parameters != "disk":
            yield ledger(offload.parameters, "parameters"), nbytes
        elif number in away:
            yield ledger("disk", "parameters"), round_up_to_page(nbytes)
        else:
            yield ledger("host", "parameters"), nbytes


def optimizer_bytes(
    plans: Sequence[BucketPlan], rank: int | None, state_size: StateSize, precision: Precision | None, offload: Offload
) -> Iterator[tuple[str, int]]:
    """Where states rest, and their bytes: those of one rank's segments, or of whole buckets. Step counters stay in
    memory."""
    segments = ((at, segment, plan.layout.align) for at, plan in enumerate(plans) for segment in plan.segments(rank))
    kinds = {(plan.itemsize, plan.persistent) for plan in plans}
    formats = {
        (width, persistent): format_of(NATIVE[width], precision, offload, state_size.names, persistent)
        for width, persistent in kinds
    }
    memory = "host" if offload.optimizer == "disk" else offload.optimizer
    if offload.optimizer != "disk":
        # Cuts lie where blocks of values do, so parts take what the whole takes.
        for at, segment, parts in count_parts(segments, sub_group_limit(precision, offload)):
            nbytes = formats[plans[at].itemsize, plans[at].persistent].nbytes(segment.numel)
            yield ledger(memory, "optimizer_states"), state_size.bytes_per_tensor * parts + nbytes
        return
    for group in sub_groups(segments, sub_group_limit(precision, offload)):
        nbytes = 0
        for at, segment in group:
            nbytes += formats[plans[at].itemsize, plans[at].persistent].nbytes(segment.numel)
        yield ledger(memory, "optimizer_states"), state_size.bytes_per_tensor * len(group)
        yield ledger("disk", "optimizer_states"), round_up_to_page(nbytes)


NATIVE = {1: torch.uint8, 2: torch.bfloat16, 4: torch.float32, 8: torch.float64, 16: torch.complex128}
"""A dtype of each width in bytes. Without a precision states have the dtype of the parameters, and a plan knows only
its width."""


def walk_of(plans: Sequence[BucketPlan], resident: Collection[str], limits: Stage3Limits, prefetch: bool) -> Walk:
    """A forward and a backward at stage 3: what is gathered when, with `resident` units to the end of the forward."""
    units = by_unit(plans)
    trains = [any(plan.trainable for plan in unit) for unit in units]
    away = [[plan for plan in unit if not plan.persistent] for unit in units]
    return Walk(
        [sum(numel(plan) for plan in unit) for unit in away],
        [sum(kept(plan) for plan in unit) for unit in away],
        limits,
        prefetch,
        trains.index(True) if any(trains) else len(units),
        [at for at, unit in enumerate(units) if unit[0].unit in resident],
    )


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
