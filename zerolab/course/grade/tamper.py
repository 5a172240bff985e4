"""Notices when learner's code has put something of its own in the place of a function that the grade rests on."""

from __future__ import annotations

import builtins
import inspect
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import torch

Fingerprint = dict[tuple[str, str], int]


def fingerprint() -> Fingerprint:
    """The identity of every function and class of zerolab and of torch's front door, and of their methods."""
    kept = (property, staticmethod, classmethod)
    parts = ((owner, name, value) for owner, name, value in _parts() if callable(value) or isinstance(value, kept))
    return {(owner, name): id(value) for owner, name, value in parts}


def tampered(before: Fingerprint) -> list[str]:
    """Names of what was replaced or removed since, or put over a method. A module may gain names (lazy imports)."""
    now = fingerprint()
    replaced = {place for place, seen in before.items() if now.get(place) != seen}
    classes = {owner for owner, _ in before} - sys.modules.keys()
    covered = {place for place in now.keys() - before.keys() if place[0] in classes and not place[1].startswith("__")}
    return sorted(f"{owner}.{name}" for owner, name in replaced | covered)


def _parts() -> Iterator[tuple[str, str, Any]]:
    ours = [module for name, module in sys.modules.items() if name.split(".")[0] == "zerolab" and module]
    classes: dict[type, None] = {torch.Tensor: None}
    for module in [*ours, torch, torch.distributed, builtins]:
        for name, value in list(vars(module).items()):
            if isinstance(value, ModuleType):
                continue
            yield module.__name__, name, value
            if inspect.isclass(value) and value.__module__.split(".")[0] == "zerolab":
                classes[value] = None
    for kind in classes:
        for name, value in list(vars(kind).items()):
            yield f"{kind.__module__}.{kind.__qualname__}", name, value
