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
    for slot, parameter in zip(layout.slots, parameters, strict=True):
        set_data(parameter, view(flat, slot))


def point_nowhere(parameters: Iterable[Tensor]) -> None:
    """Leave parameters without elements, so that no use of one can read freed memory."""
    with DisableTorchFunctionSubclass():
        for parameter in parameters:
            set_data(parameter, torch.empty(0, dtype=parameter.dtype, device=parameter.device))


def set_data(parameter: Tensor, data: Tensor) -> None:
    """`parameter.data = data`, also where the parameter's class guards that."""
    with DisableTorchFunctionSubclass():
        TensorBase.data.__set__(parameter, data)  # type: ignore[attr-defined]
