"""What an engine refuses before it touches the model, and the losses that it refuses before backward."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from weakref import WeakSet

import torch
from torch import nn

from zerolab.collectives import Collectives
from zerolab.collectives.agree import compare_lines, told
from zerolab.errors import InputError
from zerolab.flat import BucketPlan
from zerolab.flat.values import address, has_values, same_device, values_here
from zerolab.memory import StateSize
from zerolab.memory.predict import predict
from zerolab.offload.files import check_folder
from zerolab.offload.places import Offload
from zerolab.precision.recipe import Precision
from zerolab.precision.scaler import LossScaler
from zerolab.zero.units import Unit

NORMS = (nn.modules.batchnorm._BatchNorm, nn.modules.instancenorm._InstanceNorm)

engaged: WeakSet[nn.Module] = WeakSet()
"""Models whose parameters an engine holds: two engines would move each other's."""


def check_model(model: nn.Module, device: torch.device) -> None:
    """Refuse a model that is elsewhere, in use, or half-way through a step; or in which two parameters overlap."""
    if not isinstance(model, nn.Module):
        raise InputError(f"the model is of type {type(model).__name__}; give an nn.Module")
    if model in engaged:
        raise InputError(
            f"this {type(model).__name__} is in an engine already, or was left without its parameters by stage 3; "
            "build a new model, or close() the other engine first"
        )
    for name, parameter in model.named_parameters():
        if isinstance(parameter, nn.parameter.UninitializedParameter):
            raise InputError(f"{name} has no shape yet; run one batch through the model before it is wrapped")
    names: dict[int, str] = {}
    virtual = not values_here()
    for name, parameter in model.named_parameters():
        if parameter.is_meta:
            continue
        if not same_device(parameter.device, device):
            raise InputError(f"{name} is on {parameter.device}, the ranks are on {device}; call model.to(comm.device)")
        if virtual and has_values(parameter):
            raise InputError(
                f"{name} is in this machine's memory, and the tensors of a virtual world have no values; build the "
                "model inside the rank function, where it takes none"
            )
        if parameter.grad is not None:
            raise InputError(
                f"{name} already has a gradient; wrap the model before the first backward, or zero_grad() it"
            )
        place = address(parameter)
        if parameter.numel() and place in names:
            raise InputError(
                f"{name} and {names[place]} are two parameters in one memory, which would be parted; tie them by "
                "using the same nn.Parameter in both places"
            )
        names[place] = name
    for name, buffer in model.named_buffers():
        if not buffer.is_meta and not same_device(buffer.device, device):
            raise InputError(f"{name} is on {buffer.device}, the ranks are on {device}; call model.to(comm.device)")


def check_alike(groups: Iterable[Collectives | None], units: Iterable[Unit], options: Mapping[str, Any]) -> None:
    """Raise a MismatchError, on every rank, if ranks build engines that differ in a parameter, its place or an option.
    A collective."""
    lines = [f"{name}={value!r}" for name, value in options.items() if " at 0x" not in repr(value)]
    for bucket in (bucket for unit in units for bucket in unit.buckets):
        plan = bucket.plan
        for slot, group in zip(plan.layout.slots, plan.groups, strict=True):
            how = [f"unit {plan.unit}", str(bucket.dtype), "trains" if plan.trainable else "frozen"]
            how += [] if " at 0x" in repr(group) else [repr(group)]
            lines.append(f"{slot.name} {list(slot.shape)} at {slot.start} ({', '.join(how)})")
    for comm in groups:
        if comm is not None:
            compare_lines(
                comm,
                lines,
                "the ranks build different engines ({listed}); make the same model with the same options on every rank",
            )


def check_lookups(model: nn.Module, ranks: int) -> None:
    """Refuse what writes to parameters in a forward, each rank to the rows that its own part of the batch names."""
    for name, module in model.named_modules():
        limit = getattr(module, "max_norm", None)
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and limit is not None and ranks > 1:
            raise InputError(
                f"{name or 'the model'} has max_norm={limit:g}, by which a forward writes to the rows it looks up, "
                "on each rank others; leave it out, and scale the rows that are too long between steps, inside "
                "`with engine.summon_full_params():`"
            )


def check_replicas(comm: Collectives, replicate: Collectives | None) -> None:
    """Raise an InputError, on every rank of `replicate`, unless all of them hold the same shard, out of equally many. A
    collective: all of them call it."""
    if replicate is None:
        return
    rows = told(replicate, [comm.rank, comm.size], "replicate")
    if any(row != rows[0] for row in rows):
        listed = ", ".join(
            f"rank {rank} shard {shard} of {size}" for rank, (shard, size) in zip(replicate.ranks, rows, strict=True)
        )
        raise InputError(
            f"the ranks of replicate hold different shards ({listed}); make both groups from one comm, "
            f"as comm.split(comm.rank // {comm.size}) to shard over {comm.size} ranks and comm.split(comm.rank % "
            f"{comm.size}) to replicate"
        )


def check_disk(
    rank: int,
    stage: int,
    plans: Sequence[BucketPlan],
    state_size: StateSize,
    precision: Precision | None,
    offload: Offload,
) -> None:
    """Refuse buffers too short for a rank's shards, and a folder that cannot take its files, while the model
    is as it was."""
    if offload.parameters == "disk" and offload.buffer_numel is not None:
        numels = [plan.layout.shard_numel for plan in plans if not plan.persistent]
        largest = max((numels[at] for at in offload.shards_on_disk(numels)), default=0)
        if offload.buffer_numel < largest:
            raise InputError(
                f"a buffer of {offload.buffer_numel} elements is shorter than the largest shard on disk, {largest} "
                "elements; make buffers larger, or buckets smaller (bucket_numel)"
            )
    if offload.on_disk and values_here():
        books = predict(plans, stage, state_size, precision, offload)
        check_folder(offload.folder, sum(of_rank[rank] for kind, of_rank in books.items() if kind.startswith("disk:")))


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


def check_loss(loss: Any) -> None:
    hint = "backward takes a scalar loss that requires gradients"
    if not isinstance(loss, torch.Tensor):
        raise InputError(f"{hint}, not {type(loss).__name__}; give what the model returned")
    if loss.numel() != 1:
        raise InputError(f"{hint}, not one of shape {tuple(loss.shape)}; reduce it with mean()")
    if not loss.requires_grad:
        raise InputError(
            f"{hint}, and this one does not; compute it outside no_grad(), from parameters that are not all frozen"
        )
