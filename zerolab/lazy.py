"""Packages whose names are imported when they are first asked for: torch takes a second or two, a help page needs none.

    if TYPE_CHECKING:
        from zerolab.models.llama import Llama

    import_when_asked(__name__)

What stands under TYPE_CHECKING is for type checkers, and is read here, so that there is one list.
"""

from __future__ import annotations

import re
import sys
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING as TYPE_CHECKING
from typing import Any


def import_when_asked(package: str) -> None:
    """Give a package the names that its file imports under TYPE_CHECKING, each when it is first asked for."""
    sys.modules[package].__class__ = LazyPackage


class LazyPackage(ModuleType):
    """A package that imports a name when it is asked for it."""

    def __getattr__(self, name: str) -> Any:
        sources = sources_of(str(self.__file__))
        if name == "__all__":
            return [*sources]
        if name not in sources:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        self.__dict__[name] = getattr(import_module(sources[name]), name)
        return self.__dict__[name]

    def __setattr__(self, name: str, value: Any) -> None:
        # Python puts a module into its package: not in the place of a name of ours that it may have.
        if not (isinstance(value, ModuleType) and name in sources_of(str(self.__file__))):
            super().__setattr__(name, value)

    def __reduce__(self) -> tuple[Any, ...]:
        # As a module that a rank function uses, it travels by its name.
        return import_module, (self.__name__,)

    def __dir__(self) -> list[str]:
        return sorted({*self.__dict__, *sources_of(str(self.__file__))})


@cache
def sources_of(file: str) -> dict[str, str]:
    """The names that a package's file imports under TYPE_CHECKING, each with the module that it is from."""
    with open(file, encoding="utf-8") as opened:
        found = re.findall(r"^    from (\S+) import (\([^)]*\)|.*)", opened.read(), re.MULTILINE)
    return {name: module for module, names in found for name in re.findall(r"\w+", names)}
