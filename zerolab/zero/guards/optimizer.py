"""The optimizer's own tensors between steps, and what others write to them there.

A rank's optimizer has its shard alone. What is written to it between steps, as schedule-free optimizers do in `eval()`
and `train()`, the other ranks do not have, and neither does the model where main parameters are kept apart. So it is
noticed, by torch's count of writes, and refused until `engine.publish()` hands it around.
"""

from __future__ import annotations

from typing import Any
from weakref import ReferenceType

import torch

from zerolab.errors import StateError
from zerolab.zero.tiers.stored_step import StoredStep


class Owned(torch.Tensor):
    """A main parameter between steps. What is written through its `data` counts as written, which torch's own hides."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @property  # type: ignore[override]
    def data(self) -> torch.Tensor:
        return self.detach()

    @data.setter
    def data(self, new: torch.Tensor) -> None:
        self.detach().copy_(new)


class HandedOut:
    """The tensors of one engine's optimizer."""

    def __init__(self, step: StoredStep) -> None:
        self.step = step
        self.note()

    def note(self) -> None:
        """They are as the engine left them: from now on `written` tells of writes by others."""
        self._set_class(torch.Tensor, Owned)
        self._versions = self._count()

    def take_back(self) -> None:
        """Before a step: torch's optimizers are quickest with tensors of torch's own class."""
        self._set_class(Owned, torch.Tensor)

    def written(self) -> bool:
        """Whether others wrote to them, and the model may lack what they wrote. At stage 0 they may be the model's own
        memory."""
        apart = not self.step.stays or any(one.format.main is not None for one in self.step.segments)
        sharded = any(one.bucket.rows.owned for one in self.step.segments)
        return (apart or sharded) and self._versions != self._count()

    def _count(self) -> list[int]:
        return [segment.tensor._version for segment in self.step.segments]

    def _set_class(self, before: type[torch.Tensor], now: type[torch.Tensor]) -> None:
        for segment in self.step.segments:
            if type(segment.tensor) is before:
                segment.tensor.__class__ = now  # type: ignore[assignment]


def guarded(optimizer: torch.optim.Optimizer, engine: ReferenceType[Any]) -> torch.optim.Optimizer:
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
