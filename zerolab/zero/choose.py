"""What an engine is made of, by its settings: the stage, the way of its step, the scaler of its losses."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from zerolab.collectives import Collectives
from zerolab.errors import InputError
from zerolab.offload.formats import StateSize, check_places, format_of
from zerolab.offload.places import Offload
from zerolab.precision.recipe import Precision
from zerolab.zero.bucket import Bucket
from zerolab.zero.sharding import REDUCTIONS
from zerolab.zero.table import Dtypes, check_stage
from zerolab.zero.tiers.disk_step import DiskStep
from zerolab.zero.tiers.encoded_step import EncodedStep
from zerolab.zero.tiers.stored_step import StoredStep


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


def dtypes_from(precision: Precision | None) -> Dtypes | None:
    """The dtypes that a recipe gives the states of floating-point parameters."""
    if precision is None:
        return None
    of = precision.dtype
    shard = of("main_params") if precision.sharded_main else of("params")
    return Dtypes(of("params"), of("main_params"), of("grads"), of("reduce"), of("main_grads"), shard)


def step_kind(
    offload: Offload, buckets: Sequence[Bucket], precision: Precision | None, state_size: StateSize
) -> type[StoredStep]:
    """The way of the step, by where and how states are stored."""
    if offload.optimizer == "disk":
        return DiskStep
    plain = all(stored_as_used(bucket, offload, precision, state_size) for bucket in buckets)
    return StoredStep if plain else EncodedStep


def step_device(device: torch.device, offload: Offload) -> torch.device:
    """Where the optimizer steps: on the ranks' device, or on the host beside its states."""
    return device if offload.optimizer == "device" else torch.device("cpu")


def stored_as_used(bucket: Bucket, offload: Offload, precision: Precision | None, state_size: StateSize) -> bool:
    """Whether a bucket's states rest in memory as the step uses them."""
    if not bucket.trainable:
        return True
    form = format_of(bucket.dtype, precision, offload, state_size.names, bucket.persistent)
    return form.is_plain and (form.main is not None or bucket.dtypes.shard == form.step_dtype)
