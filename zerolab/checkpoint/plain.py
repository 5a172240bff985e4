"""Python values as JSON and back: what schedulers, options and counters are made of. Nothing in it is executed.

JSON knows texts, numbers, true, false, null, lists and objects with texts as keys. The rest is written as an object of
one key that says what it is: {"tuple": [...]}, {"tensor": {...}}, {"pairs": [[key, value], ...]}, {"number": "inf"}.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from typing import Any

import numpy
import torch

from zerolab.errors import CheckpointError


def encode(value: Any, what: str) -> Any:
    """What JSON knows, for what it may not. Raises a CheckpointError that names what cannot be kept."""
    value = value.item() if isinstance(value, numpy.generic) else value
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, torch.Tensor) and value.numel() <= 1 << 16 and not value.is_complex():
        said = {"dtype": str(value.dtype).removeprefix("torch."), "shape": list(value.shape)}
        return {"tensor": {**said, "values": encode(value.detach().cpu().reshape(-1).tolist(), what)}}
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"number": str(float(value))}
    if isinstance(value, int):
        return int(value)
    if isinstance(value, list | tuple | deque):
        items = [encode(item, f"{what}[{at}]") for at, item in enumerate(value)]
        return {"tuple": items} if isinstance(value, tuple) else items
    if isinstance(value, set | frozenset):
        return {"set": [encode(item, what) for item in sorted(value)]}
    if type(value) in (dict, OrderedDict, defaultdict, Counter):
        mark = "counter" if isinstance(value, Counter) else "pairs"
        if mark == "pairs" and all(isinstance(key, str) and key not in _MADE for key in value):
            return {key: encode(item, f"{what}[{key!r}]") for key, item in value.items()}
        return {mark: [[encode(key, what), encode(item, f"{what}[{key!r}]")] for key, item in value.items()]}
    raise CheckpointError(
        f"{what} is a {type(value).__name__}, which a checkpoint cannot keep; leave it out, or keep numbers, texts, "
        "lists and dicts"
    )


def decode(value: Any) -> Any:
    """What `encode` was given."""
    if isinstance(value, list):
        return [decode(item) for item in value]
    if not isinstance(value, dict):
        return value
    found = {key: decode(item) for key, item in value.items()}
    mark = next(iter(found)) if len(found) == 1 else ""
    return _MADE[mark](found[mark]) if mark in _MADE else found


def _make_tensor(said: dict[str, Any]) -> torch.Tensor:
    return torch.tensor(said["values"], dtype=getattr(torch, said["dtype"])).reshape(said["shape"])


_MADE: dict[str, Callable[[Any], Any]] = {
    "tuple": tuple,
    "set": set,
    "number": float,
    "pairs": dict,
    "counter": lambda pairs: Counter(dict(pairs)),
    "tensor": _make_tensor,
}
