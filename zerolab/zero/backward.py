"""A backward: where it begins and ends, and which engines take its gradients.

`engine.backward(loss)` says both. With `loss.backward()` nobody does, so a backward begins when autograd comes to the
engine's output or brings the first gradient of a parameter, and ends by autograd's own callback at the end of a pass.
A pass that brings no gradients to parameters, as `torch.autograd.grad(loss, inputs)` makes one, only gathers units.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING
from weakref import ReferenceType

import torch
from torch._C import DisableTorchFunctionSubclass, _will_engine_execute_node
from torch.autograd import Variable
from torch.autograd.graph import get_gradient_edge

from zerolab.collectives import phase
from zerolab.collectives.call import backward_phase, current_phase, phase_now
from zerolab.errors import InputError, StateError
from zerolab.gpu import door
from zerolab.zero.units import settle_all
from zerolab.zero.wrapped import THAWED

if TYPE_CHECKING:
    from zerolab.zero.engine import ZeroEngine


class StrayError(StateError):
    """The gradients of one engine's backward went on to a model, told by its type, that is in another engine."""


def check_together(first: ZeroEngine, others: Sequence[ZeroEngine]) -> list[ZeroEngine]:
    """The engines of one backward, each once."""
    engines = list(dict.fromkeys([first, *others]))
    for engine in engines:
        if not isinstance(engine, type(first)):
            raise InputError(f"also names a {type(engine).__name__}; give a list of ZeroEngines")
        if engine.loss_scale != first.loss_scale:
            raise InputError(
                f"losses are scaled by {first.loss_scale:g} in one engine and by {engine.loss_scale:g} in another, and "
                "one loss cannot be for both; give both one scale by ZeroEngine(scaler=LossScaler(static=...))"
            )
    return engines


def run_backward(engines: Sequence[ZeroEngine], loss: torch.Tensor, reduce: bool | None) -> None:
    """Bring the gradients of `loss` to the parameters of all these engines, of which the first scales it."""
    first = engines[0]
    for engine in engines:
        check_ready(engine)
    for engine in engines:
        begin(engine, engine._reduces if reduce is None else reduce)
    try:
        with backward_phase("backward"):
            (loss if first.scaler is None else loss.float() * first.scaler.scale).backward()
            for engine in engines:
                engine.reducer.finish()
    except StrayError as stray:
        raise StateError(
            f"this backward of the engine of {type(first.model).__name__} went on into {stray}, which is in "
            "another engine: name that one, backward(loss, also=[engine]), or detach() the tensor between the two"
        ) from None
    finally:
        for engine in engines:
            end(engine)
    for engine in engines:
        has_ended(engine)


def check_ready(engine: ZeroEngine) -> None:
    """Refuse a backward that an engine cannot take."""
    if engine.closed:
        raise StateError("this engine was closed and takes no gradients; wrap the model again in a new ZeroEngine")
    if engine._failed:
        raise StateError("an earlier backward failed half-way; call zero_grad() and repeat the whole step")
    engine._check_whole()
    engine._refuse_lost()
    engine._refuse_unpublished()
    for name in sorted(engine.toggled):
        raise StateError(
            f"requires_grad of {name} is not what it was when its model went into a ZeroEngine: set it back before "
            f"backward, or {THAWED}"
        )


def begin(engine: ZeroEngine, reduce: bool) -> None:
    engine._failed = True
    engine.residency.begin_backward()
    engine.reducer.begin(reduce)


def end(engine: ZeroEngine) -> None:
    engine.reducer.end()
    engine.residency.end_backward()


def has_ended(engine: ZeroEngine) -> None:
    """A backward has ended well. From here on others may write to the shards."""
    settle_all(engine.units)
    engine._failed = False


def reached(its: ReferenceType[ZeroEngine]) -> None:
    """Autograd has come to an engine's output or to one of its parameters: in no backward yet, one begins."""
    engine = its()
    if engine is None or engine.residency.in_backward:
        return
    if (phase_now() if door.drives(engine.comm.device) else current_phase.get()) == "backward":
        # Within engine.backward of another one. (Ranks that take turns have no GPU, whose threads have no context.)
        raise StrayError(type(engine.model).__name__)
    # Autograd calls what is queued when the pass that runs now has ended well.
    at_end_of_pass = Variable._execution_engine.queue_callback
    if not takes_gradients(engine):
        engine.residency.begin_backward()

        def let_go() -> None:
            engine.residency.let_go()
            settle_all(engine.units)

        at_end_of_pass(let_go)
        return
    if engine.loss_scale != 1.0:
        raise StateError(
            f"loss.backward() takes the loss as it is, and fp16 scales it by {engine.loss_scale:g}; call "
            "engine.backward(loss)"
        )
    check_ready(engine)
    begin(engine, engine._reduces)

    def finish() -> None:
        try:
            with phase("backward"):
                engine.reducer.finish()
        finally:
            end(engine)
        has_ended(engine)

    at_end_of_pass(finish)


def takes_gradients(engine: ZeroEngine) -> bool:
    """Whether the pass that runs now brings gradients to one of the engine's parameters."""
    try:
        with DisableTorchFunctionSubclass():
            trained = [its for bucket in engine.reducer.order for its in bucket.parameters if its.requires_grad]
            return any(_will_engine_execute_node(get_gradient_edge(parameter).node) for parameter in trained)
    except (RuntimeError, AttributeError):
        # Of what torch.autograd.grad was asked for torch does not say it, and in a transform of torch.func a parameter
        # has no node: both hand gradients to their caller.
        return False
