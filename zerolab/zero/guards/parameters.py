"""A model's parameters while an engine holds them. What people do to a parameter by habit works, or is refused by name.

Wrapped   at stages 0 to 2, and at stage 3 inside the forward of its unit: a parameter whose gradient, memory and
          requires_grad are the engine's
ArrivingParameter    a Wrapped one while its new values are on their way (`arriving.py`)
ShardedParameter      at stage 3 everywhere else: without elements (`sharded.py`)

A parameter stays the same object and only changes its class, as torch's lazy modules do it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol
from weakref import ReferenceType

import torch
from torch import nn
from torch._C import DisableTorchFunctionSubclass, TensorBase

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


class Keeper(Protocol):
    """What a parameter asks the guard of its engine."""

    @property
    def toggled(self) -> set[str]: ...

    @property
    def may_fetch(self) -> bool: ...

    def fetch(self, unit: Unit, title: str, operation: str, together: set[Unit]) -> None: ...

    def used(self, unit: Unit, title: str, outputs: list[Tensor]) -> None: ...

    def settle(self, unit: Unit) -> None: ...


@dataclass
class Held:
    """What a parameter knows of the engine that holds it. `shape` is its shape with all elements. `version` is torch's
    count of writes in place (`_version`) when the engine last looked. `watched`: writes to it would be lost, so `data`
    gives an alias that counts them. References are weak, so that an engine can be forgotten."""

    name: str
    shape: torch.Size
    keeper: ReferenceType[Keeper]
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

    def toggle(self, parameter: Tensor, wanted: bool) -> None:
        """The parameter trains from here on, or not."""
        keeper, bucket = self.keeper(), self.bucket()
        if keeper is None or bucket is None:
            return
        if wanted == bucket.trainable:
            keeper.toggled.discard(self.name)
            return
        if wanted and self.name not in keeper.toggled:
            # A graph that is made now may bring it a gradient after it was frozen again.
            parameter.register_post_accumulate_grad_hook(self._refuse_gradient)
        keeper.toggled.add(self.name)

    def _refuse_gradient(self, parameter: Tensor) -> None:
        drop_gradients([parameter])
        raise StateError(
            f"a gradient came to {self.name}, which was frozen when its model went into a ZeroEngine; {THAWED}"
        )

    def settle(self) -> None:
        """Return once the new values that a step has published are here."""
        keeper, unit = self.keeper(), self.unit()
        if keeper is not None and unit is not None:
            keeper.settle(unit)

    def may_fetch(self) -> bool:
        """Whether values that are gathered now stay valid."""
        keeper = self.keeper()
        return keeper is not None and keeper.may_fetch

    def fetch(self, operation: str, helds: Iterable[Held]) -> None:
        """Have the unit gathered for an operation, beside those of all `helds`, or say why not."""
        keeper, unit = self.keeper(), self.unit()
        if keeper is None or unit is None:
            raise StateError(
                f"{self.name} went with its engine, which kept it in shards (stage 3): take engine.state_dict() before "
                "the end, and load it into a new model"
            )
        together = {its for held in helds if (its := held.unit()) is not None}
        keeper.fetch(unit, self.title, operation, together)

    def used(self, outputs: list[Tensor]) -> None:
        """The operation gave those tensors."""
        keeper, unit = self.keeper(), self.unit()
        if keeper is not None and unit is not None:
            keeper.used(unit, self.title, outputs)


class Wrapped(nn.Parameter):
    """A parameter that an engine holds."""

    _held: Held
    has_elements = True

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
            same_memory = new.data_ptr() == self.data_ptr() and same_view(new, self)
            if new.dtype != self.dtype or new.device != self.device:
                raise StateError(f"{self._held.name} cannot become {brief(new)}: {MOVE}")
            if same_memory:
                return
            if not self.has_elements or new.shape != self._held.shape:
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
        """Compared when a backward begins, not here: adapters are switched off for a forward and on again."""
        with DisableTorchFunctionSubclass():
            TensorBase.requires_grad_(self, wanted)
            self._held.toggle(self, wanted)
        return self

    def __deepcopy__(self, memo: Any) -> Any:
        raise StateError(COPY)

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise StateError(COPY)


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
