"""The optimizer's own tensors between steps, and what others write to them there.

A rank's optimizer has its shard alone. What is written to it between steps, as schedule-free optimizers do in `eval()`
and `train()`, the other ranks do not have, and neither does the model where main parameters are kept apart. So it is
noticed, by torch's count of writes, and refused until `engine.publish()` hands it around.
"""

from __future__ import annotations

import torch

from zerolab.zero.optimizer_step import OptimizerStep


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

    def __init__(self, step: OptimizerStep) -> None:
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

    def write_back(self) -> None:
        """Write them to where parameters are stored, as a step does."""
        for segment in self.step.segments:
            self.step.write_back(segment)
        self.step.tier.flush()

    def _count(self) -> list[int]:
        return [segment.tensor._version for segment in self.step.segments]

    def _set_class(self, before: type[torch.Tensor], now: type[torch.Tensor]) -> None:
        for segment in self.step.segments:
            if type(segment.tensor) is before:
                segment.tensor.__class__ = now  # type: ignore[assignment]
