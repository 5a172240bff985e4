"""The optimizer that an engine has if nobody gives another."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from zerolab.zero.step import Factory


def default_factory(lr: float, **options: Any) -> Factory:
    """AdamW, fused: one pass over parameter, gradient and both moments."""
    return partial(torch.optim.AdamW, lr=lr, fused=True, **options)
