"""One step of an optimizer in several calls, each over some of its parameters.

An optimizer would look through all its parameters at each call, of which large models have thousands, so a call sees
those of its part alone. Some optimizers count steps in the options of a parameter group (`group["step"] += 1`), or
keep a running weight there: each call begins with the options as they were before the step, which counts once.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

Options = dict[str, Any]


class StepInParts:
    """The steps of one optimizer. Between `begin` and `end`, each `only(tensors)` surrounds a call of
    `optimizer.step()`."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._groups = optimizer.param_groups
        self._place = {tensor: place for place, group in enumerate(self._groups) for tensor in group["params"]}
        # Options by the place of their group.
        self._before: dict[int, Options] = {}
        self._after: dict[int, Options] = {}

    def begin(self, calls: int) -> None:
        """Before the first call of a step. If it is the only one, the options are as it leaves them."""
        self._before = {place: options_of(group) for place, group in enumerate(self._groups)} if calls > 1 else {}
        self._after = {}

    def end(self) -> None:
        """After the last call, a group has the options that the last call with a parameter of it left."""
        self._put(self._after)

    @contextmanager
    def only(self, tensors: Sequence[torch.Tensor]) -> Iterator[None]:
        """Around a call that updates these parameters alone."""
        self._put(self._before)
        whole = [group["params"] for group in self._groups]
        for group in self._groups:
            group["params"] = []
        for tensor in tensors:
            self._groups[self._place[tensor]]["params"].append(tensor)
        try:
            yield
            for place in self._before:
                if self._groups[place]["params"] or place not in self._after:
                    self._after[place] = options_of(self._groups[place])
        finally:
            for group, those in zip(self._groups, whole, strict=True):
                group["params"] = those

    def _put(self, options: Mapping[int, Options]) -> None:
        for place, its in options.items():
            put(self._groups[place], its)


def options_of(group: Mapping[str, Any]) -> Options:
    """A copy of a group's options."""
    return copy.deepcopy({name: value for name, value in group.items() if name != "params"})


def put(group: Options, options: Mapping[str, Any]) -> None:
    """Give a group these options and no others. A tensor stays the same object, which others may hold as well."""
    for name in group.keys() - options.keys() - {"params"}:
        del group[name]
    for name, value in options.items():
        there = group.get(name)
        if isinstance(there, torch.Tensor) and isinstance(value, torch.Tensor):
            there.copy_(value)
        else:
            group[name] = copy.deepcopy(value)
