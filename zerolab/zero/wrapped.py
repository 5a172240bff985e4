"""A model's parameters while an engine holds them. What people do to a parameter by habit works, or is refused by name.

Wrapped   at stages 0 to 2, and at stage 3 inside the forward of its unit: a parameter whose gradient, memory and
          requires_grad are the engine's
Coming    a Wrapped one while its new values are on their way (`coming.py`)
Away      at stage 3 everywhere else: without elements. An operation that asks for them has the unit gathered where
          the values stay valid (in a forward, in a loss), else it is told where they are to be had

A parameter stays the same object and only changes its class, as torch's lazy modules do it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import ReferenceType

import torch
from torch import nn
from torch._C import DisableTorchFunctionSubclass, TensorBase
from torch.utils._pytree import tree_leaves

from zerolab.errors import StateError

if TYPE_CHECKING:
    from zerolab.zero.engine import ZeroEngine
    from zerolab.zero.units import Bucket, Unit

Tensor = torch.Tensor

COPY = (
    "a copy or a pickle of a model that is in a ZeroEngine would be parted from it: take engine.state_dict(), which "
    "every rank calls, and load it into a new model"
)

MOVE = (
    "a model in a ZeroEngine keeps its dtype and its device: cast or move it before it is wrapped, or let "
    "ZeroEngine(precision=...) choose dtypes"
)


@dataclass
class Held:
    """What a parameter knows of the engine that holds it. `shape` is its shape with all elements. `version` is torch's
    count of writes in place (`_version`) when the engine last looked. `watched`: writes to it would be lost, so `data`
    gives an alias that counts them. References are weak, so that an engine can be forgotten."""

    name: str
    shape: torch.Size
    engine: ReferenceType[ZeroEngine]
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

    def settle(self) -> None:
        """Return once the new values that a step has published are here."""
        engine, unit = self.engine(), self.unit()
        if engine is not None and unit is not None:
            engine.publishing.settle(unit)

    def may_fetch(self) -> bool:
        """Whether values that are gathered now stay valid."""
        engine = self.engine()
        return engine is not None and not engine.closed and engine.residency.visits.welcome

    def fetch(self, operation: str, helds: Iterable[Held]) -> None:
        """Have the unit gathered for an operation, beside those of all `helds`, or say why not."""
        engine, unit = self.engine(), self.unit()
        if engine is None or unit is None or engine.closed:
            raise StateError(
                f"{self.name} went with its engine, which kept it in shards (stage 3): take engine.state_dict() before "
                "the end, and load it into a new model"
            )
        together = {its for held in helds if (its := held.unit()) is not None}
        engine.residency.visits.fetch(unit, self.title, operation, together)

    def used(self, outputs: list[Tensor]) -> None:
        """The operation gave those tensors."""
        engine, unit = self.engine(), self.unit()
        if engine is not None and unit is not None:
            engine.residency.visits.used(unit, self.title, outputs)


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
        if isinstance(self, Away) and self._held.may_fetch():
            return self.detach()
        with DisableTorchFunctionSubclass():
            if not self._held.watched:
                return TensorBase.data.__get__(self)  # type: ignore[attr-defined, no-any-return]
            alias = TensorBase.detach(self)
            if isinstance(self, Away):
                alias = alias.as_subclass(Nothing)
                alias._held = self._held
        return alias

    @data.setter
    def data(self, new: Tensor) -> None:
        with DisableTorchFunctionSubclass(), torch.no_grad():
            same_memory = new.data_ptr() == self.data_ptr() and same_view(new, self)
            if new.dtype != self.dtype or new.device != self.device:
                raise StateError(f"{self._held.name} cannot become {brief(new)}: {MOVE}")
            if same_memory:
                return
            if isinstance(self, Away) or new.shape != self._held.shape:
                raise StateError(
                    f"the memory of {self._held.name} belongs to the engine: write values of its shape "
                    f"{tuple(self._held.shape)} in place, at stage 3 inside `with engine.summon_full_params():`"
                )
            # It may be another view of this very memory, such as the transposed one.
            TensorBase.copy_(self, new.clone() if share_memory(new, self) else new)

    @property  # type: ignore[override]
    def requires_grad(self) -> bool:
        with DisableTorchFunctionSubclass():
            return bool(TensorBase.requires_grad.__get__(self))  # type: ignore[attr-defined]

    @requires_grad.setter
    def requires_grad(self, wanted: bool) -> None:
        self.requires_grad_(wanted)

    def requires_grad_(self, wanted: bool = True) -> Tensor:  # type: ignore[override]
        if wanted != self.requires_grad:
            raise StateError(
                f"{self._held.name} was {'thawed' if wanted else 'frozen'} after its model went into a ZeroEngine, "
                "whose buckets are cut by what trains: set requires_grad before, or close() the engine and wrap the "
                "model again"
            )
        return self

    def __deepcopy__(self, memo: Any) -> Any:
        raise StateError(COPY)

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise StateError(COPY)


def whole_shape(self: Tensor) -> torch.Size:
    return self._held.shape  # type: ignore[attr-defined, no-any-return]


def whole_size(self: Tensor, dim: int | None = None) -> Any:
    return whole_shape(self) if dim is None else whole_shape(self)[dim]


def said(self: Tensor, **_: Any) -> str:
    held: Held = self._held  # type: ignore[attr-defined]
    return f"{held.title}, {tuple(held.shape)} of {TensorBase.dtype.__get__(self)}, sharded by stage 3"  # type: ignore[attr-defined]


def getters(*names: str) -> dict[Any, str]:
    return {getattr(TensorBase, name).__get__: name for name in names}


SHAPES: dict[Any, Callable[..., Any]] = {
    Tensor.shape.__get__: whole_shape,  # type: ignore[attr-defined]
    Tensor.size: whole_size,
    Tensor.numel: lambda self: whole_shape(self).numel(),
    Tensor.nelement: lambda self: whole_shape(self).numel(),
    torch.numel: lambda self: whole_shape(self).numel(),
    Tensor.dim: lambda self: len(whole_shape(self)),
    Tensor.ndimension: lambda self: len(whole_shape(self)),
    Tensor.ndim.__get__: lambda self: len(whole_shape(self)),  # type: ignore[attr-defined]
    Tensor.nbytes.__get__: lambda self: whole_shape(self).numel() * self.itemsize,  # type: ignore[attr-defined]
    Tensor.__len__: lambda self: whole_shape(self)[0],
    Tensor.__repr__: said,
    Tensor.__format__: lambda self, _: said(self),
}
"""What is answered as if the elements were here: a model counts its parameters so."""

HARMLESS = {
    *getters(
        *("dtype", "device", "layout", "is_leaf", "grad_fn", "_version", "output_nr", "retains_grad", "itemsize"),
        *("is_cpu", "is_cuda", "is_meta", "is_sparse", "is_quantized", "is_nested", "is_mkldnn"),
        *("_backward_hooks", "_post_accumulate_grad_hooks", "requires_grad", "grad", "_base"),
    ),
    *(Tensor.register_hook, Tensor.register_post_accumulate_grad_hook, Tensor.get_device, Tensor.element_size),
    *(Tensor.is_floating_point, Tensor.is_complex, torch.is_floating_point, torch.is_complex, Tensor.data_ptr),
    *(torch._has_compatible_shallow_copy_type,),
    *(Tensor.untyped_storage, Tensor.is_contiguous, Tensor.is_shared, Tensor.as_subclass, torch.get_device),
}
"""What needs no element."""


class Away(Wrapped):
    """A parameter whose elements are not here, or not for long."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        with DisableTorchFunctionSubclass():
            if func in SHAPES:
                return SHAPES[func](*args, **kwargs)
            if func not in HARMLESS:
                return operate(func, args, kwargs)
            return func(*args, **kwargs)


class Nothing(Away):
    """What `data` of a parameter that is away gives: an alias without elements. model.to(device) asks it for the device
    where it already is, and changes nothing; any other use of its elements is refused."""


MOVES = {Tensor.to, Tensor.cpu, Tensor.cuda, Tensor.float, Tensor.double, Tensor.half, Tensor.bfloat16, Tensor.type}


def operate(func: Any, args: Any, kwargs: Any) -> Any:
    """An operation on elements of parameters that are away."""
    leaves = {id(leaf): leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Away)}
    if func in MOVES and ((len(args) == 1 and func is Tensor.type) or (func(*args, **kwargs)) is args[0]):
        # As in model.to(device) for the device where it is; or no more than a question.
        return func(*args, **kwargs)
    helds = [leaf._held for leaf in leaves.values()]
    name = getattr(func, "__name__", str(func))
    if func in MOVES and not all(held.may_fetch() for held in helds):
        raise StateError(f"{name} was asked of {helds[0].title}, and {MOVE}")
    for leaf in leaves.values():
        if isinstance(leaf, Nothing):
            raise StateError(no_elements(name, leaf._held.title))
        leaf._held.fetch(name, helds)
    result = func(*args, **kwargs)
    outputs = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
    for held in helds:
        held.used(outputs)
    refuse_written(leaves.values())
    return result


HERE = (
    "read or write it inside `with engine.summon_full_params():`, which gathers all units and which every rank enters, "
    "or take engine.state_dict()"
)


def no_elements(operation: str, title: str) -> str:
    return f"{operation} was asked of {title}, which has elements in forward and backward only at stage 3: {HERE}"


def gradient_of(parameter: Tensor) -> Tensor | None:
    """The gradient that torch has left at a parameter."""
    with DisableTorchFunctionSubclass():
        return TensorBase.grad.__get__(parameter)  # type: ignore[union-attr, no-any-return]


def take_gradient(parameter: Tensor) -> Tensor | None:
    """The gradient that torch has left at a parameter, which has none after."""
    with DisableTorchFunctionSubclass():
        gradient: Tensor | None = TensorBase.grad.__get__(parameter)  # type: ignore[union-attr]
        TensorBase.grad.__set__(parameter, None)  # type: ignore[union-attr]
    return gradient


def drop_gradients(parameters: Iterable[Tensor]) -> None:
    drop = TensorBase.grad.__set__  # type: ignore[union-attr]
    with DisableTorchFunctionSubclass():
        for parameter in parameters:
            drop(parameter, None)


def brief(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} on {tensor.device}"


def same_view(one: Tensor, other: Tensor) -> bool:
    """Whether tensors that begin at the same address have the same elements in the same order."""
    return (
        one.shape == other.shape
        and one.stride() == other.stride()
        and one.is_conj() == other.is_conj()
        and one.is_neg() == other.is_neg()
    )


def share_memory(one: Tensor, other: Tensor) -> bool:
    return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()


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


def count_write(parameters: Iterable[Tensor], watched: Iterable[Held]) -> None:
    """Have torch know that the engine has written to parameters: a graph that was made before refuses its backward.
    `watched` are those of them whose writes are looked for."""
    torch.autograd.graph.increment_version(parameters)
    for held in watched:
        held.version += 1


def refuse_written(parameters: Iterable[Tensor]) -> None:
    """Refuse what an operation or a forward wrote to stage 3's parameters: what is gathered is a copy."""
    for held in written(parameters):
        raise StateError(
            f"{held.title} was written to, and stage 3 would forget that when it lets the unit go: compute with a "
            "changed copy, such as weight.clamp(...), in place of the weight, or write between steps, inside "
            "`with engine.summon_full_params():`"
        )
