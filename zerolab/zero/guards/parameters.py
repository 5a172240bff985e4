"""A model's parameters while an engine holds them: the same objects, whose class alone changes, as torch's lazy modules
do it. What people do to a parameter by habit works, or is refused by name.

    Wrapped            its gradient, memory and requires_grad are the engine's
    ArrivingParameter  a step has published new values and has not waited (`overlap_gather`): who reads or writes it
                       outside its unit's forward waits for them. (Not who goes past it: by a view taken before the step
                       or in a compiled extension. They call `engine.synchronize()` first.)
    ShardedParameter   at stage 3 outside the forward of its unit: to torch it has no elements, though `shape`,
                       `numel()` and `nbytes` are those of the whole. Who asks for elements has the unit gathered where
                       they stay valid (in a forward, in a loss), or is told where they are to be had (`outside.py`)
    EmptyAlias         what `data` of a sharded one gives: model.to(device) asks it for the device where it already is,
                       and changes nothing; any other use of its elements is refused
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any
from weakref import ReferenceType

import torch
from torch import nn
from torch._C import DisableTorchFunctionSubclass, TensorBase
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_leaves

from zerolab.errors import StateError
from zerolab.flat.views import drop_gradients, gradient_of
from zerolab.zero.bucket import Bucket
from zerolab.zero.hooks import COPY
from zerolab.zero.units import Unit

Tensor = torch.Tensor

MOVE = (
    "a model in a ZeroEngine keeps its dtype and its device: cast or move it before it is wrapped, or let "
    "ZeroEngine(precision=...) choose dtypes"
)
THAWED = (
    "set requires_grad before the model is wrapped, whose buckets are cut by what trains (or close() the engine and "
    "wrap the model again)"
)
WHERE = (
    "read or write it inside `with engine.summon_full_params():`, which gathers all units and which every rank enters, "
    "or take engine.state_dict()"
)


@dataclass
class Held:
    """What a parameter knows of the engine that holds it. `shape` is its shape with all elements. `version` is torch's
    count of writes in place (`_version`) when the engine last looked. `watched`: writes to it would be lost, so `data`
    gives an alias that counts them. References are weak, so that an engine can be forgotten."""

    name: str
    shape: torch.Size
    guard: ReferenceType[Any]
    unit: ReferenceType[Unit]
    bucket: ReferenceType[Bucket]
    watched: bool
    version: int = 0

    @property
    def title(self) -> str:
        unit = self.unit()
        return f"{self.name} (unit {unit.name})" if unit else self.name

    def has_gradient(self) -> bool:
        """Whether the engine has taken a gradient of it in this step."""
        bucket = self.bucket()
        return bucket is not None and bucket.gradients.any

    def may_fetch(self) -> bool:
        """Whether values that are gathered now stay valid."""
        guard = self.guard()
        return guard is not None and guard.may_fetch

    def toggle(self, parameter: Tensor, wanted: bool) -> None:
        """The parameter trains from here on, or not."""
        guard, bucket = self.guard(), self.bucket()
        if guard is None or bucket is None:
            return
        if wanted == bucket.trainable:
            guard.toggled.discard(self.name)
            return
        if wanted and self.name not in guard.toggled:
            # A graph that is made now may bring it a gradient after it was frozen again.
            parameter.register_post_accumulate_grad_hook(self._refuse_gradient)
        guard.toggled.add(self.name)

    def _refuse_gradient(self, parameter: Tensor) -> None:
        drop_gradients([parameter])
        raise StateError(
            f"a gradient came to {self.name}, which was frozen when its model went into a ZeroEngine; {THAWED}"
        )


class Wrapped(nn.Parameter):
    """A parameter that an engine holds."""

    _held: Held

    @property  # type: ignore[override]
    def grad(self) -> Tensor | None:
        gradient = gradient_of(self)
        if gradient is None and self._held.has_gradient():
            raise StateError(
                f"the gradient of {self._held.name} is in the engine's buckets, not at the parameter: clip with "
                "ZeroEngine(clip_norm=...) or engine.clip_grad_norm_(), forget with engine.zero_grad(), update with "
                "engine.step()"
            )
        return gradient

    @grad.setter
    def grad(self, gradient: Tensor | None) -> None:
        if gradient is not None:
            raise StateError(
                f"a gradient was set at {self._held.name}, where the engine does not look for it: let "
                "engine.backward(loss) bring all gradients"
            )
        if self._held.has_gradient():
            raise StateError(
                f"the gradient of {self._held.name} is in the engine's buckets and cannot be dropped by itself: forget "
                "those of all parameters with engine.zero_grad()"
            )
        drop_gradients([self])

    @property  # type: ignore[override]
    def data(self) -> Tensor:
        # A detached tensor tells of what is written to it, which torch's own hides.
        with DisableTorchFunctionSubclass():
            if not self._held.watched:
                return TensorBase.data.__get__(self)  # type: ignore[attr-defined, no-any-return]
            return TensorBase.detach(self)

    @data.setter
    def data(self, new: Tensor) -> None:
        with DisableTorchFunctionSubclass(), torch.no_grad():
            if new.dtype != self.dtype or new.device != self.device:
                dtype = str(new.dtype).removeprefix("torch.")
                raise StateError(f"{self._held.name} cannot become {dtype} on {new.device}: {MOVE}")
            if new.data_ptr() == self.data_ptr() and same_view(new, self):
                return
            if isinstance(self, ShardedParameter) or new.shape != self._held.shape:
                raise StateError(
                    f"the memory of {self._held.name} belongs to the engine: write values of its shape "
                    f"{tuple(self._held.shape)} in place, at stage 3 inside `with engine.summon_full_params():`"
                )
            # It may be another view of this very memory, such as the transposed one.
            shares = new.untyped_storage().data_ptr() == self.untyped_storage().data_ptr()
            TensorBase.copy_(self, new.clone() if shares else new)

    @property  # type: ignore[override]
    def requires_grad(self) -> bool:
        with DisableTorchFunctionSubclass():
            return bool(TensorBase.requires_grad.__get__(self))  # type: ignore[attr-defined]

    @requires_grad.setter
    def requires_grad(self, wanted: bool) -> None:
        self.requires_grad_(wanted)

    def requires_grad_(self, wanted: bool = True) -> Tensor:  # type: ignore[override]
        """Compared when a backward begins, not here: adapters are switched off for a forward and on again."""
        with DisableTorchFunctionSubclass():
            TensorBase.requires_grad_(self, wanted)
            self._held.toggle(self, wanted)
        return self

    def __deepcopy__(self, memo: Any) -> Any:
        raise StateError(COPY)

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise StateError(COPY)


# What is asked of parameters without elements.


def whole_shape(self: Tensor) -> torch.Size:
    return self._held.shape  # type: ignore[attr-defined, no-any-return]


def whole_size(self: Tensor, dim: int | None = None) -> Any:
    return whole_shape(self) if dim is None else whole_shape(self)[dim]


def said(self: Tensor, *_: Any, **__: Any) -> str:
    held: Held = self._held  # type: ignore[attr-defined]
    return f"{held.title}, {tuple(held.shape)} of {TensorBase.dtype.__get__(self)}, sharded by stage 3"  # type: ignore[attr-defined]


SHAPES: dict[Any, Callable[..., Any]] = {
    Tensor.shape.__get__: whole_shape,  # type: ignore[attr-defined]
    Tensor.size: whole_size,
    **{count: lambda self: whole_shape(self).numel() for count in (Tensor.numel, Tensor.nelement, torch.numel)},
    **{dims: lambda self: len(whole_shape(self)) for dims in (Tensor.dim, Tensor.ndimension, Tensor.ndim.__get__)},  # type: ignore[attr-defined]
    Tensor.nbytes.__get__: lambda self: whole_shape(self).numel() * self.itemsize,  # type: ignore[attr-defined]
    Tensor.__len__: lambda self: whole_shape(self)[0],
    Tensor.__repr__: said,
    Tensor.__format__: said,
}
"""What is answered as if the elements were here: a model counts its parameters so."""

VALUES = {getattr(TensorBase, name).__get__ for name in ("T", "mT", "H", "mH", "real", "imag")}
HARMLESS = {
    *(Tensor.register_hook, Tensor.register_post_accumulate_grad_hook, Tensor.get_device, Tensor.element_size),
    *(Tensor.is_floating_point, Tensor.is_complex, torch.is_floating_point, torch.is_complex, Tensor.data_ptr),
    *(torch._has_compatible_shallow_copy_type, torch.get_device),
    *(Tensor.untyped_storage, Tensor.is_contiguous, Tensor.is_shared, Tensor.as_subclass),
}
"""What needs no element, beside the attributes that are not in VALUES."""
MEMORY = {Tensor.__repr__, Tensor.__format__, Tensor.data_ptr, Tensor.untyped_storage, Tensor.as_subclass}
"""What gives away memory that may have no values yet."""
BASE = TensorBase._base.__get__  # type: ignore[union-attr]
MOVES = {Tensor.to, Tensor.cpu, Tensor.cuda, Tensor.float, Tensor.double, Tensor.half, Tensor.bfloat16, Tensor.type}


def needs_elements(func: Any) -> bool:
    attribute = getattr(func, "__name__", "") == "__get__"
    return func in VALUES or not (attribute or func in HARMLESS or func in SHAPES)


class ArrivingParameter(Wrapped):
    """A parameter whose new values are on their way."""

    @property  # type: ignore[override]
    def data(self) -> Tensor:
        arrive(self)
        return Wrapped.data.__get__(self)  # type: ignore[attr-defined, no-any-return]

    @data.setter
    def data(self, new: Tensor) -> None:
        arrive(self)
        Wrapped.data.__set__(self, new)  # type: ignore[attr-defined]

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        layout = func in (Tensor.stride, Tensor.storage_offset)
        waits = func in MEMORY or func is BASE or (needs_elements(func) and not layout)
        if waits and arrive((args, kwargs)):
            return func(*args, **kwargs)
        with DisableTorchFunctionSubclass():
            return func(*args, **kwargs)


def arrive(given: Any) -> bool:
    """Wait for the parameters in what an operation was given. Returns whether they are of another class now; they are
    not if the engine was forgotten. Where torch.compile meets a wait it ends its graph, and what waits runs uncompiled.
    """
    found = [leaf for leaf in tree_leaves(given) if isinstance(leaf, ArrivingParameter)]
    for parameter in found:
        guard, unit = parameter._held.guard(), parameter._held.unit()
        if guard is not None and unit is not None:
            guard.settle(unit)
    return not any(isinstance(parameter, ArrivingParameter) for parameter in found)


class ShardedParameter(Wrapped):
    """A parameter whose elements are not here, or not for long."""

    @property  # type: ignore[override]
    def data(self) -> Tensor:
        if self._held.may_fetch():
            return self.detach()
        with DisableTorchFunctionSubclass():
            alias = TensorBase.detach(self).as_subclass(EmptyAlias)
            alias._held = self._held
        return alias

    @data.setter
    def data(self, new: Tensor) -> None:
        Wrapped.data.__set__(self, new)  # type: ignore[attr-defined]

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        with DisableTorchFunctionSubclass():
            if func in SHAPES:
                return SHAPES[func](*args, **kwargs)
            if needs_elements(func):
                return operate(func, args, kwargs)
            return func(*args, **kwargs)


class EmptyAlias(ShardedParameter):
    """An alias of a sharded parameter, without elements."""


def operate(func: Any, args: Any, kwargs: Any) -> Any:
    """An operation on elements of sharded parameters."""
    leaves = {id(leaf): leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, ShardedParameter)}
    if func in MOVES and ((len(args) == 1 and func is Tensor.type) or (func(*args, **kwargs)) is args[0]):
        # As in model.to(device) for the device where it is; or no more than a question.
        return func(*args, **kwargs)
    helds = [leaf._held for leaf in leaves.values()]
    name = getattr(func, "__name__", str(func))
    if func in MOVES and not all(held.may_fetch() for held in helds):
        raise StateError(f"{name} was asked of {helds[0].title}, and {MOVE}")
    units = {unit for held in helds if (unit := held.unit()) is not None}
    for leaf, held in zip(leaves.values(), helds, strict=True):
        if isinstance(leaf, EmptyAlias):
            raise StateError(no_elements(name, held.title))
        guard, unit = held.guard(), held.unit()
        if guard is None or unit is None or guard.is_closed:
            raise StateError(
                f"{held.name} went with its engine, which kept it in shards (stage 3): take engine.state_dict() before "
                "the end, and load it into a new model"
            )
        guard.outside.fetch(unit, held.title, name, units)
    result = func(*args, **kwargs)
    outputs = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
    for held in helds:
        guard, unit = held.guard(), held.unit()
        if guard is not None and unit is not None:
            guard.outside.used(unit, held.title, outputs)
    refuse_written(leaves.values())
    return result


def no_elements(operation: str, title: str) -> str:
    return f"{operation} was asked of {title}, which has elements in forward and backward only at stage 3: {WHERE}"


# Which of them a parameter is.

HERE, SHARDED, ARRIVING = range(3)
KINDS = (Wrapped, ShardedParameter, ArrivingParameter)
FAKES = tuple(type(f"Fake{kind.__name__}", (kind, FakeTensor), {}) for kind in KINDS)
"""The same in a virtual world, where parameters have no values."""
FORMS: dict[type, tuple[type, ...]] = {form: forms for forms in (KINDS, FAKES) for form in forms}


def wrap(parameter: nn.Parameter, held: Held) -> None:
    """Give a parameter to an engine. A class of the user's own stays as it is, without the guards."""
    forms = {nn.Parameter: KINDS, FakeTensor: FAKES}.get(type(parameter))  # type: ignore[call-overload]
    if forms is not None:
        held.version = parameter._version
        parameter._held = held  # type: ignore[attr-defined]
        parameter.__class__ = forms[HERE]


def unwrap(parameter: nn.Parameter) -> None:
    """Take a parameter back from an engine."""
    if isinstance(parameter, Wrapped):
        parameter.__class__ = FakeTensor if isinstance(parameter, FakeTensor) else nn.Parameter  # type: ignore[assignment]
        del parameter._held  # type: ignore[attr-defined]


def change(parameters: Iterable[nn.Parameter], form: int) -> bool:
    """Give parameters another form. Returns False if one of them has a class of the user's own, which it keeps."""
    able = True
    for parameter in parameters:
        forms = FORMS.get(type(parameter))
        if forms is None:
            able = False
        else:
            parameter.__class__ = forms[form]
    return able


# Writes.


def same_view(one: Tensor, other: Tensor) -> bool:
    """Whether tensors that begin at the same address have the same elements in the same order."""
    same = one.shape == other.shape and one.stride() == other.stride()
    return same and one.is_conj() == other.is_conj() and one.is_neg() == other.is_neg()


def written(parameters: Iterable[Tensor], note: bool = True) -> list[Held]:
    """What is known of those parameters that were written to since their engine last looked; `note`: it looks now."""
    found = []
    with DisableTorchFunctionSubclass():
        for parameter in parameters:
            if isinstance(parameter, Wrapped) and parameter._version != parameter._held.version:
                found.append(parameter._held)
                if note:
                    parameter._held.version = parameter._version
    return found


def refuse_written(parameters: Iterable[Tensor]) -> None:
    """Refuse what an operation or a forward wrote to stage 3's parameters: what is gathered is a copy."""
    for held in written(parameters):
        raise StateError(
            f"{held.title} was written to, and stage 3 would forget that when it lets the unit go: compute with a "
            "changed copy, such as weight.clamp(...), in place of the weight, or write between steps, inside "
            "`with engine.summon_full_params():`"
        )


def count_write(parameters: Iterable[Tensor], watched: Iterable[Held]) -> None:
    """Have torch know that the engine has written to parameters: a graph that was made before refuses its backward.
    `watched` are those of them whose writes are looked for."""
    torch.autograd.graph.increment_version(parameters)
    for held in watched:
        held.version += 1
