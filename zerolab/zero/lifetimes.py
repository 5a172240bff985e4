"""When a unit's parameters must be here: hooks on its modules, and one unit fetched ahead.

Forward     before a module: gather its unit. After it: release, once all modules of the unit have run.
Backward    when the gradient of a module's output arrives: gather again. When the gradients of all its inputs
            and of all its parameters are known: release. (A unit with a parameter that gets none stays until
            backward ends: nothing tells that it is not still needed.)
Recompute   a checkpointed module runs its forward again inside backward: its unit is already here and stays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from zerolab.collectives import phase
from zerolab.zero.stage import Stage
from zerolab.zero.units import Unit


class Lifetimes:
    """Gathers and releases units around their modules' forward and backward."""

    def __init__(
        self, model: nn.Module, stage: Stage, units: list[Unit], prefetch: bool, settle: Callable[[Unit], None]
    ) -> None:
        self.stage = stage
        self.units = units
        self.prefetch = prefetch
        self.in_backward = False
        # Told before a unit is used, so that an update still under way is awaited.
        self._settle = settle
        # Calls of units, in order: of the last forward, of this one, and those that a gradient will come back to.
        self._order: list[Unit] = []
        self._running: list[Unit] = []
        self._returning: list[Unit] = []
        # Per unit: modules run in this forward, and calls whose backward is still to come.
        self._ran: Counter[Unit] = Counter()
        self._open: Counter[Unit] = Counter()
        self._handles = [handle for unit in units for module in unit.modules for handle in self._hook(unit, module)]
        # Registered last and put first: a forward begins before, and ends after, everything that its units do.
        self._handles.append(model.register_forward_pre_hook(lambda *_: self._begin_forward(), prepend=True))
        self._handles.append(model.register_forward_hook(lambda *_: self._end_forward(), always_call=True))

    def _hook(self, unit: Unit, module: nn.Module) -> list[Any]:
        return [
            module.register_forward_pre_hook(
                lambda _, args, kwargs: self._before_forward(unit, args, kwargs), with_kwargs=True, prepend=True
            ),
            module.register_forward_hook(
                lambda _module, _args, output: self._after_forward(unit, output), always_call=True
            ),
        ]

    def _begin_forward(self) -> None:
        if not self.in_backward:
            self._running.clear()
            self._ran.clear()

    def _end_forward(self) -> None:
        """Release what a forward left (a prefetched unit that was skipped, say), and learn the order of units."""
        if not self.in_backward:
            self._order = list(self._running)
            self._release_all()

    def end_backward(self) -> None:
        self.in_backward = False
        self._returning.clear()
        self._open.clear()
        self._release_all()

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()

    def _release_all(self) -> None:
        for unit in self.units:
            self.stage.release(unit)

    def _before_forward(self, unit: Unit, args: Any, kwargs: Any) -> None:
        self._settle(unit)
        self.stage.gather(unit)
        if self.in_backward:
            return
        self._running.append(unit)
        self._fetch_ahead(self._next_in_forward())
        if self.stage.shards_parameters and torch.is_grad_enabled():
            self._watch_inputs(unit, [leaf for leaf in tree_leaves((args, kwargs)) if needs_grad(leaf)])

    def _after_forward(self, unit: Unit, output: Any) -> None:
        if not self.stage.shards_parameters or self.in_backward:
            return
        self._watch_outputs(unit, [leaf for leaf in tree_leaves(output) if needs_grad(leaf)])
        self._ran[unit] += 1
        if self._ran[unit] % len(unit.modules) == 0:
            self.stage.release(unit)

    def _watch_outputs(self, unit: Unit, outputs: list[torch.Tensor]) -> None:
        """When the gradient of an output of this call comes, the unit must be here; the first begins its backward."""
        if not outputs:
            return
        self._returning.append(unit)
        begun = False

        def came(_: Any) -> None:
            nonlocal begun
            with phase("backward"):
                self.stage.gather(unit)
                if not begun:
                    self._fetch_ahead(self._next_in_backward(unit))
            begun = True

        for leaf in outputs:
            # A hook of the node that made it, which runs after hooks of the tensor: the next unit, whose input this
            # is, hears first that it is done, and is released before this one is gathered.
            node = leaf.grad_fn
            register = leaf.register_hook if node is None else node.register_prehook
            register(came)

    def _watch_inputs(self, unit: Unit, inputs: list[torch.Tensor]) -> None:
        """Count this call as open until the gradients of all its inputs are known."""
        if not inputs:
            return
        self._open[unit] += 1
        waiting = len(inputs)

        def known(_: torch.Tensor) -> None:
            nonlocal waiting
            waiting -= 1
            if waiting == 0:
                self._open[unit] -= 1
                self.release_if_done(unit)

        for tensor in inputs:
            tensor.register_hook(known)

    def release_if_done(self, unit: Unit) -> None:
        """In backward: release a unit that no open call and no missing gradient needs any more."""
        complete = all(len(bucket.arrived) == len(bucket.parameters) for bucket in unit.trainable)
        if complete and self._open[unit] <= 0:
            self.stage.release(unit)

    def _fetch_ahead(self, unit: Unit | None) -> None:
        """Start to gather the unit that comes next."""
        if self.prefetch and unit is not None:
            self._settle(unit)
            self.stage.start_gathering(unit)

    def _next_in_forward(self) -> Unit | None:
        """What followed, in the last forward, the call at the place where this one is; None if they differ."""
        here = len(self._running)
        alike = here < len(self._order) and self._order[here - 1] is self._running[-1]
        return self._order[here] if alike else None

    def _next_in_backward(self, unit: Unit) -> Unit | None:
        """What ran before the last call of `unit` whose backward has not begun."""
        while self._returning:
            if self._returning.pop() is unit:
                return self._returning[-1] if self._returning else None
        return None


def needs_grad(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.requires_grad
