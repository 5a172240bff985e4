"""Any elementwise optimizer of torch on slices of flat buffers.

An elementwise optimizer (SGD, Adam, AdamW, RMSprop, ...) computes each element's update from that element's own
gradient and state, so a rank that holds a slice can update it alone, with the same bits as the whole would get.
One that looks at a tensor as a matrix or takes its norm (Adafactor, LBFGS, Muon) cannot be cut this way; `probe.py`
finds out before training.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from zerolab.errors import InputError
from zerolab.zero.probe import Factory, probe


def default_factory(lr: float, **options: Any) -> Factory:
    """AdamW, fused: one pass over parameter, gradient and both moments."""
    if not isinstance(lr, int | float) or not lr >= 0:
        raise InputError(f"lr is {lr!r}; give a learning rate of at least 0")
    return partial(torch.optim.AdamW, lr=lr, fused=True, **options)


def describe(factory: Factory) -> dict[str, Any]:
    """The name and the options of what a factory makes."""
    made = factory([{"params": [torch.zeros(1)]}])
    return {"optimizer": type(made).__name__, **{f"optimizer's {name}": value for name, value in made.defaults.items()}}


__all__ = ["Factory", "default_factory", "probe"]
