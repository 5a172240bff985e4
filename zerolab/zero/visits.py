"""Stage 3: parameters that are asked for outside the forward of their unit, as in F.linear(x, other.weight), a list of
LoRA factors, or a penalty on all weights.

In a forward    the unit is gathered, and stays until another one is asked for, or the forward ends
In a loss       the same, while gradients are recorded
In backward     when the gradient of what was computed arrives: the unit is gathered again. Where that was a view of the
                parameter nobody knows who uses it, so the unit is gathered when backward begins, and stays
Elsewhere       the values would be gone before they are read: refused
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import torch

from zerolab.collectives import phase
from zerolab.errors import StateError
from zerolab.zero.units import Unit
from zerolab.zero.wrapped import HERE, no_elements, refuse_written

if TYPE_CHECKING:
    from zerolab.zero.lifetimes import Lifetimes


class Visits:
    """What one engine's parameters are asked for from outside."""

    def __init__(self, lifetimes: Lifetimes) -> None:
        self.lifetimes = lifetimes
        self.stage = lifetimes.stage
        # How often a parameter was asked for in all, by name.
        self.counts: Counter[str] = Counter()
        # Units of which the graph may have a view until backward has ended, and a forward without one until its end.
        self.viewed: dict[Unit, None] = {}
        self._lent: set[Unit] = set()
        # Units asked for in this forward, the last one of which is not released yet.
        self._asked: dict[Unit, None] = {}
        self._last: Unit | None = None

    @property
    def _computing(self) -> bool:
        return self.lifetimes.in_forward or self.lifetimes.in_backward

    @property
    def welcome(self) -> bool:
        """Whether it is a time to ask: in a forward, in its loss, in a backward."""
        return self._computing or (self.lifetimes.in_loss and torch.is_grad_enabled())

    def fetch(self, unit: Unit, title: str, operation: str) -> None:
        """An operation needs the elements of a parameter: gather its unit, or say where they are."""
        if not self.welcome:
            raise StateError(no_elements(operation, title))
        if self._last is not None and self._last is not unit:
            self.lifetimes.release_after_visit(self._last)
        with phase("backward" if self.lifetimes.in_backward else "forward"):
            self.stage.gather(unit)
        self._last = unit
        self._asked[unit] = None
        self.counts[title] += 1

    def used(self, unit: Unit, title: str, outputs: list[torch.Tensor]) -> None:
        """The operation gave these tensors, which may be views."""
        places = {bucket.whole.untyped_storage().data_ptr() for bucket in unit.buckets}
        views = [tensor for tensor in outputs if tensor.untyped_storage().data_ptr() in places]
        if views and not self._computing and not any(view.requires_grad for view in views):
            raise StateError(f"a view of {title} would lose its elements to stage 3 before it is read: {HERE}")
        if self.lifetimes.in_backward:
            return
        if not torch.is_grad_enabled():
            self._lent |= {unit} if views else set()
            return
        if views:
            self.viewed[unit] = None
        for node in {tensor.grad_fn for tensor in outputs if tensor.grad_fn is not None}:
            node.register_prehook(lambda _: self._return(unit))

    def has_views(self, unit: Unit) -> bool:
        """Whether somebody may have a view of a parameter of the unit."""
        return unit in self.viewed or unit in self._lent

    def _return(self, unit: Unit) -> None:
        with phase("backward"):
            self.stage.gather(unit)
        self.lifetimes.returned(unit)

    def begin_backward(self) -> None:
        with phase("backward"):
            for unit in self.viewed:
                self.stage.gather(unit)

    def end_forward(self) -> None:
        asked, self._asked, self._last = list(self._asked), {}, None
        self._lent.clear()
        for unit in asked:
            for bucket in unit.buckets:
                refuse_written(bucket.parameters)

    def end_backward(self) -> None:
        self._asked, self._last = {}, None
        self.viewed.clear()
