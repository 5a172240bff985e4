"""What an engine refuses before it touches the model, and the losses that it refuses before backward."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from weakref import WeakSet

import torch
from torch import nn

from zerolab.collectives import Collectives
from zerolab.errors import InputError
from zerolab.flat.values import address, has_values, same_device, values_here
from zerolab.zero.units import Unit

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
            comm.compare_lines(
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
