"""One step of an optimizer in several calls, each over some of its parameters.

An optimizer would look through all its parameters at each call, of which large models have thousands, so a call sees
those of its part and no others. Most optimizers count steps for each parameter. Some count them in the options of a
parameter group (`group["step"] += 1`), or keep a running weight there: every call begins with the options as they
were before the step, so that it counts once, however many calls it takes.
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
        self._optimizer = optimizer
        self._place = {id(tensor): place for place, group in enumerate(self._groups) for tensor in group["params"]}
        self._many = False
        self._before: list[Options] = []
        # By group, its options after the last call that had a parameter of it, or after any call if none had.
        self._after: dict[int, Options] = {}
        self._stepped: set[int] = set()

    @property
    def _groups(self) -> list[Options]:
        return self._optimizer.param_groups

    def begin(self, calls: int) -> None:
        """Before the first call of a step. Where it is the only one, the options are as it leaves them."""
        self._many = calls > 1
        self._before = [options_of(group) for group in self._groups] if self._many else []
        self._after, self._stepped = {}, set()

    def end(self) -> None:
        """After the last call."""
        for place, options in self._after.items():
            put(self._groups[place], options)

    @contextmanager
    def only(self, tensors: Sequence[torch.Tensor]) -> Iterator[None]:
        """Around a call that updates these parameters alone."""
        if self._after:
            for group, options in zip(self._groups, self._before, strict=True):
                put(group, options)
        whole = [group["params"] for group in self._groups]
        for group in self._groups:
            group["params"] = []
        for tensor in tensors:
            self._groups[self._place[id(tensor)]]["params"].append(tensor)
        try:
            yield
            for place, group in enumerate(self._groups if self._many else []):
                if group["params"] or place not in self._stepped:
                    self._after[place] = options_of(group)
                if group["params"]:
                    self._stepped.add(place)
        finally:
            for group, those in zip(self._groups, whole, strict=True):
                group["params"] = those


def options_of(group: Mapping[str, Any]) -> Options:
    """A group's options, which later writes to it do not change."""
    return {name: _copy(value) for name, value in group.items() if name != "params"}


def put(group: Options, options: Mapping[str, Any]) -> None:
    """Give a group these options and no others. A tensor stays the same object, which others may hold as well."""
    for name in group.keys() - options.keys() - {"params"}:
        del group[name]
    for name, value in options.items():
        there = group.get(name)
        if isinstance(there, torch.Tensor) and isinstance(value, torch.Tensor):
            there.copy_(value)
        else:
            group[name] = _copy(value)


def _copy(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    return copy.deepcopy(value) if isinstance(value, dict | list | set) else value
