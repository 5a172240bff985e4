"""Bytes that a rank keeps, from a layout, padding included. Tests hold them to live storages, byte by byte."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import starmap

import torch

from zerolab.errors import InputError
from zerolab.flat import BucketPlan, Segment
from zerolab.offload.formats import StateSize, format_of, sub_group_limit
from zerolab.offload.groups import count_parts, round_up_to_page, sub_groups
from zerolab.offload.places import NO_OFFLOAD, Offload, check_places, ledger
from zerolab.precision.recipe import Precision, find_precision
from zerolab.zero.start import check_stage


def predict(
    plans: Sequence[BucketPlan],
    stage: int,
    state_size: StateSize,
    precision: Precision | str | None = None,
    offload: Offload = NO_OFFLOAD,
) -> dict[str, list[int]]:
    """Bytes of each kind of state that each rank keeps between two steps: {kind: [bytes by rank]}.

    A kind off the device has its place before its name ("host:optimizer_states"). Without a `precision` every state
    has its parameters' dtype. Frozen buckets have parameters only.
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
    offload: Offload = NO_OFFLOAD,
) -> dict[str, int]:
    """What `predict` says of one rank: {kind: bytes}."""
    check_plans(plans, stage)
    precision = find_precision(precision)
    check_places(stage, precision, offload)
    book = Counter({"parameters": 0, "gradients": 0, "optimizer_states": 0})
    for place, nbytes in parameter_bytes(plans, stage, precision, offload):
        book[place] += nbytes
    gradients = ledger("host" if stage >= 2 and offload.optimizer != "device" else "device", "gradients")
    width = precision.itemsize("main_grads") if precision else None
    book[gradients] += sum(kept(plan, stage >= 2, width) for plan in plans if plan.trainable)
    for place, nbytes in optimizer_bytes(plans, rank if stage >= 1 else None, state_size, precision, offload):
        book[place] += nbytes
    return dict(book)


def kept(plan: BucketPlan, sharded: bool = False, width: int | None = None) -> int:
    """Bytes of the bucket, or of its shard; of its own dtype, or of values so many bytes wide."""
    return (plan.layout.shard_numel if sharded else plan.layout.numel) * (plan.itemsize if width is None else width)


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
    """Where states rest, and their bytes, of one rank or of all. Step counters stay in memory."""
    segments = ((at, segment, plan.layout.align) for at, plan in enumerate(plans) for segment in plan.segments(rank))
    formats = {
        (width, persistent): format_of(NATIVE[width], precision, offload, state_size.names, persistent)
        for width, persistent in {(plan.itemsize, plan.persistent) for plan in plans}
    }

    def nbytes(at: int, segment: Segment) -> int:
        return formats[plans[at].itemsize, plans[at].persistent].nbytes(segment.numel)

    limit = sub_group_limit(precision, offload)
    if offload.optimizer != "disk":
        # Cuts lie where blocks of values do, so parts take what the whole takes.
        for at, segment, parts in count_parts(segments, limit):
            counters = state_size.bytes_per_tensor * parts
            yield ledger(offload.optimizer, "optimizer_states"), counters + nbytes(at, segment)
        return
    for group in sub_groups(segments, limit):
        yield ledger("host", "optimizer_states"), state_size.bytes_per_tensor * len(group)
        yield ledger("disk", "optimizer_states"), round_up_to_page(sum(starmap(nbytes, group)))


NATIVE = {1: torch.uint8, 2: torch.bfloat16, 4: torch.float32, 8: torch.float64, 16: torch.complex128}
"""A dtype of each width in bytes: a plan does not know more of its parameters'."""


def ring_scratch(plan: BucketPlan) -> int:
    """Bytes that a ring reduce-scatter of the bucket receives into: one chunk on two ranks, two on more."""
    return kept(plan, sharded=True) * min(plan.layout.ranks - 1, 2)


def check_plans(plans: Sequence[BucketPlan], stage: int) -> None:
    check_stage(stage)
    if not plans:
        raise InputError("there are no bucket plans to predict from; give engine.plans")
