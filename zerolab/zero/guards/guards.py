"""The guards that each engine has by default."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from operator import is_
from typing import Any

import torch
from torch import nn

from zerolab.errors import StateError
from zerolab.zero.guards.optimizer import HandedOut, guarded
from zerolab.zero.guards.outside import OutOfUnitAccess
from zerolab.zero.guards.parameters import (
    ARRIVING,
    HERE,
    SHARDED,
    THAWED,
    Held,
    Wrapped,
    change,
    count_write,
    refuse_written,
    unwrap,
    wrap,
    written,
)
from zerolab.zero.units import Unit


class ParameterGuard:
    """The parameters. `toggled`: those whose requires_grad is another one than when they were wrapped."""

    def attach(self, engine: Any) -> None:
        self._engine = weakref.ref(engine)
        self.toggled: set[str] = set()
        self.outside = OutOfUnitAccess(engine.schedule)
        self._buckets = engine.buckets
        # Parameters of which the engine updates copies, in another dtype or place.
        self._apart: list[nn.Parameter] = []
        itself = weakref.ref(self)
        for unit in engine.units:
            for bucket in unit.buckets:
                apart, sharded = bucket.rows.keeps_main, bucket.rows.parameters.depth > 0
                self._apart += bucket.parameters if apart else []
                for slot, parameter in zip(bucket.layout.slots, bucket.parameters, strict=True):
                    refs = itself, weakref.ref(unit), weakref.ref(bucket)
                    wrap(parameter, Held(slot.name, torch.Size(slot.shape), *refs, apart or sharded))
                change(bucket.parameters, SHARDED if sharded else HERE)
        self._trained = [parameter for bucket in engine.reducer.order for parameter in bucket.parameters]
        self._watched = [its._held for its in self._trained if isinstance(its, Wrapped) and its._held.watched]

    def detach(self, engine: Any) -> None:
        for bucket in self._buckets:
            if not engine.shards_parameters:
                for parameter in bucket.parameters:
                    unwrap(parameter)

    def before_call(self) -> None:
        self._refuse_lost()

    def before_forward(self, model: nn.Module) -> None:
        if self.outside.schedule.shards_parameters:
            self.outside.enter(model)

    def after_forward(self, outputs: Sequence[torch.Tensor]) -> None:
        self.outside.end_forward(outputs)

    def before_backward(self) -> None:
        self._refuse_lost()
        for name in sorted(self.toggled):
            raise StateError(
                f"requires_grad of {name} is not what it was when its model went into a ZeroEngine: set it back before "
                f"backward, or {THAWED}"
            )

    def after_backward(self) -> None:
        self.outside.end_backward()

    def before_step(self) -> None:
        self._refuse_lost()

    def new_values(self) -> None:
        count_write(self._trained, self._watched)

    def lend(self, unit: Unit) -> None:
        for bucket in unit.gathered:
            change(bucket.parameters, HERE)

    def take_back(self, unit: Unit) -> None:
        for bucket in unit.gathered:
            change(bucket.parameters, SHARDED)
        for bucket in unit.gathered:
            refuse_written(bucket.parameters)

    def after_unit(self, unit: Unit, outputs: Sequence[torch.Tensor]) -> None:
        self.outside.given(unit, outputs)

    def before_release(self) -> None:
        self.outside.forget()

    def published(self, unit: Unit) -> None:
        # A parameter of a class of the user's own keeps it and cannot make anybody wait: its unit is awaited now.
        if not all([change(bucket.parameters, ARRIVING) for bucket in unit.published]):
            self.settle(unit)

    def arrived(self, unit: Unit) -> None:
        for bucket in unit.published:
            change(bucket.parameters, HERE)

    # What parameters ask.

    @property
    def is_closed(self) -> bool:
        engine = self._engine()
        return engine is None or engine.closed

    @property
    def may_fetch(self) -> bool:
        return not self.is_closed and self.outside.welcome

    def settle(self, unit: Unit) -> None:
        """Return once new values that a step has published are here."""
        engine = self._engine()
        if engine is not None:
            engine.arrive(unit)

    def _refuse_lost(self) -> None:
        """Refuse writes to parameters of which the engine updates copies: the next step would overwrite them."""
        for held in written(self._apart, note=False) if self._apart else []:
            raise StateError(
                f"{held.name} was written to after its model went into a ZeroEngine, which updates main parameters of "
                "its own and would overwrite this at the next step: load or initialize the model before it is wrapped"
            )


class OptimizerGuard:
    """The optimizer's own tensors."""

    def attach(self, engine: Any) -> None:
        self.handed_out = HandedOut(engine.optimizer_step)
        guarded(engine.optimizer, weakref.ref(engine))

    def before_call(self) -> None:
        self.before_read()

    def before_backward(self) -> None:
        self.before_read()

    def before_update(self) -> None:
        self.handed_out.take_back()

    def new_values(self) -> None:
        self.handed_out.note()

    def before_read(self) -> None:
        """Refuse writes to the optimizer's own tensors that the other ranks and the model do not have."""
        step = self.handed_out.step
        if not self.handed_out.written():
            return
        remedy = "call engine.publish() after it, on every rank"
        if not step.stays:
            remedy = "leave out offload and dtypes of states, with which these tensors are empty between steps"
        raise StateError(
            f"the tensors of {type(step.optimizer).__name__} were written to between steps, as its eval() or train() "
            f"may do, and the model does not have that on all ranks: {remedy}"
        )


class ModelGuard:
    """The model's parameters and modules."""

    def attach(self, engine: Any) -> None:
        self._model = engine.model
        self._parts = list(engine.model.modules())
        self._members = members(self._parts)
        self._known = {id(parameter) for bucket in engine.buckets for parameter in bucket.parameters}

    def before_call(self) -> None:
        found = members(self._parts)
        if len(found) == len(self._members) and all(map(is_, found, self._members)):
            return
        there = dict(self._model.named_parameters())
        new = [name for name, parameter in there.items() if id(parameter) not in self._known]
        if new or len(there) != len(self._known):
            said = f"{new[0]} came to the model" if new else "a parameter was taken out of the model"
            raise StateError(
                f"{said} after it went into a ZeroEngine, which trains those that it found: change the model before it "
                "is wrapped, or close() the engine and wrap it again"
            )


DEFAULT = (ParameterGuard, OptimizerGuard, ModelGuard)


def members(modules: Iterable[nn.Module]) -> list[Any]:
    """The parameters and modules that modules hold. It is asked at every forward, and costs less than
    `named_parameters()`."""
    found: list[Any] = []
    for module in modules:
        found += module._parameters.values()
        found += module._modules.values()
    return found
