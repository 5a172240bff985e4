"""Read tensors that may have no values: on the meta device and in a virtual world a tensor has a shape, a dtype and a
device only. Whatever reads a value to decide by it asks here, and says what to assume where there is none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

Tensor = torch.Tensor


def has_values(tensor: Tensor) -> bool:
    """Whether a tensor's elements can be read."""
    return not isinstance(tensor, FakeTensor) and tensor.device.type != "meta"


def values_here() -> bool:
    """Whether tensors that are made now, by this thread, will have values: outside virtual worlds."""
    mode = torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE)
    return mode is None


def numbers(tensor: Tensor, instead: Sequence[Any]) -> list[Any]:
    """The elements of a 1-D tensor as Python's numbers; `instead` where they cannot be read."""
    return tensor.tolist() if has_values(tensor) else list(instead)


def address(tensor: Tensor) -> int:
    """Where a tensor's first element lies, in bytes. Of one without values a number that tells as well which tensors
    lie in one storage, and how far apart."""
    if has_values(tensor):
        return tensor.data_ptr()
    return (tensor.untyped_storage()._cdata << 64) + tensor.storage_offset() * tensor.element_size()


def same_device(one: torch.device, other: torch.device) -> bool:
    """Whether two devices are one, such as the second GPU; "cuda" without a number stands for each."""
    return one.type == other.type and (one.index == other.index or None in (one.index, other.index))
