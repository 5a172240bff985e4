"""When a value is the right one, and in few words how it differs."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from zerolab.course.judge.case import Other

Tensor = torch.Tensor
Tolerance = float | Callable[[torch.dtype], float]
"""How far numbers may be off, in absolute and in relative terms; `by_dtype` is one that knows the dtype."""


NEARLY = 1e-9
"""How near a float of a plain function is to the right one, in relative terms."""


def by_dtype(dtype: torch.dtype) -> float:
    """A tolerance for a few additions and a division of numbers near 1, in whatever order they are done."""
    return {torch.float64: 1e-12, torch.bfloat16: 5e-2, torch.float16: 5e-3}.get(dtype, 1e-5)


def tolerated(tolerance: Tolerance, dtype: torch.dtype) -> float:
    return tolerance(dtype) if callable(tolerance) else tolerance


def alike(value: object, want: object, tolerance: Tolerance = 0.0) -> bool:
    """Whether a value is the wanted one. Tensors have its dtype and shape, and its numbers to the tolerance; a whole
    number is no stand-in for True, nor a float for it, but where there is a tolerance for the float that is wanted. A
    list stands for a tuple, too, since JSON knows only lists."""
    return not difference(value, want, tolerance)


def difference(value: Any, want: Any, tolerance: Tolerance) -> str:
    """How a value differs, such as "12 of 40 wrong values"; '' where it does not."""
    if isinstance(want, Tensor) and isinstance(value, Tensor):
        if value.dtype != want.dtype:
            return f"{value.dtype}, not {want.dtype}"
        if value.shape != want.shape:
            return f"a tensor of shape {tuple(value.shape)}, not {tuple(want.shape)}"
        most = tolerated(tolerance, want.dtype)
        wrong = int((~torch.isclose(value, want, rtol=most, atol=most, equal_nan=True)).sum())
        return f"a tensor with {wrong} of {value.numel()} values wrong" if wrong else ""
    if isinstance(want, list | tuple) and isinstance(value, list | tuple):
        if len(value) != len(want):
            return f"{len(value)} things, not {len(want)}"
        for at, (one, due) in enumerate(zip(value, want, strict=True)):
            if said := difference(one, due, tolerance):
                return f"None as item {at}, not {short(due)}" if one is None else f"a wrong item {at}, {said}"
        return ""
    if isinstance(want, dict) and isinstance(value, dict) and value.keys() == want.keys():
        parts = ((key, difference(value[key], due, tolerance)) for key, due in want.items())
        return next((f"for {key!r} {said}" for key, said in parts if said), "")
    # A whole number may be larger than any float.
    number = isinstance(value, float) or (is_whole(value) and value.bit_length() < 1024)
    if isinstance(want, float) and (tolerance or math.isnan(want)) and number:
        near = math.isclose(value, want, rel_tol=tolerated(tolerance, torch.float64))
        right = near or (math.isnan(value) and math.isnan(want))
    else:
        right = type(value) is type(want) and bool(value == want)
    return "" if right else f"{short(value)}, not {short(want)}"


def is_whole(value: object) -> bool:
    """Whether it is a whole number, True and False left out."""
    return isinstance(value, int) and not isinstance(value, bool)


def short(value: Any) -> str:
    if isinstance(value, Other):
        return value.type_name
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    text = "nothing (None): end with return" if value is None else " ".join(str(listed(value)).split())
    return text if len(text) <= 80 else text[:77] + "..."


def listed(value: Any) -> Any:
    """Tuples as lists: an answer's came back as such, and both should look alike in a hint."""
    return [listed(item) for item in value] if isinstance(value, list | tuple) else value
