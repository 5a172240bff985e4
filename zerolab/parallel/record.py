"""What the ranks of a mesh had in each step of a program, for `check.py`: noted
by hooks, gradients both before anything is reduced and as the optimizer gets
them."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from zerolab.parallel.placement import Cut

Given = dict[str, tuple[int, Tensor]]
"""By name where in the flattened parameter a gradient begins, and the
gradient."""


@dataclass
class ModuleCall:
    """One call of a module: what went in and came out, and the gradient of
    that."""

    given: Tensor
    made: Tensor
    gradient: Tensor | None = None
    kept: Tensor | None = None
    """What a dropout let through."""


@dataclass
class RankStep:
    """What one rank had in one step, by the names of parameters and modules.

    own    gradients of each backward, of this rank alone
    given  gradients that the optimizer got
    calls  by module and number of the call
    notes  what the program reported
    """

    before: dict[str, Tensor]
    after: dict[str, Tensor] = field(default_factory=dict)
    own: dict[str, list[Tensor]] = field(default_factory=dict)
    given: Given = field(default_factory=dict)
    calls: dict[tuple[str, int], ModuleCall] = field(default_factory=dict)
    notes: dict[str, float] = field(default_factory=dict)


class RankRecorder:
    """Records the steps of one rank; `start` are values to begin with in the
    place of the model's own."""

    engine: Any = None

    def __init__(self, start: dict[str, Tensor] | None = None) -> None:
        self.start, self.steps, self.model = start, [RankStep({})], nn.Module()
        self.cuts: dict[str, Cut | None] = {}
        self.modules: dict[str, nn.Module] = {}
        # Ranks in lockstep are threads of a process, and torch's hook is for all.
        self._thread = threading.get_ident()
        self._counts: Counter[str] = Counter()
        self._hook = register_optimizer_step_pre_hook(self._optimizer_steps)

    def watch(self, model: nn.Module) -> None:
        self.model = model
        self.cuts = {name: getattr(its, "cut", None) for name, its in model.named_parameters()}
        self.modules = dict(model.named_modules())
        for name, parameter in model.named_parameters():
            if self.start is not None:
                parameter.data.copy_(self.start[name])
            parameter.register_hook(lambda gradient, name=name: self._brings(name, gradient))
        for name, module in self.modules.items():
            module.register_forward_hook(lambda m, given, made, name=name: self._runs(name, m, given, made))
        self.steps[-1].before = self.values()

    def values(self) -> dict[str, Tensor]:
        return {name: its.detach().clone() for name, its in self.model.named_parameters()}

    def _brings(self, name: str, gradient: Tensor) -> None:
        self.steps[-1].own.setdefault(name, []).append(gradient.detach().clone())

    def _runs(self, name: str, module: nn.Module, given: tuple[Any, ...], made: Any) -> None:
        first = next((one for one in given if isinstance(one, Tensor)), None)
        if not isinstance(made, Tensor) or first is None:
            return
        call = ModuleCall(first.detach().clone(), made.detach().clone())
        self.steps[-1].calls[name, self._counts[name]] = call
        self._counts[name] += 1
        if isinstance(module, nn.Dropout):
            call.kept = (call.made != 0) | (call.given == 0)
        if made.requires_grad:
            made.register_hook(lambda gradient: setattr(call, "gradient", gradient.clone()))

    def _optimizer_steps(self, optimizer: Any, *_: Any) -> None:
        if threading.get_ident() != self._thread:
            return
        own = {id(its) for group in optimizer.param_groups for its in group["params"]}
        for name, parameter in self.model.named_parameters():
            if id(parameter) in own:
                gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                self.steps[-1].given[name] = 0, gradient.detach().clone().flatten()
        if self.engine is not None and optimizer is self.engine.optimizer:
            self.steps[-1].given |= shards_of(self.engine)

    def end_step(self, notes: dict[str, Any]) -> None:
        step = self.steps[-1]
        step.after = self.values()
        step.notes = {name: float(value) for name, value in notes.items() if value is not None}
        self.steps.append(RankStep(step.after))
        self._counts.clear()

    def close(self) -> list[RankStep]:
        """The steps that have ended."""
        self._hook.remove()
        return self.steps[:-1]


def shards_of(engine: Any) -> Given:
    """The averaged gradients of which an engine's rank has a shard."""
    found: Given = {}
    for bucket in engine.reducer.order:
        first, shard = bucket.layout.shard(bucket.comm.rank)[0], bucket.reduced_shard()
        for piece in bucket.layout.pieces(bucket.comm.rank):
            part = shard[piece.start - first : piece.stop - first]
            found[piece.slot.name] = piece.start - piece.slot.start, part.detach().clone()
    return found
