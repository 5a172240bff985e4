"""Backwards that the engine alone does not know of: `loss.backward()`, and one that came from another engine.

`engine.backward(loss)` says where a backward begins and ends. With `loss.backward()` nobody does, so one begins when
autograd comes to the engine's output or brings the first gradient of a parameter, and ends by autograd's own callback
at the end of a pass. A pass that brings no gradients to parameters, as `torch.autograd.grad(loss, inputs)` makes one,
only gathers units.
"""

from __future__ import annotations

from functools import partial

from torch._C import DisableTorchFunctionSubclass, _will_engine_execute_node
from torch.autograd import Variable
from torch.autograd.graph import get_gradient_edge

from zerolab.collectives import phase
from zerolab.collectives.call import current_phase, phase_now
from zerolab.errors import StateError
from zerolab.gpu import door
from zerolab.zero.engine import Engine
from zerolab.zero.units import settle_all


def reached(engine: Engine) -> None:
    """Autograd has come to what the model gave, or to one of its parameters: in no backward yet, one begins."""
    if engine.schedule.in_backward:
        return
    if (phase_now() if door.drives(engine.comm.device) else current_phase.get()) == "backward":
        # Within engine.backward of another one. (Ranks that take turns have no GPU, whose threads have no context.)
        raise StateError(
            f"a backward of one engine went on into {type(engine.model).__name__}, which is in another: name that one, "
            "backward(loss, also=[engine]), or detach() the tensor between the two"
        )
    # Autograd calls what is queued when the pass that runs now has ended well.
    at_end_of_pass = Variable._execution_engine.queue_callback
    if not takes_gradients(engine):
        engine.schedule.begin_backward()
        at_end_of_pass(engine.schedule.let_go)
        at_end_of_pass(partial(settle_all, engine.units))
        return
    if engine.loss_scale != 1.0:
        raise StateError(
            f"loss.backward() takes the loss as it is, and fp16 scales it by {engine.loss_scale:g}; call "
            "engine.backward(loss)"
        )
    engine.check_ready()
    engine.begin_backward()

    def finish() -> None:
        with phase("backward"), engine.taking_gradients():
            """All gradients are here."""

    at_end_of_pass(finish)


def takes_gradients(engine: Engine) -> bool:
    """Whether the pass that runs now brings gradients to one of the engine's parameters."""
    try:
        with DisableTorchFunctionSubclass():
            trained = [its for bucket in engine.reducer.order for its in bucket.parameters if its.requires_grad]
            return any(_will_engine_execute_node(get_gradient_edge(parameter).node) for parameter in trained)
    except (RuntimeError, AttributeError):
        # Of what torch.autograd.grad was asked for torch does not say it, and in a transform of torch.func a parameter
        # has no node: both hand gradients to their caller.
        return False
