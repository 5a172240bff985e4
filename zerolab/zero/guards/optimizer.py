"""The optimizer's own tensors between steps, and what others write to them there.

A rank's optimizer has its shard alone. What is written to it between steps, as schedule-free optimizers do in `eval()`
and `train()`, the other ranks do not have, and neither does the model where main parameters are kept apart. So it is
noticed, by torch's count of writes, and refused until `engine.publish()` hands it around.
"""

from __future__ import annotations

from typing import Any

import torch

from zerolab.errors import StateError


class Owned(torch.Tensor):
    """A main parameter between steps. What is written through its `data` counts as written, which torch's own hides."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @property  # type: ignore[override]
    def data(self) -> torch.Tensor:
        return self.detach()

    @data.setter
    def data(self, new: torch.Tensor) -> None:
        self.detach().copy_(new)


class OptimizerGuard:
    """The optimizer's own tensors, and what is asked of the optimizer by itself."""

    def attach(self, engine: Any) -> None:
        self._engine, step, optimizer = engine, engine.optimizer_step, engine.optimizer
        # What is written to the model's own memory, on all ranks alike, it has.
        apart = not step.stays or any(its.format.main or its.bucket.rows.owned for its in step.segments)
        self._segments = step.segments if apart else []
        self.new_values()
        # So torch's GradScaler goes straight to `step`.
        optimizer._step_supports_amp_scaling = True
        optimizer.register_step_pre_hook(self._check_step)
        optimizer.zero_grad = lambda set_to_none=True: engine.zero_grad()
        optimizer.state_dict = optimizer.load_state_dict = self._refuse_state

    def new_values(self) -> None:
        self._set_class(torch.Tensor, Owned)
        self._versions = self._count()

    def before_update(self) -> None:
        # Torch's optimizers are quickest with tensors of torch's own class.
        self._set_class(Owned, torch.Tensor)

    def before_read(self) -> None:
        """Refuse writes that the other ranks and the model do not have."""
        if self._versions != self._count():
            raise StateError(
                f"the tensors of {type(self._engine.optimizer).__name__} were written to between steps, as its eval() "
                "or train() may do, and the model does not have that on all ranks: call engine.publish() after it, on "
                "every rank; leave out offload and dtypes of states, with which these tensors are empty between steps"
            )

    before_call = before_backward = before_read

    def _count(self) -> list[int]:
        return [segment.tensor._version for segment in self._segments]

    def _set_class(self, before: type[torch.Tensor], now: type[torch.Tensor]) -> None:
        for segment in self._segments:
            if type(segment.tensor) is before:
                segment.tensor.__class__ = now

    def _check_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if not self._engine.stepping:
            for left in ("grad_scale", "found_inf"):
                vars(optimizer).pop(left, None)
            raise StateError(
                "engine.optimizer.step() has no gradients, which are the engine's: call engine.step() instead, and in "
                'place of torch\'s GradScaler say ZeroEngine(precision="fp16")'
            )

    def _refuse_state(self, *_: Any) -> Any:
        raise StateError("engine.optimizer has flat shards of this rank alone: save and load by zerolab.checkpoint")
