"""Tensors on a layout: parameters that are views of one flat buffer, so that a module, a collective and an
optimizer see the same bytes."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch._C import DisableTorchFunctionSubclass, TensorBase

from zerolab.flat.layout import Layout, Slot

Tensor = torch.Tensor


def view(flat: Tensor, slot: Slot) -> Tensor:
    """The parameter of `slot` as a view of `flat` (1-D), in its own shape."""
    return flat[slot.start : slot.stop].view(slot.shape)


def shard_of(flat: Tensor, layout: Layout, rank: int) -> Tensor:
    """The shard of `rank`, as a view of `flat`, a buffer as long as the whole bucket."""
    start, stop = layout.shard(rank)
    return flat[start:stop]


def zero_gaps(flat: Tensor, layout: Layout) -> None:
    """Zero the padding, so that a buffer's bytes do not depend on what its memory held before."""
    for start, stop in layout.gaps():
        flat[start:stop].zero_()


@torch.no_grad()
def fill(flat: Tensor, layout: Layout, tensors: Iterable[Tensor]) -> None:
    """Copy tensors to their slots, in order, and zero the padding."""
    zero_gaps(flat, layout)
    for slot, tensor in zip(layout.slots, tensors, strict=True):
        view(flat, slot).copy_(tensor)


def point_at(flat: Tensor, layout: Layout, parameters: Iterable[Tensor]) -> None:
    """Make parameters views of `flat`. What they held before is not copied and, with its last owner, freed."""
    point(parameters, (view(flat, slot) for slot in layout.slots))


def nothings(parameters: Iterable[Tensor]) -> list[Tensor]:
    """For each parameter a tensor of its dtype and device, without elements: no use of it can read freed memory."""
    with DisableTorchFunctionSubclass():
        return [torch.empty(0, dtype=parameter.dtype, device=parameter.device) for parameter in parameters]


def point(parameters: Iterable[Tensor], tensors: Iterable[Tensor]) -> None:
    """`parameter.data = tensor` for each, also where the parameters' class guards that."""
    set_data = TensorBase.data.__set__  # type: ignore[attr-defined]
    with DisableTorchFunctionSubclass():
        for parameter, tensor in zip(parameters, tensors, strict=True):
            set_data(parameter, tensor)


def gradient_of(parameter: Tensor) -> Tensor | None:
    """The gradient that torch has left at a parameter."""
    with DisableTorchFunctionSubclass():
        return TensorBase.grad.__get__(parameter)  # type: ignore[union-attr, no-any-return]


def take_gradient(parameter: Tensor) -> Tensor | None:
    """The gradient that torch has left at a parameter, which has none after."""
    with DisableTorchFunctionSubclass():
        gradient: Tensor | None = TensorBase.grad.__get__(parameter)  # type: ignore[union-attr]
        TensorBase.grad.__set__(parameter, None)  # type: ignore[union-attr]
    return gradient


def drop_gradients(parameters: Iterable[Tensor]) -> None:
    drop = TensorBase.grad.__set__  # type: ignore[union-attr]
    with DisableTorchFunctionSubclass():
        for parameter in parameters:
            drop(parameter, None)
