"""Python values as JSON and back: what schedulers, options and counters are made of. Nothing in it is executed.

JSON knows texts, numbers, true, false, null, lists and objects with texts as keys. The rest is written as an object of
one key that says what it is: {"tuple": [...]}, {"tensor": {...}}, {"pairs": [[key, value], ...]}, {"number": "inf"}.
"""

from __future__ import annotations

import json
import math
from collections import Counter, OrderedDict, defaultdict, deque
from typing import Any

import numpy
import torch

from zerolab.errors import CheckpointError

_MARKS = ("tuple", "tensor", "pairs", "number", "counter", "set")


def dump(value: Any, what: str) -> str:
    """JSON text. Raises a CheckpointError that names what cannot be kept, such as a function."""
    return json.dumps(_encode(value, what), indent=1) + "\n"


def parse(text: str) -> Any:
    """The value of `dump`. Raises a ValueError for other text."""
    return _decode(json.loads(text))


def _encode(value: Any, what: str) -> Any:
    if value is None or isinstance(value, bool | str) or type(value) is int:
        return value
    if isinstance(value, torch.Tensor) and value.numel() <= 1 << 16 and not value.is_complex():
        said = {"dtype": str(value.dtype).removeprefix("torch."), "shape": list(value.shape)}
        return {"tensor": {**said, "values": _encode(value.detach().cpu().reshape(-1).tolist(), what)}}
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"number": str(float(value))}
    if isinstance(value, int):
        return int(value)
    if isinstance(value, numpy.generic):
        return _encode(value.item(), what)
    if isinstance(value, tuple):
        return {"tuple": [_encode(item, f"{what}[{at}]") for at, item in enumerate(value)]}
    if isinstance(value, list | deque):
        return [_encode(item, f"{what}[{at}]") for at, item in enumerate(value)]
    if isinstance(value, set | frozenset):
        return {"set": [_encode(item, what) for item in sorted(value)]}
    if type(value) in (dict, OrderedDict, defaultdict, Counter):
        mark = "counter" if isinstance(value, Counter) else "pairs"
        if mark == "pairs" and all(isinstance(key, str) and key not in _MARKS for key in value):
            return {key: _encode(item, f"{what}[{key!r}]") for key, item in value.items()}
        return {mark: [[_encode(key, what), _encode(item, f"{what}[{key!r}]")] for key, item in value.items()]}
    raise CheckpointError(
        f"{what} is a {type(value).__name__}, which a checkpoint cannot keep; leave it out, or keep numbers, texts, "
        "lists and dicts"
    )


def _decode(value: Any) -> Any:
    if isinstance(value, list):
        return [_decode(item) for item in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        ((mark, content),) = value.items()
        match mark:
            case "tuple":
                return tuple(_decode(content))
            case "set":
                return set(_decode(content))
            case "number":
                return float(content)
            case "pairs":
                return {_decode(key): _decode(item) for key, item in content}
            case "counter":
                return Counter({_decode(key): _decode(item) for key, item in content})
            case "tensor":
                dtype = getattr(torch, content["dtype"])
                return torch.tensor(_decode(content["values"]), dtype=dtype).reshape(content["shape"])
    return {key: _decode(item) for key, item in value.items()}
