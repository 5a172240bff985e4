"""What an engine is made of, by its settings: the stage, the way of its step, the scaler of its losses."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from zerolab.collectives import Collectives
from zerolab.errors import InputError
from zerolab.flat.values import values_here
from zerolab.offload.files import check_folder
from zerolab.offload.formats import StateSize, check_places, format_of
from zerolab.offload.places import Offload
from zerolab.precision.recipe import Precision
from zerolab.precision.scaler import LossScaler
from zerolab.zero import optimizer as optimizers
from zerolab.zero.bucket import Bucket
from zerolab.zero.sharding import REDUCTIONS
from zerolab.zero.table import Dtypes, check_stage
from zerolab.zero.tier import DeviceTier
from zerolab.zero.tiers.disk_step import DiskStep
from zerolab.zero.tiers.encoded_step import EncodedStep
from zerolab.zero.tiers.stored_step import StoredStep

NORMS = (nn.modules.batchnorm._BatchNorm, nn.modules.instancenorm._InstanceNorm)


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


def check_replicas(comm: Collectives, replicate: Collectives | None) -> None:
    """Raise an InputError, on every rank of `replicate`, unless all of them hold the same shard, out of equally many. A
    collective: all of them call it."""
    if replicate is None:
        return
    rows = replicate.all_gather_ints([comm.rank, comm.size], "replicate")
    if any(row != rows[0] for row in rows):
        listed = ", ".join(
            f"rank {rank} shard {shard} of {size}" for rank, (shard, size) in zip(replicate.ranks, rows, strict=True)
        )
        raise InputError(
            f"the ranks of replicate hold different shards ({listed}); make both groups from one comm, "
            f"as comm.split(comm.rank // {comm.size}) to shard over {comm.size} ranks and comm.split(comm.rank % "
            f"{comm.size}) to replicate"
        )


def check_disk(buckets: Sequence[Bucket], names: Sequence[str], precision: Precision | None, offload: Offload) -> None:
    """Refuse buffers too short for a rank's shards, and a folder that cannot take its files, while the model is as it
    was. `names` are the optimizer's long states."""
    if offload.parameters == "disk" and offload.buffer_numel is not None:
        numels = [bucket.layout.shard_numel for bucket in buckets if not bucket.persistent]
        largest = max((numels[at] for at in offload.shards_on_disk(numels)), default=0)
        if offload.buffer_numel < largest:
            raise InputError(
                f"a buffer of {offload.buffer_numel} elements is shorter than the largest shard on disk, {largest} "
                "elements; make buffers larger, or buckets smaller (bucket_numel)"
            )
    if offload.on_disk and values_here():
        needed = 0
        for bucket in buckets:
            form = format_of(bucket.dtype, precision, offload, names, bucket.persistent)
            stored = bucket.rows.nbytes(bucket.layout.numel, form.nbytes)
            needed += sum(nbytes for kind, nbytes in stored.items() if kind.startswith("disk:"))
        check_folder(offload.folder, needed)


def check_kinds(model: nn.Module, precision: Precision | None) -> None:
    """Refuse parameters for which a precision says nothing, and modules for which torch has no kernel under it."""
    if precision is None:
        return
    for name, parameter in model.named_parameters():
        if parameter.dtype.is_complex and parameter.requires_grad:
            raise InputError(
                f"{name} is complex, and a precision says nothing of complex numbers; leave precision out, or keep the "
                "real and imaginary parts in two parameters"
            )
    for name, module in model.named_modules():
        dtype = precision.dtype("params")
        running = getattr(module, "running_mean", None)
        if isinstance(module, NORMS) and module.affine and running is not None and running.dtype != dtype:
            raise InputError(
                f"{name or 'the model'} keeps running statistics in {running.dtype}, which torch does not use with "
                f"parameters in {dtype}; take LayerNorm or GroupNorm, or say affine=False"
            )


def make_scaler(precision: Precision | None, scaler: LossScaler | None) -> LossScaler | None:
    if precision is not None and precision.scales_loss:
        return scaler or LossScaler()
    if scaler is not None:
        raise InputError("a loss scaler is given, but no state is fp16; leave it out, or choose precision fp16")
    return None


def make_step(
    tier: DeviceTier,
    offload: Offload,
    buckets: Sequence[Bucket],
    factory: optimizers.Factory,
    precision: Precision | None,
    state_size: StateSize,
) -> StoredStep:
    if offload.optimizer == "disk":
        kind: type[StoredStep] = DiskStep
    elif all(stored_as_used(bucket, offload, precision, state_size) for bucket in buckets):
        kind = StoredStep
    else:
        kind = EncodedStep
    return kind(tier, offload, buckets, factory, precision, state_size)


def step_device(device: torch.device, offload: Offload) -> torch.device:
    """Where the optimizer steps: on the ranks' device, or on the host beside its states."""
    return device if offload.optimizer == "device" else torch.device("cpu")


def stored_as_used(bucket: Bucket, offload: Offload, precision: Precision | None, state_size: StateSize) -> bool:
    """Whether a bucket's states rest in memory as the step uses them."""
    if not bucket.trainable:
        return True
    form = format_of(bucket.dtype, precision, offload, state_size.names, bucket.persistent)
    return form.is_plain and (form.main is not None or bucket.dtypes.shard == form.step_dtype)
