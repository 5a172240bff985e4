"""What a function's head says that it returns, and whether it does."""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from zerolab.course.judge.same import short


def promised(answers: Sequence[Any]) -> Any:
    """The annotation of what a model answer returns; None where it is a class, or says nothing."""
    answer = answers[0] if answers else None
    if not isinstance(answer, types.FunctionType) or "return" not in answer.__annotations__:
        return None
    return typing.get_type_hints(answer)["return"]


KINDS = {int: (int, np.integer), float: (int, float, np.integer, np.floating), bool: (bool, np.bool_), str: (str,)}


def keeps(value: Any, promise: Any) -> bool:
    """Whether a value is what an annotation says; a list stands for a tuple, and a whole number for a float."""
    origin, parts = typing.get_origin(promise) or promise, typing.get_args(promise)
    if promise is Any:
        return True
    if origin in (typing.Union, types.UnionType):
        return any(keeps(value, part) for part in parts)
    if promise in KINDS:
        return isinstance(value, KINDS[promise]) and (promise is bool or not isinstance(value, bool | np.bool_))
    if origin is tuple and parts and parts[-1] is not Ellipsis:
        fits = isinstance(value, list | tuple) and len(value) == len(parts)
        return fits and all(keeps(one, part) for one, part in zip(value, parts, strict=True))
    if origin in (list, tuple):
        return isinstance(value, list | tuple) and all(keeps(one, part) for part in parts[:1] for one in value)
    if origin is dict:
        return isinstance(value, dict) and all(keeps(one, parts[1]) for one in value.values())
    return isinstance(value, promise) if isinstance(promise, type) else True


NAMES = {torch.Tensor: "tensor", int: "whole number", float: "number", str: "text"}


def in_words(promise: Any, several: bool = False) -> str:
    """An annotation as a learner reads it, of one value or of `several`."""
    origin, parts = typing.get_origin(promise) or promise, typing.get_args(promise)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(in_words(part) for part in parts)
    if promise in (bool, type(None)):
        return "True or False" if promise is bool else "nothing"
    name = NAMES.get(origin) or origin.__name__
    words = f"{name}s" if several else f"a {name}"
    if origin is dict:
        return f"{words} from {in_words(parts[0], True)} to {in_words(parts[1], True)}"
    if len({*parts}) == 1:
        count = f"{len(parts)} " if origin is tuple else ""
        return f"{words} of {count}{in_words(parts[0], True)}"
    each = [in_words(part) for part in parts]
    return f"{words} of {', '.join(each[:-1])} and {each[-1]}" if each else words


def held_to(promise: Any, fn: Callable[..., Any], unlike: list[str]) -> Callable[..., Any]:
    """`fn`, of which is noted in `unlike` what it returned that its head does not promise."""

    def called(*args: Any, **named: Any) -> Any:
        value = fn(*args, **named)
        if not keeps(value, promise):
            unlike.append(f"{short(value)}, and {in_words(promise)} is due")
        return value

    return fn if promise is None else called
