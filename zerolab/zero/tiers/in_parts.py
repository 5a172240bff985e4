"""One step of an optimizer in several calls, each over some of its parameters.

An optimizer would look through all its parameters at each call, of which large models have thousands, so a call sees
those of its part alone. Some optimizers count steps in the options of a parameter group (`group["step"] += 1`), or
keep a running weight there: each call begins with the options as they were before the step, which counts once.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch

Options = dict[str, Any]


class StepInParts:
    """One step. `end` gives a group the options that the last call with a parameter of it left."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer, self._groups = optimizer, optimizer.param_groups
        self._whole = [group["params"] for group in self._groups]
        self._place = {tensor: place for place, whole in enumerate(self._whole) for tensor in whole}
        self._before = [options_of(group) for group in self._groups]
        self._after: dict[int, Options] = {}

    def call(self, tensors: Sequence[torch.Tensor]) -> None:
        """Update these parameters alone."""
        for group, before in zip(self._groups, self._before, strict=True):
            put(group, before)
            group["params"] = []
        for tensor in tensors:
            self._groups[self._place[tensor]]["params"].append(tensor)
        try:
            self._optimizer.step()
            for place, group in enumerate(self._groups):
                if group["params"] or place not in self._after:
                    self._after[place] = options_of(group)
        finally:
            for group, whole in zip(self._groups, self._whole, strict=True):
                group["params"] = whole

    def end(self) -> None:
        for place, options in self._after.items():
            put(self._groups[place], options)


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
