"""A parameter at stage 3 outside the forward of its unit: to torch it has no elements, and no memory. Its shape,
`numel()` and `nbytes` are still those of the whole.

An operation that asks for them has the unit gathered where the values stay valid (in a forward, in a loss), else it is
told where they are to be had (`outside.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch._C import DisableTorchFunctionSubclass, TensorBase
from torch.utils._pytree import tree_leaves

from zerolab.errors import StateError
from zerolab.zero.guards.parameters import MOVE, Held, Wrapped, written

Tensor = torch.Tensor


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


class ShardedParameter(Wrapped):
    """A parameter whose elements are not here, or not for long."""

    has_elements = False

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
            if func not in HARMLESS:
                return operate(func, args, kwargs)
            return func(*args, **kwargs)


class EmptyAlias(ShardedParameter):
    """What `data` of a parameter that is away gives: an alias without elements. model.to(device) asks it for the device
    where it already is, and changes nothing; any other use of its elements is refused."""


MOVES = {Tensor.to, Tensor.cpu, Tensor.cuda, Tensor.float, Tensor.double, Tensor.half, Tensor.bfloat16, Tensor.type}


def operate(func: Any, args: Any, kwargs: Any) -> Any:
    """An operation on elements of parameters that are away."""
    leaves = {id(leaf): leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, ShardedParameter)}
    if func in MOVES and ((len(args) == 1 and func is Tensor.type) or (func(*args, **kwargs)) is args[0]):
        # As in model.to(device) for the device where it is; or no more than a question.
        return func(*args, **kwargs)
    helds = [leaf._held for leaf in leaves.values()]
    name = getattr(func, "__name__", str(func))
    if func in MOVES and not all(held.may_fetch() for held in helds):
        raise StateError(f"{name} was asked of {helds[0].title}, and {MOVE}")
    for leaf in leaves.values():
        if isinstance(leaf, EmptyAlias):
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


def refuse_written(parameters: Iterable[Tensor]) -> None:
    """Refuse what an operation or a forward wrote to stage 3's parameters: what is gathered is a copy."""
    for held in written(parameters):
        raise StateError(
            f"{held.title} was written to, and stage 3 would forget that when it lets the unit go: compute with a "
            "changed copy, such as weight.clamp(...), in place of the weight, or write between steps, inside "
            "`with engine.summon_full_params():`"
        )
