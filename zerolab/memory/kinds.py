"""What a storage can be, and who says so.

A tracker finds storages by itself, and their sizes; what they are for a `Labels` function tells it, at any time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import nn

KINDS = (
    "parameters",
    "gradients",
    "optimizer_states",
    "gathered_units",
    "gradient_buffers",
    "communication_buffers",
    "activations",
    "other",
    "step_buffers",
)
"""The kinds from parameters to optimizer_states live on from step to step. The others are transient: they come and go
within a step.

gathered_units         whole parameters of a unit, from its gathering to its release (stage 3)
gradient_buffers       gradients of this rank alone, on their way to be reduced
communication_buffers  made, or first written, by a collective
step_buffers           while the optimizer steps: copies of states that are kept in another dtype or place, and the
                       gradients in the dtype of the step
activations            made while gradients are recorded: forward, and recomputation inside backward
other                  gradients of activations, temporary results, what was there before and has no label

A kind with a place before it ("host:gradients") is in the ledger of that place. Where the device is the CPU, both
ledgers are of one memory. The host's alone has "host:swap_buffers", through which parameters pass to and from a disk,
and "host:text", a run's text where that is mapped from files.
"""

OFFLOADED = ("host:", "disk:")
"""How the names of offloaded kinds begin, which are in other ledgers than the device's."""

Labels = Callable[[], Mapping[str, Iterable["torch.Tensor | None"]]]
"""Names tensors by kind. Where two kinds name one storage, the first counts it."""


def model_labels(model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> Labels:
    """Labels for training in plain torch: the parameters, their `.grad`, the optimizer's state."""
    import torch

    def labels() -> dict[str, list[torch.Tensor | None]]:
        parameters = list(model.parameters())
        states = [value for state in optimizer.state.values() for value in state.values()] if optimizer else []
        return {
            "parameters": [*parameters],
            "gradients": [parameter.grad for parameter in parameters],
            "optimizer_states": [value for value in states if isinstance(value, torch.Tensor)],
        }

    return labels
