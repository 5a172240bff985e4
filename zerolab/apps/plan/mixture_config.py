"""The shape of a model with experts, in numbers alone."""

from __future__ import annotations

from dataclasses import dataclass

from zerolab.errors import InputError
from zerolab.models import LlamaConfig


@dataclass(frozen=True)
class MixtureConfig(LlamaConfig):
    """A Llama with `experts` feed-forwards a layer, of which each token takes `active`."""

    experts: int = 8
    active: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.active <= self.experts:
            raise InputError(f"active is {self.active} of {self.experts} experts; give 1 to {self.experts}")
