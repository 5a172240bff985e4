"""A backward: where it begins and ends, and which engines take its gradients.

`engine.backward(loss)` says both. With `loss.backward()` nobody does, so a backward begins when autograd comes to the
engine's output or brings the first gradient of a parameter, and ends by autograd's own callback at the end of a pass.
A pass that brings no gradients to parameters, as `torch.autograd.grad(loss, inputs)` makes one, only gathers units.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch._C import DisableTorchFunctionSubclass, _will_engine_execute_node
from torch.autograd import Variable
from torch.autograd.graph import get_gradient_edge

from zerolab.collectives import phase
from zerolab.collectives.call import backward_phase, current_phase, phase_now
from zerolab.errors import StateError
from zerolab.gpu import door
from zerolab.zero.reducer import Reducer
from zerolab.zero.schedule import GatherSchedule
from zerolab.zero.units import settle_all


class StrayError(StateError):
    """The gradients of one engine's backward went on to a model, told by its type, that is in another engine."""


class Backward:
    """The backwards of one engine.

    check    called before one begins: raises if the engine cannot take it
    scale    what the next loss is multiplied by
    reduces  whether gradients are averaged over the ranks, or wait for a later backward's
    failed   one has begun and not ended well
    """

    def __init__(
        self,
        name: str,
        device: torch.device,
        reducer: Reducer,
        schedule: GatherSchedule,
        check: Callable[[], None],
        scale: Callable[[], float],
    ) -> None:
        self.name, self.device, self.reducer, self.schedule = name, device, reducer, schedule
        self.check, self.scale = check, scale
        self.reduces, self.failed = True, False
        reducer.reached = schedule.reached = self.reached

    def begin(self, reduce: bool) -> None:
        self.failed = True
        self.schedule.begin_backward()
        self.reducer.begin(reduce)

    def end(self) -> None:
        self.reducer.end()
        self.schedule.end_backward()

    def has_ended(self) -> None:
        """It has ended well. From here on others may write to the shards."""
        settle_all(self.schedule.units)
        self.failed = False

    def reached(self) -> None:
        """Autograd has come to what the model gave, or to one of its parameters: in no backward yet, one begins."""
        if self.schedule.in_backward:
            return
        if (phase_now() if door.drives(self.device) else current_phase.get()) == "backward":
            # Within engine.backward of another one. (Ranks that take turns have no GPU, whose threads have no context.)
            raise StrayError(self.name)
        # Autograd calls what is queued when the pass that runs now has ended well.
        at_end_of_pass = Variable._execution_engine.queue_callback
        if not self._takes_gradients():
            self.schedule.begin_backward()
            at_end_of_pass(self._let_go)
            return
        if self.scale() != 1.0:
            raise StateError(
                f"loss.backward() takes the loss as it is, and fp16 scales it by {self.scale():g}; call "
                "engine.backward(loss)"
            )
        self.check()
        self.begin(self.reduces)
        at_end_of_pass(self._finish)

    def _let_go(self) -> None:
        self.schedule.let_go()
        settle_all(self.schedule.units)

    def _finish(self) -> None:
        try:
            with phase("backward"):
                self.reducer.finish()
        finally:
            self.end()
        self.has_ended()

    def _takes_gradients(self) -> bool:
        """Whether the pass that runs now brings gradients to one of the parameters."""
        try:
            with DisableTorchFunctionSubclass():
                trained = [its for bucket in self.reducer.order for its in bucket.parameters if its.requires_grad]
                return any(_will_engine_execute_node(get_gradient_edge(parameter).node) for parameter in trained)
        except (RuntimeError, AttributeError):
            # Of what torch.autograd.grad was asked for torch does not say it, and in a transform of torch.func a
            # parameter has no node: both hand gradients to their caller.
            return False


def run_backward(backwards: Sequence[Backward], loss: torch.Tensor, reduce: bool | None) -> None:
    """Bring the gradients of `loss` to the parameters of all these engines, of which the first scales it."""
    first = backwards[0]
    for one in backwards:
        one.check()
    for one in backwards:
        one.begin(one.reduces if reduce is None else reduce)
    try:
        with backward_phase("backward"):
            (loss if first.scale() == 1.0 else loss.float() * first.scale()).backward()
            for one in backwards:
                one.reducer.finish()
    except StrayError as stray:
        raise StateError(
            f"this backward of the engine of {first.name} went on into {stray}, which is in another engine: name that "
            "one, backward(loss, also=[engine]), or detach() the tensor between the two"
        ) from None
    finally:
        for one in backwards:
            one.end()
    for one in backwards:
        one.has_ended()
