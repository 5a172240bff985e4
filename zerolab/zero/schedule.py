"""When a unit's parameters must be here: hooks on its modules, and units gathered ahead.

Forward     before a module: gather its unit. After it: release, once all modules of the unit have run, unless
            it is kept for its backward.
Backward    when the gradient of a module's output arrives: gather again. When the gradients of all its inputs
            and of all its parameters are known: release. (That a parameter gets none is known when backward comes to
            an earlier run, see `order.py`; if its unit was also used elsewhere, when backward has ended.)
Recompute   a checkpointed module runs its forward again inside backward: its unit is gathered, if it is not
            here, and stays.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import get_ident
from typing import Any

import torch
from torch import nn
from torch._C import _current_graph_task_id as current_backward

from zerolab.collectives.call import phase
from zerolab.zero.guard import Guards
from zerolab.zero.hooks import Hook, followed, nodes_of, once, tensors_in
from zerolab.zero.order import ExecutionOrder, Runs, UnitRun
from zerolab.zero.reducer import nothing
from zerolab.zero.units import Unit, settle_all


class Need:
    """What keeps one unit's parameters here, where they are stored as shards. It is needed

    forward     from its first run until each of its modules has run
    backward    from the gradient of a run's output until the gradients of all inputs of its runs and of all its
                parameters are known, at the latest until backward ends

    inside    how many runs have begun and not ended; while there are any, everybody may use its parameters
    ran       how many runs have ended in this forward
    passes    how many runs are in the middle of their backward
    begun     whether its backward has begun. (A reentrant checkpoint's is not noticed: the unit stays to the end.)
    kept      whether it stays after its forward for its backward, though nobody computes with it now
    """

    __slots__ = ("begun", "inside", "kept", "passes", "ran")

    def __init__(self) -> None:
        self.inside = self.ran = self.passes = 0
        self.begun = self.kept = False


class GatherSchedule:
    """Gathers and releases units around their modules' forward and backward.

    arrive   called before a unit is used: new parameters on their way are awaited
    fill     called of a unit that gets no more gradients in this backward: those that did not come are zero
    reached  called when autograd comes to what the model gave
    pinned   units that stay until parameters have new values: somebody may have views of them
    open     units whose gradients may come from elsewhere than their own runs
    """

    def __init__(
        self,
        model: nn.Module,
        units: list[Unit],
        shards_parameters: bool,
        prefetch: bool,
        guards: Guards,
        arrive: Callable[[Unit], None],
        fill: Callable[[Unit], None],
    ) -> None:
        self.units, self.shards_parameters = units, shards_parameters
        self.prefetch, self.guards = prefetch, guards
        self.arrive, self._fill = arrive, fill
        self.reached: Callable[[], None] = nothing
        # In the loss: a forward has ended whose backward has not.
        self.in_forward = self.in_loss = self.in_backward = False
        self.is_summoned = False
        self.pinned: dict[Unit, None] = {}
        self.open: set[Unit] = set()
        self.order = ExecutionOrder(units)
        self._runs = Runs(self._through)
        self.needs = {unit: Need() for unit in units}
        # Runs whose forward has begun and not ended, the innermost last.
        self._entered: list[UnitRun] = []
        self.thread: int | None = None
        hook = self._hook if shards_parameters else self._hook_lightly
        self._handles = [handle for unit in units for module in unit.modules for handle in hook(unit, module)]
        # Registered last and put first: a forward begins before, and ends after, everything that its units do.
        begin = Hook(lambda module, _: self._begin_forward(module))
        end = Hook(lambda module, _args, output: self._end_forward(module, output))
        self._handles.append(model.register_forward_pre_hook(begin, prepend=True))
        self._handles.append(model.register_forward_hook(end, always_call=True))

    def _hook(self, unit: Unit, module: nn.Module) -> list[Any]:
        before = Hook(lambda _, args, kwargs: self._before_forward(unit, (args, kwargs)))
        after = Hook(lambda _module, _args, output: self._after_forward(unit, output))
        return [
            module.register_forward_pre_hook(before, with_kwargs=True, prepend=True),
            module.register_forward_hook(after, always_call=True),
        ]

    def _hook_lightly(self, unit: Unit, module: nn.Module) -> list[Any]:
        """Stages 0 to 2, whose units are always here: only wait for new parameters. The hook also ends a compiled graph
        at each unit; one graph of the whole model would bring all its gradients at once, at the end."""
        return [module.register_forward_pre_hook(Hook(lambda *_: self.arrive(unit)), prepend=True)]

    def begin_backward(self) -> None:
        self.in_backward = True

    def end_backward(self) -> None:
        self.in_loss = False
        self.let_go()

    def let_go(self) -> None:
        """Forget a backward that has ended or failed. (`in_loss` stays: another loss may wait for its backward.)"""
        self.in_backward = False
        self.order.end_backward()
        self._runs.end_backward()
        for need in self.needs.values():
            need.passes, need.begun = 0, False
        self.release_all()

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()

    def release_all(self, but_kept: bool = False) -> None:
        """Release all units that nobody needs."""
        if not self.shards_parameters:
            return
        self.guards.tell("before_release")
        for unit in self.units:
            if not (but_kept and self.needs[unit].kept):
                self.release(unit)

    def release(self, unit: Unit) -> None:
        """Release a unit, unless somebody may have a view of its parameters."""
        self.needs[unit].kept = False
        if not self.is_summoned and unit not in self.pinned:
            unit.release()

    def new_values(self) -> None:
        """Parameters have new values: what is gathered has the old ones, and so has every view."""
        self.pinned.clear()
        self.release_all()

    # Forward.

    def _begin_forward(self, model: nn.Module) -> None:
        if self.in_backward and current_backward() < 0:
            self.let_go()  # a loss.backward() has failed, of which nobody else notes the end
        if self.in_backward:
            return
        self.guards.tell("before_forward")
        self.thread, self.in_forward = get_ident(), True
        if not self.shards_parameters:
            return
        if self.is_summoned and torch.is_grad_enabled():
            # Whoever uses summoned parameters is not noticed, so each may be used outside its unit's forward.
            self.open.update(self.units)
        for unit, need in self.needs.items():
            if need.inside:
                # The last forward failed half-way.
                self.lend(unit, False)
            need.inside = need.ran = 0
        self._entered.clear()
        self.order.begin_forward()

    def _end_forward(self, model: nn.Module, output: Any) -> None:
        """Release what a forward left (a prefetched unit that was skipped, say), and learn the order of units."""
        if self.in_backward or self.thread != get_ident():
            return
        self.thread, self.in_forward = None, False
        self.in_loss |= torch.is_grad_enabled()
        outputs = tensors_in(output)
        for node in nodes_of(followed(outputs)):
            node.register_prehook(lambda _: self.reached())
        if not self.shards_parameters:
            return
        self.order.end_forward()
        self.release_all(but_kept=any(tensor.requires_grad for tensor in outputs))
        if not (torch.is_grad_enabled() and model.training):
            settle_all(self.units)  # the caller may write to the shards next, as it may after a backward

    def _before_forward(self, unit: Unit, inputs: Any) -> None:
        self.arrive(unit)
        with phase("backward" if self.in_backward else "forward"):
            if not self.in_backward:
                self.make_room(unit)
            unit.gather()
            self._enter(unit)
            if self.in_backward:
                return
            following = self.order.next_in_forward(unit)
            if self.prefetch:
                self.gather_ahead(following)
        self._entered.append(self._watch_inputs(unit, followed(tensors_in(inputs))))

    def _after_forward(self, unit: Unit, output: Any) -> None:
        self._leave(unit)
        if self.in_backward or not self._entered:
            return
        outputs = tensors_in(output)
        run = self._entered.pop()
        returns = self._watch_outputs(run, followed(outputs))
        self._runs.leave(run, returns)
        self.guards.tell("after_unit", unit, outputs)
        need = self.needs[unit]
        need.ran += 1
        if need.ran % len(unit.modules) == 0:
            need.kept = returns and self.keeps(unit)
            if not need.kept:
                self.release(unit)

    def _enter(self, unit: Unit) -> None:
        need = self.needs[unit]
        if not need.inside:
            self.lend(unit, True)
        need.inside += 1

    def _leave(self, unit: Unit) -> None:
        """A module of the unit has run, or failed."""
        need = self.needs[unit]
        if need.inside:
            need.inside -= 1
            if not need.inside:
                self.lend(unit, False)

    def lend(self, unit: Unit, lent: bool) -> None:
        """Let everybody use the gathered parameters of a unit, or no longer."""
        if self.shards_parameters and not self.is_summoned:
            self.guards.tell("lend" if lent else "take_back", unit)

    # Backward.

    def _watch_inputs(self, unit: Unit, inputs: list[torch.Tensor]) -> UnitRun:
        """A run is over when the gradients of all its inputs are known. Watched before the module runs, which may
        overwrite its inputs."""
        run = self._runs.enter(unit)
        run.missing = len(inputs)

        def known(_: torch.Tensor) -> None:
            run.missing -= 1
            if run.missing == 0 and run.begun:
                self.needs[unit].passes -= 1
                self.release_if_done(unit)

        for tensor in inputs:
            once(tensor, known)
        return run

    def _watch_outputs(self, run: UnitRun, outputs: list[torch.Tensor]) -> bool:
        """When the gradient of an output arrives the unit must be here. Returns whether one will.

        The hook is one of the node that made the output, since a node's hooks run after its tensor's: the next
        unit, whose input this is, hears first that it is done, and is released before this one is gathered.
        """
        nodes = nodes_of(outputs)
        if nodes:
            self.order.returning.append(run.unit)
        for node in nodes:
            node.register_prehook(lambda _: self._before_backward(run))
        return bool(nodes)

    def _before_backward(self, run: UnitRun) -> None:
        self.reached()
        unit = run.unit
        with phase("backward"):
            if run.begun:
                unit.gather()
                return
            self._runs.begin(run)
            unit.gather()
            if torch.is_grad_enabled():  # create_graph=True: the new graph has views of what is gathered now
                self.pinned[unit] = None
            need = self.needs[unit]
            need.begun = True
            need.passes += run.missing > 0
            before = self.order.next_in_backward(unit)
            if self.prefetch:
                self.gather_ahead(before)

    def release_if_done(self, unit: Unit) -> None:
        """In backward: release a unit that no run and no missing gradient needs any more."""
        need = self.needs[unit]
        if need.begun and not need.passes and all(bucket.complete for bucket in unit.trainable):
            self.release(unit)

    def _through(self, unit: Unit) -> None:
        """In backward: nothing that a unit's own forwards made is left to compute."""
        if unit not in self.open:
            self._fill(unit)
            self.release_if_done(unit)

    # How much is here at a time. (`limits.py` has other answers.)

    def gather_ahead(self, coming: list[Unit]) -> None:
        """Start to gather the next of the units to come, and to read the one after it, should it be on a disk."""
        for unit in coming[:1]:
            unit.start_gather()
        for unit in coming[1:2]:
            unit.prefetch()

    def keeps(self, unit: Unit) -> bool:
        """Whether a unit that has run in forward stays until its backward."""
        return False

    def make_room(self, unit: Unit) -> None:
        """A forward is about to gather a unit."""
