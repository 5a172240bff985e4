"""Stage 3: parameters that are asked for outside the forward of their unit, as in F.linear(x, other.weight), a list of
LoRA factors, or a penalty on all weights.

In a forward    the unit is gathered, and stays until another one is asked for, or the forward ends
In a loss       the same, while gradients are recorded
In backward     when the gradient of what was computed arrives: the unit is gathered again
Elsewhere       the values would be gone before they are read: refused

The result of such an operation may be a view of the parameter, and so may what a unit's forward returns. Its unit
stays as long as a variable or a graph of autograd holds one, at most until the next step. A view that a unit's forward
takes of its own parameters and keeps is not noticed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from threading import get_ident
from typing import Any

import torch
from torch import Tensor
from torch._C import DisableTorchFunctionSubclass

from zerolab.collectives import phase
from zerolab.errors import StateError
from zerolab.zero.units import Unit

WHERE = (
    "read or write it inside `with engine.summon_full_params():`, which gathers all units and which every rank enters, "
    "or take engine.state_dict()"
)


class OutOfUnitAccess:
    """Uses of one engine's parameters outside the forward of their unit."""

    def attach(self, engine: Any) -> None:
        self.schedule = engine.schedule
        # How often each parameter was asked for in all, by its title.
        self.counts: Counter[str] = Counter()
        # Units that the last operation asked for, which are not released yet.
        self.last: set[Unit] = set()

    def before_forward(self) -> None:
        schedule = self.schedule
        if schedule.shards_parameters and schedule.in_forward and schedule.thread != get_ident():
            raise StateError(
                "a forward began while another thread is in one, and stage 3 gathers units for one at a time: let "
                "threads take turns (threading.Lock), or take stage 2"
            )

    def fetch(self, unit: Unit, name: str, operation: str, together: set[Unit]) -> None:
        """An operation needs the elements of a parameter: gather its unit, or say where they are. It needs all the
        units `together`."""
        schedule, title = self.schedule, f"{name} (unit {unit.name})"
        if not (schedule.in_forward or schedule.in_backward or (schedule.in_loss and torch.is_grad_enabled())):
            raise StateError(
                f"{operation} was asked of {title}, which has elements in forward and backward only at stage 3: {WHERE}"
            )
        for before in self.last - together:
            schedule.release_unused(before)
        with phase("backward" if schedule.in_backward else "forward"):
            unit.gather()
        self.last = self.last & together | {unit}
        self.counts[title] += 1

    def used(self, unit: Unit, name: str, outputs: list[Tensor]) -> None:
        """The operation gave these tensors, which may be views."""
        schedule, views = self.schedule, self.after_unit(unit, outputs)
        computing = schedule.in_forward or schedule.in_backward
        if views and not computing and not any(view.requires_grad for view in views):
            raise StateError(f"a view of {name} would lose its elements to stage 3 before it is read: {WHERE}")
        if torch.is_grad_enabled():
            schedule.watch(schedule.order.enter(unit), outputs)
        elif not schedule.in_backward:
            # Perhaps in a reentrant checkpoint, whose gradients come through another graph.
            schedule.open.add(unit)

    def after_unit(self, unit: Unit, outputs: Iterable[Tensor]) -> list[Tensor]:
        """Which of these tensors are views of the unit's parameters; the unit stays for them."""
        # A sparse tensor has no storage, and a unit that is not here an empty one.
        storages = (bucket.whole.untyped_storage() for bucket in unit.gathered)
        here = {its._cdata for its in storages if its.nbytes()}
        views = [its for its in outputs if torch._C._has_storage(its) and its.untyped_storage()._cdata in here]
        if views:
            self.schedule.pinned[unit] = None
        return views

    def before_release(self) -> None:
        """A forward or a backward has ended: forget units, but those of which somebody has a view."""
        self.last = set()
        pinned = self.schedule.pinned
        for unit in [unit for unit in pinned if not has_views(unit)]:
            del pinned[unit]


def has_views(unit: Unit) -> bool:
    """Whether tensors besides the engine's have the memory of a unit: views in Python, and in graphs."""
    count = 0
    with DisableTorchFunctionSubclass():
        for bucket in unit.gathered:
            storage = bucket.whole.untyped_storage()
            own = sum(parameter.untyped_storage()._cdata == storage._cdata for parameter in bucket.parameters)
            # The bucket, its views and this very object have it, too.
            count += torch._C._storage_Use_Count(storage._cdata) - own - len(bucket.views) - 2
    return count > 0
