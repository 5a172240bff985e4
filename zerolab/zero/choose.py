"""What an engine is made of, by its settings: the stage, the way of its step, the scaler of its losses."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from zerolab.collectives import Collectives
from zerolab.errors import InputError
from zerolab.memory import StateSize
from zerolab.memory.states import check_places, check_stage
from zerolab.offload.formats import format_of
from zerolab.offload.places import Offload
from zerolab.precision.recipe import Precision
from zerolab.zero import optimizer as optimizers
from zerolab.zero.bucket import Bucket
from zerolab.zero.optimizer_step import OptimizerStep
from zerolab.zero.table import Rows, make_rows
from zerolab.zero.tier import DeviceTier
from zerolab.zero.tiers.disk_step import DiskStep
from zerolab.zero.tiers.encoded_step import EncodedStep

REDUCTIONS = ("reduce_scatter", "all_reduce")


def effective_stage(
    stage: int, comm: Collectives, reduction: str, precision: Precision | None, offload: Offload
) -> int:
    """The stage whose table an engine has: on one rank 0, if nothing else is to be had of a higher one."""
    check_stage(stage)
    check_places(stage, precision, offload)
    if reduction not in REDUCTIONS:
        raise InputError(f"reduction is {reduction!r}; choose one of {', '.join(REDUCTIONS)}")
    if comm.size == 1 and not offload.moves and not (precision is not None and precision.sharded_main):
        # One rank owns every shard. What the stages do beyond stage 0 would cost copies and save nothing.
        return 0
    return stage


def rows_of(
    bucket: Bucket, stage: int, reduction: str, offload: Offload, comm: Collectives, replicate: Collectives | None
) -> Rows:
    """The table of a bucket. A persistent one is stage 2's at stage 3."""
    sizes = [comm.size] if replicate is None else [replicate.size, comm.size]
    stages = [min(stage, 2) if bucket.persistent else stage]
    return make_rows(
        stages if replicate is None else [0, *stages],
        sizes,
        bucket.dtypes,
        bucket.trainable,
        (offload.parameters, offload.optimizer),
        reduction == "all_reduce" and stage == 1,
    )


def make_step(
    tier: DeviceTier,
    offload: Offload,
    buckets: Sequence[Bucket],
    factory: optimizers.Factory,
    precision: Precision | None,
    state_size: StateSize,
) -> OptimizerStep:
    if offload.optimizer == "disk":
        kind: type[OptimizerStep] = DiskStep
    elif all(stored_as_used(bucket, offload, precision, state_size) for bucket in buckets):
        kind = OptimizerStep
    else:
        kind = EncodedStep
    return kind(tier, offload, buckets, factory, precision, state_size)


def step_device(device: torch.device, offload: Offload) -> torch.device:
    """Where the optimizer steps: on the ranks' device, or on the host beside its states."""
    return device if offload.optimizer == "device" else torch.device("cpu")


def keeps_main(bucket: Bucket, offload: Offload, precision: Precision | None, state_size: StateSize) -> bool:
    """Whether a bucket has main parameters beside those that the model computes with."""
    form = format_of(bucket.dtype, precision, offload, state_size.names, bucket.persistent)
    return bucket.trainable and form.main is not None


def stored_as_used(bucket: Bucket, offload: Offload, precision: Precision | None, state_size: StateSize) -> bool:
    """Whether a bucket's states rest in memory as the step uses them."""
    if not bucket.trainable:
        return True
    form = format_of(bucket.dtype, precision, offload, state_size.names, bucket.persistent)
    return form.is_plain and (form.main is not None or bucket.dtypes.shard == form.step_dtype)
