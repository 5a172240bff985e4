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
    origin, parts = typing.get_origin(promise), typing.get_args(promise)
    if promise is Any:
        return True
    if origin in (typing.Union, types.UnionType):
        return any(keeps(value, part) for part in parts)
    if promise is None or promise is type(None):
        return value is None
    if promise in KINDS:
        return isinstance(value, KINDS[promise]) and (promise is bool or not isinstance(value, bool | np.bool_))
    if origin is tuple and parts and parts[-1] is not Ellipsis:
        fits = isinstance(value, list | tuple) and len(value) == len(parts)
        return fits and all(keeps(one, part) for one, part in zip(value, parts, strict=True))
    if origin in (list, tuple) or promise is tuple:
        return isinstance(value, list | tuple) and all(keeps(one, part) for part in parts[:1] for one in value)
    if origin is dict:
        return isinstance(value, dict) and all(keeps(one, parts[1]) for one in value.values())
    if promise is list:
        return isinstance(value, list | tuple)
    return isinstance(value, promise) if isinstance(promise, type) else True


def in_words(promise: Any) -> str:
    """An annotation as a learner reads it."""
    if promise is torch.Tensor:
        return "a tensor"
    if typing.get_origin(promise) in (typing.Union, types.UnionType):
        return " or ".join(map(in_words, typing.get_args(promise)))
    if promise is type(None):
        return "nothing"
    names = {int: "a whole number", float: "a number", bool: "True or False", str: "a text", list: "a list"}
    return names.get(promise) or f"a {str(promise).replace('torch.', '').replace('typing.', '')}"


class Promised:
    """A function that notes what it returned first that its head does not promise."""

    def __init__(self, fn: Callable[..., Any], promise: Any) -> None:
        self.fn, self.promise, self.unlike = fn, promise, ""

    def __call__(self, *args: Any, **named: Any) -> Any:
        value = self.fn(*args, **named)
        if not self.unlike and not keeps(value, self.promise):
            self.unlike = f"{short(value)}, and {in_words(self.promise)} is due"
        return value
