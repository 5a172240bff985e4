"""Torch's operations on the meta device without torch's compiler, whose import takes longer than a plan.

Many of them are functions in Python, which ask the compiler to pass them over and an algebra whether a size is a
symbol. Where sizes are numbers and nobody compiles, the answers are known. So while a trace is made, and no other
thread is there to notice, small modules that have them stand in the places of the large ones. Who asks one for anything
else gets the large one, imported at that moment: what is not known here costs time and changes no answer.

A module that is imported meanwhile may keep the small ones' answers for as long as the process lives. So this is for
the process of a command that plans and ends; where the library is imported, nothing stands in anything's place.
"""

from __future__ import annotations

import importlib
import operator
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import reduce
from types import ModuleType
from typing import Any

COMPILER, SYMBOLS = "torch._dynamo", "torch.fx.experimental.symbolic_shapes"
ALGEBRA, FUNCTIONS = "sympy", "torch.utils._sympy.functions"

_ends_soon = False


def ends_soon() -> None:
    """This process plans and then ends: nobody will compile in it."""
    global _ends_soon
    _ends_soon = True


class Symbol:
    """No number is one."""


def of_numbers() -> dict[str, Any]:
    """What is asked of a size that may be a symbol, answered of numbers."""

    def truth(value: Any, *_: Any, **__: Any) -> bool:
        return bool(value)

    names = ("guard_or_true", "guard_or_false", "guard_size_oblivious", "statically_known_true", "expect_true")
    return {
        **dict.fromkeys(names, truth),
        "has_guarding_hint": lambda _: True,
        "guarding_hint_or_throw": lambda value: value,
        "is_nested_int": lambda _: False,
        "sym_eq": operator.eq,
        "sym_and": lambda *values: reduce(operator.and_, values),
        "sym_or": lambda *values: reduce(operator.or_, values),
    }


class StandIn(ModuleType):
    """A module that knows a few answers, and is the one in whose place it stands for all others."""

    def __init__(self, name: str, end: Callable[[], None], answers: dict[str, Any]) -> None:
        super().__init__(name)
        self._end, self._answers = end, answers
        vars(self).update(answers)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        self._end()
        return getattr(importlib.import_module(self.__name__), name)

    def forget(self) -> None:
        """Know nothing from now on: who has kept this module hears from the one that it stood for."""
        for name in self._answers:
            vars(self).pop(name, None)


@contextmanager
def uncompiled() -> Iterator[None]:
    """Inside, torch's operations import neither compiler nor algebra, in a process that `ends_soon`. Does nothing in
    another one, nor beside other threads."""
    if not _ends_soon or threading.active_count() > 1:
        yield
        return
    passed_over: list[Any] = []

    def pass_over(function: Any, *_: Any, **__: Any) -> Any:
        passed_over.append(function)
        return function

    def end() -> None:
        for name, module in standing.items():
            module.forget()
            if sys.modules.get(name) is module:
                del sys.modules[name]
                package, _, attribute = name.rpartition(".")
                if package:
                    vars(sys.modules[package]).pop(attribute, None)
        for function in passed_over:
            # Torch keeps on each function what the compiler made of it; the compiler itself is asked again.
            vars(function).pop("__dynamo_disable", None)
        passed_over.clear()

    config = StandIn(f"{COMPILER}.config", end, {"error_on_nested_fx_trace": True})
    known = {
        COMPILER: {"disable": pass_over, "config": config},
        SYMBOLS: of_numbers(),
        ALGEBRA: {"Basic": Symbol},
        FUNCTIONS: {"Max": max},
    }
    standing = {name: StandIn(name, end, answers) for name, answers in known.items() if name not in sys.modules}
    for name, module in standing.items():
        sys.modules[name] = module
        package, _, attribute = name.rpartition(".")
        if package:
            setattr(importlib.import_module(package), attribute, module)
    try:
        yield
    finally:
        end()
