"""What a model's forward and backward compute, make and let go: a run on the meta device.

Layers repeat, so three of them are run, and the middle one stands for all between the first and the last. What a kernel
takes and frees inside one operation is in no ledger.
"""

from __future__ import annotations

import weakref
from contextlib import ContextDecorator
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from zerolab.apps.cost.machine import Operation, operation_of
from zerolab.apps.plan.mixture import build_model
from zerolab.memory.track import default_kind
from zerolab.models import Config, LanguageModel
from zerolab.precision.recipe import Precision
from zerolab.run import RunSpec

META = torch.device("meta")
TRACED_LAYERS = 3
"""The first and the last layer have other neighbours than those between."""


class Work(NamedTuple):
    """What one micro-batch computes, in the dtype of the parameters.

    checkpoint  layers keep their input and are computed anew in backward
    attention   "flash": by a kernel that stores no scores; "eager": with the scores kept for backward
    """

    batch: int
    tokens: int
    dtype: torch.dtype = torch.float32
    checkpoint: bool = False
    attention: str = "flash"
    dropout: float = 0.0


class HookEvent(NamedTuple):
    """What a module has done since the last event, and which hook it calls then.

    hook        pre_forward: its forward begins, also where a checkpoint repeats it inside backward
                post_forward: its forward ended
                pre_backward: in backward, the gradient of its output has come
                gradient: in backward, that of a parameter (its number); it is dropped when it has been taken
                "": none, its part ends
    top, end    how memory has changed: (activations, other) where their sum is highest, and at the end; None: in
                nothing. What is made while gradients are recorded is activations
    operations  what the device computed, in order, beside the engine's own
    """

    hook: str
    module: int
    parameter: int
    top: tuple[int, int] | None
    end: tuple[int, int]
    operations: tuple[Operation, ...]


class TracedPart(NamedTuple):
    """What happens in one module in forward or in backward; the loss stands with the head."""

    phase: str
    module: int
    events: list[HookEvent]


class Flash(TorchFunctionMode, ContextDecorator):
    """Attention by the kernel that stores no scores, which torch does not choose on the meta device. Dropout keeps a
    byte for each activation, as on GPUs, and for scores none."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.scaled_dot_product_attention:
            return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(*args, **{**kwargs, "dropout_p": 0.0})[0]
        if func is F.dropout:
            return torch.native_dropout(args[0], kwargs["p"], True)[0]
        return func(*args, **(kwargs or {}))


class MetaRecorder(TorchDispatchMode):
    """Notes each storage that comes and goes, and what operations compute, between hooks."""

    def __init__(self, model: LanguageModel, inputs: Tensor) -> None:
        super().__init__()
        self.parts = [TracedPart("forward", 0, [])]
        self.top: tuple[int, int] | None = None
        self.end = (0, 0)
        self.operations: list[Operation] = []
        self.seen = weakref.WeakSet(tensor.untyped_storage() for tensor in (inputs, *model.parameters()))
        owned: set[nn.Parameter] = set()
        for number, module in enumerate(model.units()):
            module.register_forward_pre_hook(partial(self._before, number))
            module.register_forward_hook(partial(self._after, number))
            for place, parameter in enumerate(module.parameters()):
                if parameter not in owned:
                    owned.add(parameter)
                    parameter.register_post_accumulate_grad_hook(partial(self._drop, number, place))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if operation := operation_of(func, args, kwargs or {}, result):
            self.operations.append(operation)
        for tensor in result if isinstance(result, list | tuple) else [result]:
            if isinstance(tensor, Tensor):
                self._see(tensor.untyped_storage())
        return result

    def _see(self, storage: torch.UntypedStorage) -> None:
        if storage not in self.seen and (nbytes := storage.nbytes()):
            self.seen.add(storage)
            kind = default_kind(inside_call=False)
            self._note(kind, nbytes)
            weakref.finalize(storage, self._note, kind, -nbytes)

    def _note(self, kind: str, nbytes: int) -> None:
        activations, other = self.end
        self.end = (activations + nbytes, other) if kind == "activations" else (activations, other + nbytes)
        self.top = max(self.top or (0, 0), self.end, key=sum)

    def end_event(self, hook: str, module: int, parameter: int = 0) -> None:
        self.parts[-1].events.append(HookEvent(hook, module, parameter, self.top, self.end, tuple(self.operations)))
        self.top, self.end, self.operations = None, (0, 0), []

    def begin_part(self, phase: str, module: int) -> None:
        self.end_event("", self.parts[-1].module)
        self.parts.append(TracedPart(phase, module, []))

    def _before(self, number: int, _module: nn.Module, _inputs: Any) -> None:
        if number and self.parts[-1].phase == "forward":
            self.begin_part("forward", number)
        self.end_event("pre_forward", number)

    def _after(self, number: int, _module: nn.Module, _inputs: Any, output: Tensor) -> None:
        if self.parts[-1].phase == "forward":
            self.end_event("post_forward", number)
            output.grad_fn.register_prehook(partial(self._return, number))  # type: ignore[union-attr]

    def _return(self, number: int, _gradients: Any) -> None:
        if self.parts[-1].module != number:
            self.begin_part("backward", number)
        self.end_event("pre_backward", number)

    def _drop(self, number: int, place: int, parameter: Tensor) -> None:
        self.end_event("gradient", number, place)
        parameter.grad = None


def run_once(config: Config, work: Work) -> list[TracedPart]:
    """The parts of one micro-batch of this very model."""
    with META:
        model = build_model(config, work.checkpoint, work.dropout).to(work.dtype)
        inputs, targets = torch.empty(2, work.batch, work.tokens, dtype=torch.int64).unbind()
    for module in model.units() if work.attention == "flash" else ():
        # Around each forward, also one that a checkpoint repeats in the middle of backward.
        module.forward = Flash()(module.forward)
    with MetaRecorder(model, inputs) as recorder:
        loss = model(inputs, targets)
        recorder.begin_part("backward", config.layers + 1)
        loss.backward()
        del loss
        recorder.end_event("", 0)
    return recorder.parts


@lru_cache(maxsize=256)
def trace_layers(config: Config, work: Work) -> tuple[TracedPart, ...]:
    """The parts of one micro-batch. Layers between the first and the last are alike."""
    traced = min(config.layers, TRACED_LAYERS)
    more = config.layers - traced
    found: list[TracedPart] = []
    for part in run_once(replace(config, layers=traced), work):
        extra = range(more + 1) if part.module == 2 else [more if part.module > 2 else 0]
        copies = [shift_part(part, by) for by in extra]
        found += copies if part.phase == "forward" else reversed(copies)
    return tuple(found)


def shift_part(part: TracedPart, by: int) -> TracedPart:
    """The same part of a later module. (Bytes that belong to a neighbour stay where they are noted.)"""
    events = [event._replace(module=event.module + by) for event in part.events]
    return TracedPart(part.phase, part.module + by, events)


def work_of(run: RunSpec) -> Work:
    # Torch's attention on CPUs keeps the scores where some of them are dropped.
    attention = run.attention if run.on_gpus or not run.dropout else "eager"
    return Work(run.micro_batch_size, run.seq_len, dtype_of(run), run.checkpoint_activations, attention, run.dropout)


def dtype_of(run: RunSpec) -> torch.dtype:
    return (run.dtypes or Precision()).dtype("params")
