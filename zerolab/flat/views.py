"""Tensors on a layout: parameters that are views of one flat buffer, so that a module, a collective and an optimizer
see the same bytes. Tensors may have no values, in a virtual world: whoever reads one to decide by it asks here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch._C import DisableTorchFunctionSubclass, TensorBase
from torch._subclasses.fake_tensor import FakeTensor

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
    """Zero the padding: a buffer's bytes shall not depend on what its memory held before."""
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
    gradient = gradient_of(parameter)
    drop_gradients([parameter])
    return gradient


def drop_gradients(parameters: Iterable[Tensor]) -> None:
    drop = TensorBase.grad.__set__  # type: ignore[union-attr]
    with DisableTorchFunctionSubclass():
        for parameter in parameters:
            drop(parameter, None)


def has_values(tensor: Tensor) -> bool:
    """Whether a tensor's elements can be read."""
    return not isinstance(tensor, FakeTensor) and tensor.device.type != "meta"


def values_here() -> bool:
    """Whether tensors that are made now, by this thread, will have values: outside virtual worlds."""
    return torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is None


def numbers(tensor: Tensor, instead: Sequence[Any]) -> list[Any]:
    """The elements of a 1-D tensor as Python's numbers; `instead` where they cannot be read."""
    return tensor.tolist() if has_values(tensor) else list(instead)


def address(tensor: Tensor) -> int:
    """Where a tensor's first element lies, in bytes. Of one without values a number that says as much."""
    if has_values(tensor):
        return tensor.data_ptr()
    return (tensor.untyped_storage()._cdata << 64) + tensor.storage_offset() * tensor.element_size()


def same_device(one: torch.device, other: torch.device) -> bool:
    """Whether two devices are one, such as the second GPU; "cuda" without a number stands for each."""
    return one.type == other.type and (one.index == other.index or None in (one.index, other.index))
