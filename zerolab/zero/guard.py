"""What may be attached to an engine from outside: the engine calls it, and knows nothing of what it does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from zerolab.zero.bucket import Bucket
from zerolab.zero.units import Unit


class Guard:
    """Moments of an engine's life. Each method may raise, which ends the call that it is told of."""

    def attach(self, engine: Any) -> None:
        """The engine is complete; its parameters are views of buckets."""

    def detach(self, engine: Any) -> None:
        """The engine is closed."""

    def before_call(self) -> None:
        """The engine is called."""

    def before_forward(self, model: nn.Module) -> None:
        """The model's forward begins."""

    def after_forward(self, outputs: Sequence[torch.Tensor]) -> None:
        """It has ended, with these tensors; none if it failed."""

    def before_backward(self) -> None:
        """A backward is about to begin."""

    def after_backward(self) -> None:
        """It has ended, or failed."""

    def before_step(self) -> None:
        """A step is about to begin, or parameters are about to be overwritten."""

    def before_read(self) -> None:
        """Parameters are about to be saved, or handed out whole."""

    def before_update(self) -> None:
        """The optimizer is about to update what this rank owns."""

    def new_values(self) -> None:
        """Parameters have new values: by a step, or because they were overwritten."""

    def lend(self, unit: Unit) -> None:
        """The gathered parameters of a unit may be used by everybody from now on."""

    def take_back(self, unit: Unit) -> None:
        """And no longer."""

    def after_unit(self, unit: Unit, outputs: Sequence[torch.Tensor]) -> None:
        """A module of the unit gave these tensors."""

    def before_release(self) -> None:
        """All units are about to be released that nobody needs."""

    def published(self, unit: Unit, buckets: Sequence[Bucket]) -> None:
        """The step returns while new parameters of these buckets are on their way."""

    def arrived(self, buckets: Sequence[Bucket]) -> None:
        """They are here."""
