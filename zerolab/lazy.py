"""Packages whose names are imported when they are first asked for: torch takes a second or two, a help page needs none.

    if TYPE_CHECKING:
        from zerolab.models.llama import Llama

    __all__ = ["Llama"]
    import_when_asked(__name__)

What stands under TYPE_CHECKING is for type checkers, and is read here, so that there is one list.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any


def import_when_asked(package: str) -> None:
    """Give a package the names in its `__all__`, each when it is first asked for."""
    sys.modules[package].__class__ = LazyPackage


class LazyPackage(ModuleType):
    """A package that imports what stands under TYPE_CHECKING in its file when it is asked for it."""

    def __getattr__(self, name: str) -> Any:
        if name not in self.__dict__.get("__all__", ()):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        self.__dict__.update({name: getattr(import_module(sources_of(self)[name]), name)})
        return self.__dict__[name]

    def __setattr__(self, name: str, value: Any) -> None:
        # Python puts a module into its package: not in the place of a name of ours that it may have.
        if not (isinstance(value, ModuleType) and name in self.__all__):
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*self.__dict__, *self.__all__})


def sources_of(package: ModuleType) -> dict[str, str]:
    """The names that the file of a package imports, each with the module that it is from."""
    import ast

    assert package.__file__ is not None
    with open(package.__file__, encoding="utf-8") as file:
        nodes = [node for node in ast.walk(ast.parse(file.read())) if isinstance(node, ast.ImportFrom)]
    return {alias.name: str(node.module) for node in nodes for alias in node.names}
