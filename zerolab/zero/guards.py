"""What keeps habits from going wrong in silence, attached to an engine from outside: docs/gestures.md has the list.

`ZeroEngine(..., guards=())` is without them: for models that use their weights inside their unit only, by a caller who
changes nothing else of model and optimizer. Steps are the same, bit for bit.

A model's parameters stay the same objects while an engine holds them; their class alone changes.

    Wrapped        its gradient and its memory are the engine's
    AwayParameter  its values are on their way, since a step has not waited (`overlap_gather`), or stage 3 has it in
                   shards. Who asks for elements waits, or has the unit gathered; not who has taken a view before

At stage 3 parameters may be asked for outside the forward of their unit, as in F.linear(x, other.weight).

    In a forward    the unit is gathered, and stays until another one is asked for, or the forward ends
    In a loss       the same, while gradients are recorded
    In backward     when the gradient of what was computed arrives: the unit is gathered again
    Elsewhere       the values would be gone before they are read: refused

The result of such an operation may be a view of the parameter, and so may what a unit's forward returns. Its unit
stays as long as a variable or a graph of autograd holds one, at most until the next step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from threading import get_ident
from typing import Any

import torch
from torch import Tensor, nn
from torch._C import DisableTorchFunctionSubclass, TensorBase
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_leaves

from zerolab.collectives import phase
from zerolab.errors import StateError
from zerolab.flat.views import drop_gradients, gradient_of
from zerolab.zero.bucket import Bucket
from zerolab.zero.schedule import COPY
from zerolab.zero.units import Unit

WHERE = "read or write it inside `with engine.summon_full_params():`, on every rank, or take engine.state_dict()"


def has_views(unit: Unit) -> bool:
    """Whether others have views of a unit's memory, in Python or in graphs."""
    count = 0
    with DisableTorchFunctionSubclass():
        for bucket in unit.gathered:
            storage = bucket.whole.untyped_storage()
            own = sum(parameter.untyped_storage()._cdata == storage._cdata for parameter in bucket.parameters)
            # The bucket, its views and this very object have it, too.
            count += torch._C._storage_Use_Count(storage._cdata) - own - len(bucket.views) - 2
    return count > 0


@dataclass
class ParameterInfo:
    """What a parameter knows of the engine that holds it.

    shaped   a tensor of its shape and dtype, without memory
    version  torch's count of writes in place (`_version`) when the engine last looked
    """

    name: str
    unit: Unit
    bucket: Bucket
    guard: ParameterGuard
    shaped: Tensor
    version: int

    def check_gradient(self, gradient: Tensor | None) -> None:
        if gradient is not None or self.bucket.gradients.any:
            raise StateError(
                f"the gradient of {self.name} is in the engine's buckets: bring it by engine.backward(loss), clip it "
                "by engine.clip_grad_norm_(), forget it by engine.zero_grad(), use it by engine.step()"
            )


class Wrapped(nn.Parameter):
    _info: ParameterInfo

    @property  # type: ignore[override]
    def grad(self) -> Tensor | None:
        gradient = gradient_of(self)
        if gradient is None:
            self._info.check_gradient(None)
        return gradient

    @grad.setter
    def grad(self, gradient: Tensor | None) -> None:
        self._info.check_gradient(gradient)
        drop_gradients([self])

    @property  # type: ignore[override]
    def data(self) -> Tensor:
        rows = self._info.bucket.rows
        if rows.keeps_main or rows.parameters.depth:
            # What is written here would be lost. A detached tensor tells of it, which torch's own hides.
            return self.detach()
        return TensorBase.data.__get__(self)  # type: ignore[attr-defined, no-any-return]

    @data.setter
    def data(self, new: Tensor) -> None:
        if new is self:
            return
        if (new.shape, new.dtype, new.device) != (self.shape, self.dtype, self.device):
            raise StateError(
                f"{self._info.name} cannot become {tuple(new.shape)} of {new.dtype} on {new.device}: cast or move a "
                "model before it is wrapped"
            )
        with torch.no_grad():
            # It may be another view of this very memory, such as the transposed one.
            self.copy_(new.clone())

    def __deepcopy__(self, memo: Any) -> Any:
        raise StateError(COPY)


# What is asked of a parameter that is away, by name.

SHAPES = {"shape", "size", "numel", "nelement", "nbytes", "ndim", "dim", "ndimension", "stride", "__len__"}
SHAPES |= {"is_floating_point", "is_complex", "element_size"}
"""What shape and dtype answer: a model counts its parameters so."""
HARMLESS = {"register_hook", "register_post_accumulate_grad_hook", "requires_grad_"}
VALUES = {"T", "mT", "H", "mH", "real", "imag", "data"}
"""Attributes that need elements. Others do not, nor what is HARMLESS; all else does."""
MOVES = {"to", "cpu", "cuda", "float", "double", "half", "bfloat16", "type"}
MOVES |= {"untyped_storage", "_has_compatible_shallow_copy_type"}
"""What may give the parameter itself, as model.to(device) for the device where it is, or nothing of its values."""


class AwayParameter(Wrapped):
    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", str(func))
        attribute = name in ("__get__", "__set__")
        name = getattr(func.__self__, "__name__", "") if attribute else name
        if name in SHAPES:
            return func(args[0]._info.shaped, *args[1:], **kwargs)
        if name in HARMLESS or (attribute and name not in VALUES):
            with DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        away = {id(leaf): leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, AwayParameter)}
        for parameter in away.values():
            # Where torch.compile meets a wait it ends its graph, and what waits runs uncompiled.
            parameter._info.guard.schedule.arrive(parameter._info.unit)
        sharded = [parameter for parameter in away.values() if isinstance(parameter, AwayParameter)]
        if not sharded:
            return func(*args, **kwargs)
        with DisableTorchFunctionSubclass():
            return operate(func, name, args, kwargs, sharded)


def operate(func: Any, name: str, args: Any, kwargs: Any, sharded: list[AwayParameter]) -> Any:
    if name in MOVES:
        found = func(*args, **kwargs)
        if found is args[0] or not isinstance(found, Tensor):
            return found
    infos = [parameter._info for parameter in sharded]
    for info in infos:
        info.guard.fetch(info.unit, info.name, name, {each.unit for each in infos})
    result = func(*args, **kwargs)
    for info in infos:
        info.guard.used(info.unit, info.name, [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)])
    return result


# Which of them a parameter is.

PLAIN, HERE, AWAY = range(3)
KINDS = (nn.Parameter, Wrapped, AwayParameter)
FAKES = (FakeTensor, *(type(kind.__name__, (kind, FakeTensor), {}) for kind in KINDS[1:]))
"""The same in a virtual world, where parameters have no values."""
FORMS: dict[type, tuple[type, ...]] = {form: forms for forms in (KINDS, FAKES) for form in forms}


def change_class(buckets: Iterable[Bucket], form: int) -> None:
    """Give parameters another form. One of a class of the user's own keeps it, without the guards."""
    for parameter in parameters_in(buckets):
        if forms := FORMS.get(type(parameter)):
            parameter.__class__ = forms[form]


def parameters_in(buckets: Iterable[Bucket]) -> list[Any]:
    return [parameter for bucket in buckets for parameter in bucket.parameters]


def take_written(parameters: Iterable[Any]) -> list[str]:
    """Names of those that were written to since their engine last looked, which it does now."""
    found = []
    with DisableTorchFunctionSubclass():
        for parameter in parameters:
            info = vars(parameter).get("_info")
            if info and parameter._version != info.version:
                info.version = parameter._version
                found.append(info.name)
    return found


class ParameterGuard:
    """Parameters, their gradients and memory, and at stage 3 their elements."""

    def attach(self, engine: Any) -> None:
        self.schedule = engine.schedule
        # How often each parameter was asked for in all outside the forward of its unit, by its title.
        self.counts: Counter[str] = Counter()
        self.last: set[Unit] = set()
        for unit in engine.units:
            for bucket in unit.buckets:
                for slot, parameter in zip(bucket.layout.slots, bucket.parameters, strict=True):
                    shaped = torch.empty(slot.shape, dtype=parameter.dtype, device="meta")
                    parameter._info = ParameterInfo(slot.name, unit, bucket, self, shaped, parameter._version)
            change_class(unit.buckets, HERE)
            change_class(unit.gathered, AWAY)
        self._model, self._buckets, self._all = engine.model, engine.buckets, parameters_in(engine.buckets)
        self._modules = list(engine.model.modules())
        self._found = self._parts()
        self._apart = parameters_in(bucket for bucket in engine.buckets if bucket.rows.keeps_main)
        self._sharded = parameters_in(bucket for unit in engine.units for bucket in unit.gathered)

    def detach(self, engine: Any) -> None:
        self.schedule.in_loss = False
        if not engine.shards_parameters:
            change_class(self._buckets, PLAIN)
            for parameter in self._all:
                del parameter._info

    def before_read(self) -> None:
        for name in take_written(self._apart if self.schedule.is_summoned else self._apart + self._sharded):
            raise StateError(
                f"{name} was written to, and that would be lost (stage 3, or main parameters): compute with a copy, as "
                "weight.clamp(...), or write between steps, inside `with engine.summon_full_params():`"
            )

    before_call = before_read

    def before_backward(self) -> None:
        self.before_read()
        with DisableTorchFunctionSubclass():
            for parameter in self._all:
                if parameter.requires_grad != parameter._info.bucket.trainable:
                    raise StateError(
                        f"requires_grad of {parameter._info.name} is not what the engine found: set it back, or set "
                        "requires_grad before the model is wrapped"
                    )

    def before_step(self) -> None:
        self.before_read()
        if self._parts() != self._found and set(map(id, self._model.parameters())) != set(map(id, self._all)):
            raise StateError(
                "a parameter came to the model, or left it: change the model before it is wrapped in a ZeroEngine"
            )

    def _parts(self) -> list[int]:
        return [id(part) for its in self._modules for part in (*its._parameters.values(), *its._modules.values())]

    def new_values(self) -> None:
        # A graph that was made before refuses its backward.
        trained = [parameter for parameter in self._all if parameter._info.bucket.trainable]
        torch.autograd.graph.increment_version(trained)
        take_written(trained)

    def lend(self, unit: Unit) -> None:
        change_class(unit.gathered, HERE)

    def take_back(self, unit: Unit) -> None:
        change_class(unit.gathered, AWAY)

    def published(self, unit: Unit) -> None:
        change_class(unit.published, AWAY)
        if not all(isinstance(parameter, Wrapped) for parameter in parameters_in(unit.published)):
            # One of a class of the user's own cannot make anybody wait: its unit is awaited now.
            self.schedule.arrive(unit)

    def arrived(self, unit: Unit) -> None:
        change_class(unit.published, HERE)

    # Stage 3: uses of parameters outside the forward of their unit.

    def before_forward(self) -> None:
        schedule = self.schedule
        if schedule.shards_parameters and schedule.in_forward and schedule.thread != get_ident():
            raise StateError("a forward began while another thread is in one, and stage 3 gathers for one: take turns")

    def fetch(self, unit: Unit, name: str, operation: str, together: set[Unit]) -> None:
        """An operation needs a parameter, with the units `together`: gather its unit, or refuse."""
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


class Owned(torch.Tensor):
    """A main parameter between steps. What is written through its `data` counts as written."""

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
        self._updating = False
        self._set_class(torch.Tensor, Owned)
        self._versions = self._count()

    def before_update(self) -> None:
        self._updating = True
        # Torch's optimizers are quickest with tensors of torch's own class.
        self._set_class(Owned, torch.Tensor)

    def before_read(self) -> None:
        if self._versions != self._count():
            raise StateError(
                f"the tensors of {type(self._engine.optimizer).__name__} were written to between steps, which the "
                "model does not have on all ranks: call engine.publish() after it, on every rank; leave out offload "
                "and dtypes of states, with which these tensors are empty"
            )

    before_call = before_backward = before_read

    def _count(self) -> list[int]:
        return [segment.tensor._version for segment in self._segments]

    def _set_class(self, before: type[torch.Tensor], now: type[torch.Tensor]) -> None:
        for segment in self._segments:
            if type(segment.tensor) is before:
                segment.tensor.__class__ = now

    def _check_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if not self._updating:
            for left in ("grad_scale", "found_inf"):
                vars(optimizer).pop(left, None)
            raise StateError(
                "engine.optimizer.step() has no gradients: call engine.step(), and in place of torch's GradScaler say "
                'ZeroEngine(precision="fp16")'
            )

    def _refuse_state(self, *_: Any) -> Any:
        raise StateError("engine.optimizer has flat shards of this rank alone: save and load by zerolab.checkpoint")


DEFAULT = (ParameterGuard, OptimizerGuard)
