"""Any elementwise optimizer of torch on slices of flat buffers.

An elementwise optimizer (SGD, Adam, AdamW, RMSprop, ...) computes each element's update from that element's own
gradient and state, so a rank that holds a slice can update it alone, with the same bits as the whole would get.
One that looks at a tensor as a matrix or takes its norm (Adafactor, LBFGS, Muon) cannot be cut this way; `probe`
finds out before training by updating a small tensor whole and in two halves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from zerolab.errors import InputError
from zerolab.memory import StateSize

Factory = Callable[..., torch.optim.Optimizer]


def default_factory(lr: float, **options: Any) -> Factory:
    """AdamW, fused: one pass over parameter, gradient and both moments."""
    if not isinstance(lr, int | float) or not lr >= 0:
        raise InputError(f"lr is {lr!r}; give a learning rate of at least 0")
    return partial(torch.optim.AdamW, lr=lr, fused=True, **options)


def build(factory: Factory, groups: Sequence[Any], owned: Sequence[tuple[Any, torch.Tensor]]) -> torch.optim.Optimizer:
    """An optimizer over this rank's (group, tensor) pairs. It has a parameter group for each of `groups`, in their
    order, also where this rank owns nothing of it: a scheduler does the same on every rank."""
    tensors: dict[Any, list[torch.Tensor]] = {group: [] for group in groups}
    for group, tensor in owned:
        tensors[group].append(tensor)
    return factory([{"params": those, **dict(group)} for group, those in tensors.items()] or [{"params": []}])


def probe(factory: Factory) -> StateSize:
    """What the optimizer keeps per element and per tensor; refuses one that is not elementwise."""
    if not callable(factory):
        raise InputError(
            f"optimizer is of type {type(factory).__name__}; give a function from parameter groups to an optimizer, "
            "such as functools.partial(torch.optim.AdamW, lr=1e-3)"
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        values, gradients = torch.randn(8), torch.randn(2, 8)
    whole, halves = values.clone(), values.clone()
    try:
        optimizer = _updated(factory, [whole], gradients)
        _updated(factory, list(halves.split(4)), gradients)
    except (RuntimeError, ValueError, TypeError) as error:
        raise InputError(
            f"the optimizer refused flat slices of parameters ({error}); give an elementwise one such as AdamW"
        ) from error
    if not torch.equal(whole, halves):
        raise InputError(
            f"{type(optimizer).__name__} is not elementwise (a tensor and its two halves are updated differently), so "
            "its state cannot be sharded by elements; use AdamW, Adam, SGD or another elementwise optimizer"
        )
    kept = {name: value for name, value in optimizer.state[whole].items() if torch.is_tensor(value)}
    long = tuple(name for name, value in kept.items() if value.shape == whole.shape)
    return StateSize(len(long), sum(value.nbytes for name, value in kept.items() if name not in long), long)


def _updated(factory: Factory, tensors: list[torch.Tensor], gradients: torch.Tensor) -> torch.optim.Optimizer:
    """Step twice (momentum and step counts show only then)."""
    optimizer = factory([{"params": tensors}])
    for gradient in gradients:
        for tensor, part in zip(tensors, gradient.split([len(t) for t in tensors]), strict=True):
            tensor.grad = part.clone()
        optimizer.step()
    return optimizer
