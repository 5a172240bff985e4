"""Stage 3: parameters that are asked for outside the forward of their unit, as in F.linear(x, other.weight), a list of
LoRA factors, or a penalty on all weights.

In a forward    the unit is gathered, and stays until another one is asked for, or the forward ends
In a loss       the same, while gradients are recorded
In backward     when the gradient of what was computed arrives: the unit is gathered again
Elsewhere       the values would be gone before they are read: refused

The result of such an operation may be a view of the parameter, and so may what a unit's forward returns. Nobody knows
when a view is read, so its unit stays as long as a variable or a graph of autograd holds one; a step ends that, since
the values are others then. A view that a unit's forward takes of its own parameters and keeps is no visit, and is not
noticed. Only in a forward without gradients, where no graph holds views, are they counted before and after (on a CPU,
with collectives of our own): a forward that leaves one behind is refused.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterable, Sequence
from threading import get_ident

import torch
from torch import nn
from torch._C import DisableTorchFunctionSubclass

from zerolab.collectives import phase
from zerolab.errors import StateError
from zerolab.zero.guards.parameters import WHERE, no_elements, refuse_written
from zerolab.zero.schedule import GatherSchedule
from zerolab.zero.units import Unit


class OutOfUnitAccess:
    """Uses of one engine's parameters outside the forward of their unit."""

    def __init__(self, schedule: GatherSchedule) -> None:
        self.schedule = schedule
        # The thread whose forward goes on.
        self._thread: int | None = None
        # How often a parameter was asked for in all, by name.
        self.counts: Counter[str] = Counter()
        # Units asked for in this forward; those that the last operation asked for are not released yet.
        self._asked: dict[Unit, None] = {}
        self._last: set[Unit] = set()
        # Before a forward without gradients: how many views of each unit somebody had.
        self._before: dict[Unit, int] = {}

    @property
    def _computing(self) -> bool:
        return self.schedule.in_forward or self.schedule.in_backward

    @property
    def welcome(self) -> bool:
        """Whether it is a time to ask: in a forward, in its loss, in a backward."""
        return self._computing or (self.schedule.in_loss and torch.is_grad_enabled())

    def fetch(self, unit: Unit, title: str, operation: str, together: set[Unit]) -> None:
        """An operation needs the elements of a parameter: gather its unit, or say where they are. It needs all the
        units `together`."""
        if not self.welcome:
            raise StateError(no_elements(operation, title))
        for before in self._last - together:
            self.schedule.release_unused(before)
        with phase("backward" if self.schedule.in_backward else "forward"):
            unit.gather()
        self._last = self._last & together | {unit}
        self._asked[unit] = None
        self.counts[title] += 1

    def used(self, unit: Unit, title: str, outputs: list[torch.Tensor]) -> None:
        """The operation gave these tensors, which may be views."""
        views = self.given(unit, outputs)
        if views and not self._computing and not any(view.requires_grad for view in views):
            raise StateError(f"a view of {title} would lose its elements to stage 3 before it is read: {WHERE}")
        if self.schedule.in_backward or not torch.is_grad_enabled():
            # As in a reentrant checkpoint: the graph to which it belongs is not this forward's.
            self.schedule.open.add(unit)
        else:
            self.schedule.watch(self.schedule.order.enter(unit), outputs)

    def given(self, unit: Unit, tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
        """Which of the tensors are views of the unit's parameters; the unit stays for them."""
        views = views_among(tensors, unit)
        if views:
            self.schedule.pinned[unit] = None
        return views

    def forget(self) -> None:
        """Forget views that nobody has any more."""
        pinned = self.schedule.pinned
        for unit in [unit for unit in pinned if not holders(unit)]:
            del pinned[unit]

    def enter(self, model: nn.Module) -> None:
        """A forward begins. Refuse one beside that of another thread, and one of parameters that torch.func wraps."""
        if self._thread not in (None, get_ident()):
            raise StateError(
                "a forward began while another thread is in one, and stage 3 gathers units for one at a time: let "
                "threads take turns (threading.Lock), or take stage 2"
            )
        if not self.schedule.is_summoned and torch._C._functorch.maybe_current_level() is not None:
            for name, parameter in model.named_parameters():
                if torch._C._functorch.is_functorch_wrapped_tensor(parameter):
                    raise StateError(no_elements("a transform of torch.func", name))
        self._thread = get_ident()
        self._begin_forward()

    def _begin_forward(self) -> None:
        # Gloo and NCCL let go of what their own collectives were given when they like.
        comm = self.schedule.units[0].buckets[0].comm
        countable = comm.device.type == "cpu" and not comm.nominal
        counts = countable and not torch.is_grad_enabled()
        self._before = {unit: holders(unit) for unit in self.schedule.units} if counts else {}

    def end_forward(self, outputs: Sequence[torch.Tensor]) -> None:
        """`outputs` are those of the model; none if it failed."""
        asked, self._asked, self._last, self._thread = list(self._asked), {}, set(), None
        before, self._before = self._before, {}
        for unit in asked:
            for bucket in unit.gathered:
                refuse_written(bucket.parameters)
        if outputs and not any(tensor.requires_grad for tensor in outputs):
            for unit, count in before.items():
                self._refuse_kept(unit, count + len(self.given(unit, outputs)))

    def _refuse_kept(self, unit: Unit, most: int) -> None:
        """Refuse more views than so many, which a forward without gradients has not returned and not let go."""
        if holders(unit) > most:
            # A collective may still hold one for other ranks.
            unit.settle()
        if holders(unit) > most:
            # Or objects that are garbage and hold each other.
            gc.collect()
        if holders(unit) > most:
            raise StateError(
                f"a forward kept a view of a parameter of unit {unit.name}, which would lose its elements to stage 3: "
                "keep a copy, as weight.detach().clone() is one"
            )

    def end_backward(self) -> None:
        self._asked, self._last = {}, set()


def views_among(tensors: Iterable[torch.Tensor], unit: Unit) -> list[torch.Tensor]:
    # A sparse tensor has no storage, and a unit that is not here an empty one.
    storages = (bucket.whole.untyped_storage() for bucket in unit.gathered)
    here = {storage._cdata for storage in storages if storage.nbytes()}
    return [tensor for tensor in tensors if torch._C._has_storage(tensor) and tensor.untyped_storage()._cdata in here]


def holders(unit: Unit) -> int:
    """How many tensors besides the engine's have the memory of a unit: views in Python, and in graphs."""
    count = 0
    with DisableTorchFunctionSubclass():
        for bucket in unit.gathered:
            storage = bucket.whole.untyped_storage()
            own = sum(parameter.untyped_storage()._cdata == storage._cdata for parameter in bucket.parameters)
            # The bucket, its views and this very object have it, too.
            count += torch._C._storage_Use_Count(storage._cdata) - own - len(bucket.views) - 2
    return count
