"""One step of an optimizer in several calls, each over some of its parameters.

An optimizer would look through all its parameters at each call, of which large models have thousands, so a call sees
those of its part alone. Some optimizers count steps in the options of a parameter group (`group["step"] += 1`), or
keep a running weight there: each call begins with the options as they were before the step, which counts once.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

Options = dict[str, Any]
Call = Callable[[Sequence[torch.Tensor]], None]


@contextmanager
def in_parts(optimizer: torch.optim.Optimizer, calls: int) -> Iterator[Call]:
    """One step in so many calls of the function that this gives, each of which updates some parameters alone. In the
    end a group has the options that the last call with a parameter of it left."""
    if calls < 2:
        yield lambda _: optimizer.step()
        return
    groups, after = optimizer.param_groups, dict[int, Options]()
    before, whole = [options_of(group) for group in groups], [group["params"] for group in groups]
    place_of = {tensor: place for place, tensors in enumerate(whole) for tensor in tensors}

    def call(tensors: Sequence[torch.Tensor]) -> None:
        for group, options in zip(groups, before, strict=True):
            put(group, options)
            group["params"] = []
        for tensor in tensors:
            groups[place_of[tensor]]["params"].append(tensor)
        try:
            optimizer.step()
            for place, group in enumerate(groups):
                if group["params"] or place not in after:
                    after[place] = options_of(group)
        finally:
            for group, those in zip(groups, whole, strict=True):
                group["params"] = those

    yield call
    for place, options in after.items():
        put(groups[place], options)


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
