"""A virtual world: of any number of ranks the first runs the real function, on tensors without values.

Their tensors are torch's fake ones (FakeTensorMode): they have shapes, dtypes, devices and storages with a size, and no
memory, so that the engine, autograd and the optimizer run as they are and the ledgers see what they would see. The
other ranks are taken to do the same at the same time: a collective begins when this rank comes to it, and takes as long
as the link says. Those that are asynchronous have a clock of their own, that of their lane; who waits for one goes on
at the later of both. A rank's lanes run when it waits, as in lockstep, so that memory is alive in the same order there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from unittest.mock import patch

import torch
from torch import nn
from torch._C import DisableTorchFunctionSubclass
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._pytree import tree_leaves

from zerolab.collectives.call import Call, Group, current_call
from zerolab.collectives.transport import RowOf
from zerolab.errors import InputError
from zerolab.flat.views import has_values
from zerolab.ranks.child import run
from zerolab.ranks.failure import Unreturned
from zerolab.ranks.job import Job, Outcome
from zerolab.ranks.lockstep.transport import Event, LockstepTransport
from zerolab.ranks.lockstep.world import Launch, run_alone


def run_virtual(job: Job, function: bytes, prints: str) -> tuple[list[Outcome], list[str], float, list[Event]]:
    """Run rank 0 of a job; its outcome and printed text, virtual seconds, and events. Raises a RankError."""
    return run_alone(VirtualLaunch(job, function, prints, run=1))


class VirtualLaunch(Launch):
    """The rank of a virtual world that is run."""

    def run(self) -> tuple[list[Outcome], list[str], float, list[Event]]:
        with patch.object(nn.Module, "_apply", apply_in_place):
            return super().run()

    def live(self, rank: int) -> Outcome:
        with QuietMode(allow_non_fake_inputs=True):
            return run(self.job, VirtualTransport(self.world, rank), self.function)


class QuietMode(FakeTensorMode):
    """Looks at tensors without asking them: stage 3's parameters, which are away, hear of each question."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with DisableTorchFunctionSubclass():
            return super().__torch_dispatch__(func, types, args, kwargs or {})


class VirtualTransport(LockstepTransport):
    """The transport of a rank that knows how many others there are, and reaches none by a message."""

    def entered(self, call: Call) -> None:
        task = self.world.scheduler.running()
        task.calls.append(call)
        self.world.record(task, "enter", task.clock, task.clock, str(call))

    def left(self, call: Call) -> None:
        task = self.world.scheduler.current
        if task is not None and self.world.link is not None and not self.world.scheduler.stopping:
            size = call.place_of(self.rank, self.size)[1]
            task.clock += self.world.link.ring_seconds(call.name, call.numel, call.itemsize, size)
        super().left(call)

    def moved(self, nbytes: int) -> None:
        """In the middle of a call, where a rank would wait for others, let its main line and its other lanes go on."""
        scheduler = self.world.scheduler
        scheduler.wake(scheduler.running())
        scheduler.wait()

    def all_gather_ints(
        self, numbers: Sequence[int], row_of: RowOf | None = None, group: Group | None = None
    ) -> list[list[int]]:
        size = self.size if group is None else group.size
        if row_of is not None:
            return [row_of(rank) for rank in range(size)]
        call = current_call.get()
        if call is not None and call.name == "split":
            raise InputError(
                "comm.split asks each rank for its colour, and the others of a virtual world do not answer; give it a "
                "function of a rank's number, as comm.split(lambda rank: rank // 8)"
            )
        return [list(numbers)] * size

    def check_result(self, result: Any) -> None:
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor) and not has_values(leaf):
                raise Unreturned(
                    f"returned a tensor of shape {tuple(leaf.shape)}, which has no values in a virtual world; return "
                    "its shape, or numbers"
                )


_apply = nn.Module._apply


def apply_in_place(module: nn.Module, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> nn.Module:
    """What `model.to(device)` and `model.bfloat16()` do: torch would swap a fake parameter for another one, which it
    does not do where somebody has a weak reference, and the fake mode has one of each."""
    own = module._parameters
    if not any(isinstance(parameter, FakeTensor) for parameter in own.values()):
        return _apply(module, fn, recurse)
    with torch.no_grad():
        for parameter in own.values():
            if parameter is not None:
                parameter.data = fn(parameter)
    module._parameters = {}
    try:
        return _apply(module, fn, recurse)
    finally:
        module._parameters = own
