"""When a unit's parameters must be here: hooks on its modules, and units gathered ahead.

Forward     before a module: gather its unit. After all modules of the unit: release, unless it is kept.
Backward    when the gradient of a module's output arrives: gather again. When backward comes to an earlier run,
            release: all that later runs recorded has been computed.
Recompute   a checkpointed module runs its forward again inside backward: its unit is gathered, and stays.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from operator import attrgetter
from threading import get_ident
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import nn
from torch._C import _current_graph_task_id as current_backward
from torch.utils._pytree import tree_leaves

from zerolab.collectives.call import phase
from zerolab.errors import StateError
from zerolab.zero.units import Presence, Unit, settle_all

COPY = "a copy or a pickle of a model that is in a ZeroEngine would be parted from it: take engine.state_dict()"


class Hook:
    """A function that a module calls around its forward. It refuses to be copied with its module, since the copy would
    call it, too. Under torch.compile one graph ends, the function runs, and the next graph begins."""

    def __init__(self, run: Callable[..., Any]) -> None:
        self.run = run
        self.between_graphs = torch.compiler.disable(
            run,
            reason="ZeroEngine gathers and releases units between compiled graphs: call torch.compile without "
            "fullgraph=True",
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # Outside of torch.compile the wrapper does nothing but cost time, at every module.
        if torch.compiler.is_compiling():
            return self.between_graphs(*args, **kwargs)
        return self.run(*args, **kwargs)

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise StateError(COPY)


class Guards:
    """What is attached to an engine from outside: objects with methods for some of these moments. Each may raise.

    attach(engine), detach(engine)            the engine is complete; it is closed
    before_call()                             the engine is called
    before_forward(), before_backward()       the model's own forward begins; a backward
    before_step(), before_update()            a step or an overwrite begins; the optimizer is about to run
    before_read()                             parameters are about to be saved, or handed out whole
    new_values()                              parameters have new values, by a step or because they were overwritten
    lend(unit), take_back(unit)               everybody may use the gathered parameters of a unit, and no longer
    after_unit(unit, outputs)                 a module of the unit gave these tensors
    before_release()                          all units that nobody needs are about to be released
    published(unit), arrived(unit)            a step returns while its new parameters are on their way; they came
    """

    def __init__(self, guards: Sequence[Any]) -> None:
        self.guards = list(guards)
        self._methods: defaultdict[str, list[Callable[..., None]]] = defaultdict(list)
        for guard in guards:
            for name in dir(guard):
                if not name.startswith("_") and callable(getattr(type(guard), name, None)):
                    self._methods[name].append(getattr(guard, name))

    def tell(self, moment: str, *about: Any) -> None:
        for method in self._methods.get(moment, ()):
            method(*about)


def nodes_of(outputs: list[torch.Tensor]) -> set[Any]:
    """The nodes of autograd's graph that made these tensors, and the bases of views."""
    if not torch.is_grad_enabled():
        return set()
    followed = [output for output in outputs if output.requires_grad]
    made = [tensor for output in followed for tensor in (output, output._base) if tensor is not None]
    return {tensor.grad_fn for tensor in made if tensor.grad_fn is not None}


def tensors_in(tree: Any) -> list[torch.Tensor]:
    """Tensors in nested tuples, lists, dicts and dataclasses."""
    if isinstance(tree, torch.Tensor):
        return [tree]
    # What forwards mostly give. Torch's own walk knows more, and takes ten times as long.
    if type(tree) is tuple or type(tree) is list:
        return [tensor for part in tree for tensor in tensors_in(part)]
    if type(tree) is dict:
        return [tensor for part in tree.values() for tensor in tensors_in(part)]
    leaves = tree_leaves(tree)
    if len(leaves) != 1 or leaves[0] is not tree:
        return tensors_in(leaves)
    if is_dataclass(tree) and not isinstance(tree, type):
        return tensors_in([getattr(tree, field.name) for field in fields(tree)])
    return []


class UnitRun:
    """One call of one of a unit's modules, or another use of its parameters.

    entered, left   when its forward began and ended, counted over all runs
    begun           whether backward has come to its outputs
    """

    def __init__(self, unit: Unit, entered: int) -> None:
        self.unit = unit
        self.entered = self.left = entered
        self.begun = False


class ExecutionOrder:
    """Runs of units. A forward is taken to go as the last one went; a backward, the way of its forwards back.

    Of the operations that autograd may compute next, it takes the one that the forward recorded last. So when backward
    comes to the outputs of one run, it has computed all that later runs recorded. A parameter of a later run that has
    no gradient by then was not used there, as in an expert to which no token came.

    last      the units of the last forward's runs, in order; before the first forward a guess
    running   the units of this forward's runs so far
    """

    def __init__(self, units: list[Unit]) -> None:
        self.last = [*units, *(unit for unit in units for _ in unit.modules[1:])]
        self.is_guess = True
        self.running: list[Unit] = []
        self._clock = 0
        # Runs to which backward may come, by when they ended, as long as a graph holds them; those to which it came.
        self._ahead: WeakValueDictionary[int, UnitRun] = WeakValueDictionary()
        self._begun: list[UnitRun] = []

    def enter(self, unit: Unit) -> UnitRun:
        """A forward of one of the unit's modules begins, or another use of its parameters."""
        self._clock += 1
        return UnitRun(unit, self._clock)

    def leave(self, run: UnitRun) -> None:
        """It has ended, and backward may come to its outputs."""
        self._clock += 1
        run.left = self._clock
        self._ahead[run.left] = run

    def following(self) -> list[Unit]:
        """The units that followed the one that runs, at this point of the last forward; none if another ran there."""
        at = len(self.running)
        return self.last[at:] if self.last[at - 1 : at] == self.running[-1:] else []

    def end_forward(self) -> None:
        self.last, self.running, self.is_guess = self.running, [], False

    def begin_backward(self, run: UnitRun) -> tuple[list[Unit], list[Unit]]:
        """Backward comes to the outputs of a run. Returns units that get no more gradients, and those to come."""
        run.begun = True
        self._ahead.pop(run.left, None)
        # `items()` would take several times as long, and each of a thousand runs may have a thousand before it.
        ahead = reversed(self._ahead.valuerefs())
        coming = [other.unit for weak in ahead if (other := weak()) is not None and other.left < run.left]
        ended = [other.unit for other in self._begun if other.entered > run.left]
        self._begun = [other for other in self._begun if other.entered < run.left] + [run]
        needed = {*coming, *(other.unit for other in self._begun)}
        return [unit for unit in dict.fromkeys(ended) if unit not in needed], coming

    def end_backward(self) -> None:
        self._begun.clear()


class GatherSchedule:
    """Gathers and releases units around their modules' forward and backward.

    limits   how much may come ahead and be kept (`limits.py`); None: the next unit comes, and none is kept
    fill     called of a unit that gets no more gradients in this backward: those that did not come are zero
    reached  called when autograd comes to what the model gave
    pinned   units that stay until parameters have new values: somebody may have views of them
    open     units of which not all uses are noticed, nor when their last gradient comes
    """

    def __init__(
        self,
        model: nn.Module,
        units: list[Unit],
        shards_parameters: bool,
        prefetch: bool,
        limits: Any,
        guards: Guards,
        fill: Callable[[Unit], None],
        reached: Callable[[], None],
    ) -> None:
        self.units, self.shards_parameters = units, shards_parameters
        self.prefetch, self.limits, self.guards = prefetch, limits, guards
        self.fill, self.reached = fill, reached
        # In the loss: a forward has ended whose backward has not.
        self.in_loss = self.in_backward = self.is_summoned = False
        self.pinned: dict[Unit, None] = {}
        self.open: set[Unit] = set()
        self.order = ExecutionOrder(units)
        # The thread whose forward goes on, and its runs that have begun and not ended, the innermost last.
        self.thread: int | None = None
        self._entered: list[UnitRun] = []
        hook = self._hook if shards_parameters else self._hook_lightly
        self._handles = [handle for unit in units for module in unit.modules for handle in hook(unit, module)]
        # Registered last and put first: a forward begins before, and ends after, everything that its units do.
        begin = Hook(lambda module, _: self._begin_forward(module))
        end = Hook(lambda module, _args, output: self._end_forward(module, output))
        self._handles.append(model.register_forward_pre_hook(begin, prepend=True))
        self._handles.append(model.register_forward_hook(end, always_call=True))

    def _hook(self, unit: Unit, module: nn.Module) -> list[Any]:
        before = Hook(lambda *_: self._before_forward(unit))
        after = Hook(lambda _module, _args, output: self._after_forward(unit, output))
        return [
            module.register_forward_pre_hook(before, prepend=True),
            module.register_forward_hook(after, always_call=True),
        ]

    def _hook_lightly(self, unit: Unit, module: nn.Module) -> list[Any]:
        """Stages 0 to 2: only wait for new parameters. The hook also ends a compiled graph at each unit; one graph of
        the whole model would bring all its gradients at once."""
        return [module.register_forward_pre_hook(Hook(lambda *_: self.arrive(unit)), prepend=True)]

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()

    def arrive(self, unit: Unit) -> None:
        if unit.arriving:
            unit.arrive()
            self.guards.tell("arrived", unit)

    # Release.

    def release(self, unit: Unit) -> None:
        """Release a unit, unless somebody may have a view of its parameters."""
        unit.kept = False
        if not self.is_summoned and unit not in self.pinned:
            unit.release()

    def release_unused(self, unit: Unit) -> None:
        if not (self.in_backward or unit.inside or unit.kept):
            self.release(unit)

    def release_all(self, but_kept: bool = False) -> None:
        if not self.shards_parameters:
            return
        self.guards.tell("before_release")
        for unit in self.units:
            if not (but_kept and unit.kept):
                self.release(unit)

    def new_values(self) -> None:
        self.pinned.clear()
        self.open.clear()
        self.release_all()

    # Forward.

    @property
    def in_forward(self) -> bool:
        return self.thread is not None

    def _begin_forward(self, model: nn.Module) -> None:
        if self.in_backward and current_backward() < 0:
            self.let_go()  # a loss.backward() has failed, of which nobody else notes the end
        if self.in_backward:
            return
        self.guards.tell("before_forward")
        self.thread = get_ident()
        if not self.shards_parameters:
            return
        if self.is_summoned and torch.is_grad_enabled():
            # Whoever uses summoned parameters is not noticed, so each may be used outside its unit's forward.
            self.open.update(self.units)
        for unit in self.units:
            if unit.inside:
                self.lend(unit, False)
            unit.inside = unit.ran = 0
        self._entered.clear()
        self.order.running.clear()

    def _end_forward(self, model: nn.Module, output: Any) -> None:
        if self.in_backward or self.thread != get_ident():
            return
        self.thread = None
        self.in_loss |= torch.is_grad_enabled()
        outputs = tensors_in(output)
        for node in nodes_of(outputs):
            node.register_prehook(lambda _: self.reached())
        if not self.shards_parameters:
            return
        self.order.end_forward()
        self.release_all(but_kept=any(tensor.requires_grad for tensor in outputs))
        if not (torch.is_grad_enabled() and model.training):
            settle_all(self.units)  # the caller may write to the shards next, as it may after a backward

    def _before_forward(self, unit: Unit) -> None:
        self.arrive(unit)
        with phase("backward" if self.in_backward else "forward"):
            if not self.in_backward:
                self.make_room(unit)
            unit.gather()
            if not unit.inside:
                self.lend(unit, True)
            unit.inside += 1
            if self.in_backward:
                return
            self._entered.append(self.order.enter(unit))
            self.order.running.append(unit)
            if self.prefetch and not self.order.is_guess:
                self.gather_ahead(self.order.following())

    def _after_forward(self, unit: Unit, output: Any) -> None:
        if unit.inside:
            unit.inside -= 1
            if not unit.inside:
                self.lend(unit, False)
        if self.in_backward or not self._entered:
            return
        outputs = tensors_in(output)
        returns = self.watch(self._entered.pop(), outputs)
        self.guards.tell("after_unit", unit, outputs)
        unit.ran += 1
        if unit.ran % len(unit.modules) == 0:
            unit.kept = returns and self.keeps(unit)
            if not unit.kept:
                self.release(unit)

    def watch(self, run: UnitRun, outputs: list[torch.Tensor]) -> bool:
        """When the gradient of an output arrives the unit must be here. Returns whether one will."""
        nodes = nodes_of(outputs)
        if nodes:
            self.order.leave(run)
        for node in nodes:
            node.register_prehook(lambda _: self._before_backward(run))
        return bool(nodes)

    def lend(self, unit: Unit, lent: bool) -> None:
        if self.shards_parameters and not self.is_summoned:
            self.guards.tell("lend" if lent else "take_back", unit)

    # Backward.

    def _before_backward(self, run: UnitRun) -> None:
        self.reached()
        with phase("backward"):
            coming: list[Unit] = []
            if not run.begun:
                done, coming = self.order.begin_backward(run)
                # Before the gather, so that all ranks start the same reductions before it, whichever gradients came.
                for unit in done:
                    if unit not in self.open:
                        self.fill(unit)
                        self.release(unit)
            run.unit.gather()
            if torch.is_grad_enabled():  # create_graph=True: the new graph has views of what is gathered now
                self.pinned[run.unit] = None
            if self.prefetch:
                self.gather_ahead(coming)

    def let_go(self) -> None:
        """Forget a backward that has ended or failed. (`in_loss` stays: another loss may wait for its backward.)"""
        self.in_backward = False
        self.order.end_backward()
        self.release_all()

    # How much is here at a time.

    def gather_ahead(self, coming: list[Unit]) -> None:
        """Start to gather the next of the units to come, and to read the one after it, should it be on a disk."""
        count = 1
        if self.limits is not None:
            sizes = ((unit.numel, unit.presence is not Presence.SHARDED) for unit in coming)
            count = self.limits.ahead(sizes, self.limits.live(self.units))
        for unit in coming[:count]:
            unit.start_gather()
        for unit in coming[count : count + 1]:
            unit.prefetch()

    def keeps(self, unit: Unit) -> bool:
        """Whether a unit that has run in forward stays. (Nobody knows its next use where another ran before.)"""
        order, at = self.order, len(self.order.running)
        if self.limits is None or order.last[at - 1 : at] != order.running[-1:]:
            return False
        return bool(self.limits.keeps(unit, order.following(), attrgetter("numel")))

    def make_room(self, unit: Unit) -> None:
        """Let go of what earlier units kept, if this one beside them is too much."""
        if self.limits is None or unit.presence is not Presence.SHARDED:
            return
        if not self.limits.has_room(self.limits.live(self.units), unit.numel):
            for other in self.units:
                if other.kept:
                    self.release(other)
