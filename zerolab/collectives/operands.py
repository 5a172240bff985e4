"""What a call may be given. What would corrupt values or hang is refused on the rank that gave it, before any waits."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence

import torch

from zerolab.errors import InputError
from zerolab.flat.layout import chunk_bound
from zerolab.flat.values import address, same_device

Tensor = torch.Tensor
Number = int | None | Callable[[int], int | None]
"""A colour or a key of `split`: this rank's, or a function from any rank's number."""

DIVISIBLE = {torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex128, torch.complex64}
SUMMABLE = DIVISIBLE | {torch.complex32, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8}
"""Dtypes that torch adds."""


def check_tensor(name: str, tensor: Tensor, device: torch.device, flat: bool = False) -> None:
    """Refuse what is no plain memory on `device`, or, if `flat`, no 1-D tensor."""
    if not isinstance(tensor, torch.Tensor):
        raise InputError(f"{name} takes a tensor, not {type(tensor).__name__}; wrap the value in torch.tensor")
    if tensor.is_quantized or tensor.is_nested or tensor.layout is not torch.strided:
        raise InputError(
            f"{name} takes a dense tensor, not a sparse, nested or quantized one; call to_dense(), to_padded_tensor(0) "
            "or dequantize() first"
        )
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
    """Refuse a sum or mean that torch does not take, and an `average` that only looks true (a `ReduceOp`, a tensor)."""
    if not isinstance(average, bool):
        raise InputError(f"{name} takes average=True for the mean or False for the sum, not a {type(average).__name__}")
    if tensor.dtype not in (DIVISIBLE if average else SUMMABLE):
        what = "has no average in" if average else "cannot add"
        raise InputError(f"{name} {what} {tensor.dtype}; convert the tensor with .float(), or sum it as .int()")


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


def check_ranks(ranks: Sequence[int], size: int) -> list[int]:
    ranks = list(ranks)
    wrong = [rank for rank in ranks if not 0 <= rank < size or ranks.count(rank) > 1]
    if wrong or not ranks:
        raise InputError(f"a group of ranks {ranks}; name some of the ranks 0 to {size - 1}, each of them once")
    return ranks


def color_row(rank: int, color: Number, key: Number, name: str) -> list[int]:
    """What `rank` tells of its group: whether it has a colour, the colour, the key, and a hash of the name."""
    its = color(rank) if callable(color) else color
    place = key(rank) if callable(key) else key
    for what, number in (("color", its), ("key", place)):
        if not isinstance(number, int | None):
            raise InputError(f"{what} is {number!r}; give an integer, or None for no group or the order of ranks")
    return [int(its is not None), int(its or 0), rank if place is None else int(place), zlib.crc32(name.encode())]
