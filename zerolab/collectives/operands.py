"""What a collective may be given. All else is refused on the rank that gave it, before any rank waits."""

from __future__ import annotations

from collections.abc import Callable

import torch

from zerolab.errors import InputError
from zerolab.flat.layout import chunk_bound
from zerolab.flat.values import address, same_device

Tensor = torch.Tensor

SUMMABLE = {
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex128, torch.complex64, torch.complex32),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8),
}
"""Dtypes that torch adds."""


def check_tensor(name: str, tensor: Tensor, device: torch.device, flat: bool = False) -> None:
    """Refuse what would fail or corrupt on the way, before any rank waits for it."""
    if not isinstance(tensor, torch.Tensor):
        raise InputError(f"{name} takes a tensor, not {type(tensor).__name__}; wrap the value in torch.tensor")
    if tensor.is_quantized or tensor.is_nested:
        kind, remedy = ("quantized", "dequantize()") if tensor.is_quantized else ("nested", "to_padded_tensor(0)")
        raise InputError(f"{name} takes a plain tensor, not a {kind} one; call {remedy} first")
    if tensor.layout is not torch.strided:
        raise InputError(f"{name} takes a dense tensor, not one with layout {tensor.layout}; call to_dense() first")
    if not same_device(tensor.device, device):
        raise InputError(f"{name} runs on {device}, but the tensor is on {tensor.device}; move it with .to()")
    if tensor.is_conj() or tensor.is_neg():
        raise InputError(f"{name} reads memory, and this tensor is a lazy conjugate of it; call .resolve_conj() first")
    if flat and tensor.dim() != 1:
        raise InputError(
            f"{name} takes a 1-D tensor, not one of shape {tuple(tensor.shape)}; flatten it with .view(-1)"
        )
    if not tensor.is_contiguous():
        raise InputError(f"{name} takes a contiguous tensor, not strides {tensor.stride()}; call .contiguous() first")


def check_summable(name: str, tensor: Tensor, average: bool) -> None:
    if not isinstance(average, bool):
        given = "a tensor" if isinstance(average, torch.Tensor) else repr(average)
        raise InputError(
            f"{name} was given {given} for average; give average=True for the mean or False for the sum, which is all "
            "there is, and a tensor to write to as out=..."
        )
    if tensor.dtype is torch.bool:
        raise InputError(f"{name} of torch.bool has no sum; convert the tensor with .int() and compare with 0")
    if tensor.dtype not in SUMMABLE or (average and tensor.dtype is torch.complex32):
        raise InputError(f"{name} of {tensor.dtype}, which torch does not add up; convert it with .float() or .int()")
    if average and not (tensor.is_floating_point() or tensor.is_complex()):
        raise InputError(f"the average of {tensor.dtype} is no {tensor.dtype}; sum it, or convert it with .float()")


def check_out(name: str, out: Tensor | None, numel: int, like: Tensor) -> Tensor:
    """`out`, checked, or a new tensor of `numel` elements beside `like`."""
    if out is None:
        return torch.empty(numel, dtype=like.dtype, device=like.device)
    check_tensor(name, out, like.device, flat=True)
    if out.dtype != like.dtype or out.numel() != numel:
        raise InputError(
            f"{name} writes {numel} {like.dtype} elements, but out has {out.numel()} of {out.dtype}; leave it out or "
            "make it fit"
        )
    return out


def check_place(name: str, part: Tensor, whole: Tensor, rank: int, size: int) -> None:
    """Rank `rank`'s part may be its own chunk of `whole`, or lie apart from it; else one write destroys the other."""
    start, _ = chunk_bound(whole.numel(), size, rank)
    at = address(part) - address(whole)
    apart = at >= whole.nbytes or -at >= part.nbytes
    if not apart and at != start * whole.element_size():
        raise InputError(
            f"{name}: the shard of rank {rank} overlaps the whole tensor from element {at // whole.element_size()} "
            f"on, but its own chunk begins at {start}; give that chunk, or separate memory"
        )


def in_inference_mode(run: Callable[[], None]) -> Callable[[], None]:
    """`run`, where tensors of torch.inference_mode may be written, which is nowhere else."""

    def inside() -> None:
        with torch.inference_mode():
            run()

    return inside
