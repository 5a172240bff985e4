"""What an engine refuses before it touches a model, since it would be wrong in silence."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from weakref import WeakSet

import torch
from torch import nn

from zerolab.collectives import Collectives
from zerolab.errors import InputError
from zerolab.flat.views import address, same_device
from zerolab.precision.recipe import Precision
from zerolab.zero.units import Unit

models_in_use: WeakSet[nn.Module] = WeakSet()
"""Models whose parameters an engine holds: two engines would move each other's."""


def check_model(model: nn.Module, device: torch.device, ranks: int = 1, precision: Precision | None = None) -> None:
    """Refuse a model that is elsewhere, in use or half-way through a step, or of which ranks would differ."""
    if model in models_in_use:
        raise InputError(
            f"this {type(model).__name__} is in an engine already, or was left without its parameters by stage 3; "
            "build a new model, or close() the other engine first"
        )
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if not tensor.is_meta and not same_device(tensor.device, device):
            raise InputError(f"{name} is on {tensor.device}, the ranks are on {device}; call model.to(comm.device)")
    names: dict[int, str] = {}
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            raise InputError(
                f"{name} already has a gradient; wrap the model before the first backward, or zero_grad() it"
            )
        other = names.setdefault(address(parameter), name)
        if parameter.numel() and other != name:
            raise InputError(
                f"{name} and {other} are two parameters in one memory, which would be parted; tie them by "
                "using the same nn.Parameter in both places"
            )
        if precision is not None and parameter.dtype.is_complex and parameter.requires_grad:
            raise InputError(
                f"{name} is complex, and a precision says nothing of complex numbers; leave precision out, or keep the "
                "real and imaginary parts in two parameters"
            )
    for name, module in model.named_modules():
        limit = getattr(module, "max_norm", None)
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and limit is not None and ranks > 1:
            raise InputError(
                f"{name or 'the model'} has max_norm={limit:g}, by which a forward writes to the rows it looks up, "
                "on each rank others; leave it out, and scale the rows that are too long between steps, inside "
                "`with engine.summon_full_params():`"
            )


def check_alike(
    comm: Collectives, replicate: Collectives | None, units: Iterable[Unit], options: Mapping[str, Any]
) -> None:
    """Raise a MismatchError, on every rank, if ranks build engines that differ in a parameter, its place or an option,
    or if ranks of `replicate` hold different shards. A collective."""
    lines = [f"{name}={value!r}" for name, value in options.items() if " at 0x" not in repr(value)]
    for bucket in (bucket for unit in units for bucket in unit.buckets):
        plan = bucket.plan
        kind = f"unit {plan.unit}, {bucket.dtype}, {'trains' if plan.trainable else 'frozen'}"
        for slot, group in zip(plan.layout.slots, plan.groups, strict=True):
            its = "" if " at 0x" in repr(group) else repr(group)
            lines.append(f"{slot.name} {list(slot.shape)} at {slot.start} ({kind}, {its})")
    differ = "the ranks build different engines ({listed}); make the same model with the same options on every rank"
    comm.compare_lines(lines, differ)
    if replicate is not None:
        size = comm.size
        differ += f", and both groups by comm.split: comm.rank // {size} to shard, comm.rank % {size} to replicate"
        replicate.compare_lines([f"shard {comm.rank} of {comm.size}", *lines], differ)
