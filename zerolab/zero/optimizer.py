"""Any elementwise optimizer of torch on slices of flat buffers.

An elementwise optimizer (SGD, Adam, AdamW, RMSprop, ...) computes each element's update from that element's own
gradient and state, so a rank that holds a slice can update it alone, with the same bits as the whole would get.
One that looks at a tensor as a matrix or takes its norm (Adafactor, LBFGS, Muon) cannot be cut this way, which
`start/probe.py` finds out before training.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import ReferenceType

import torch

from zerolab.errors import StateError

if TYPE_CHECKING:
    from zerolab.zero.engine import ZeroEngine

Factory = Callable[..., torch.optim.Optimizer]


def default_factory(lr: float, **options: Any) -> Factory:
    """AdamW, fused: one pass over parameter, gradient and both moments."""
    return partial(torch.optim.AdamW, lr=lr, fused=True, **options)


def build(factory: Factory, groups: Sequence[Any], owned: Sequence[tuple[Any, torch.Tensor]]) -> torch.optim.Optimizer:
    """An optimizer over this rank's (group, tensor) pairs. It has a parameter group for each of `groups`, in their
    order, even if this rank owns nothing of it: a scheduler does the same on every rank."""
    tensors: dict[Any, list[torch.Tensor]] = {group: [] for group in groups}
    for group, tensor in owned:
        tensors[group].append(tensor)
    return factory([{"params": those, **dict(group)} for group, those in tensors.items()] or [{"params": []}])


def guarded(optimizer: torch.optim.Optimizer, engine: ReferenceType[ZeroEngine]) -> torch.optim.Optimizer:
    """The optimizer, which refuses to step by itself, since gradients come to it in `engine.step()` only, and whose
    zero_grad forgets the engine's."""

    # So torch's GradScaler goes straight to `step`, which says what to do in its place.
    optimizer._step_supports_amp_scaling = True  # type: ignore[attr-defined]

    def check(*_: Any) -> None:
        if (its := engine()) is not None and not its.stepping:
            if "grad_scale" in vars(optimizer):
                del optimizer.grad_scale, optimizer.found_inf  # type: ignore[attr-defined]
                raise StateError(
                    "torch's GradScaler finds no gradients, which are the engine's: leave it out, and say "
                    'ZeroEngine(precision="fp16"), which scales losses and skips steps on all ranks alike'
                )
            raise StateError(
                "engine.optimizer.step() has no gradients and would update nothing; call engine.step() instead"
            )

    def zero_grad(set_to_none: bool = True) -> None:
        if (its := engine()) is not None:
            its.zero_grad()

    def state_dict(*_: Any) -> Any:
        raise StateError(
            "engine.optimizer has the states of this rank's shards alone, without names; save by zerolab.checkpoint"
        )

    def load_state_dict(*_: Any) -> Any:
        raise StateError("engine.optimizer has flat shards, which no state_dict fits; load by zerolab.checkpoint")

    optimizer.register_step_pre_hook(check)
    optimizer.state_dict = state_dict  # type: ignore[method-assign]
    optimizer.load_state_dict = load_state_dict  # type: ignore[method-assign,assignment]
    optimizer.zero_grad = zero_grad  # type: ignore[method-assign]
    return optimizer
