"""A parameter whose new values are on their way: a step has published them and has not waited (`overlap_gather`).

It has this class until they are here. Its unit's modules wait for it before they run. Whoever reads or writes it
elsewhere, in a forward or between a step and the next, is heard by the class and waits there: F.linear(x,
head.weight) before `head` runs, a list of parameters that no module has, a state_dict.

Who goes past the parameter is not heard: by a view taken before the step, or in a compiled extension that takes tensors
without torch's dispatch. They call `engine.synchronize()` first.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch._C import DisableTorchFunctionSubclass
from torch.utils._pytree import tree_leaves

from zerolab.zero.guards.parameters import Wrapped
from zerolab.zero.guards.sharded import HARMLESS, SHAPES, getters

WITHOUT_VALUES = (HARMLESS | SHAPES.keys() | {Tensor.stride, Tensor.storage_offset}) - {
    *(Tensor.__repr__, Tensor.__format__, Tensor.data_ptr, Tensor.untyped_storage, Tensor.as_subclass),
    *getters("_base"),
}
"""What asks for no value, and for no memory that has one."""


class ArrivingParameter(Wrapped):
    """A parameter that a step has published and whose values may not be here."""

    @property  # type: ignore[override]
    def data(self) -> Tensor:
        self._held.settle()
        return Wrapped.data.__get__(self)  # type: ignore[attr-defined, no-any-return]

    @data.setter
    def data(self, new: Tensor) -> None:
        self._held.settle()
        Wrapped.data.__set__(self, new)  # type: ignore[attr-defined]

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func not in WITHOUT_VALUES and settle((args, kwargs)):
            return func(*args, **kwargs)
        with DisableTorchFunctionSubclass():
            return func(*args, **kwargs)


def settle(given: Any) -> bool:
    """Wait for the parameters in what an operation was given. Returns whether they are of another class now; they are
    not if the engine was forgotten. Where torch.compile meets a wait it ends its graph, and what waits runs uncompiled.
    """
    found = [leaf for leaf in tree_leaves(given) if isinstance(leaf, ArrivingParameter)]
    for parameter in found:
        parameter._held.settle()
    return not any(isinstance(parameter, ArrivingParameter) for parameter in found)
