"""A virtual world: of any number of ranks the first runs the real function, on tensors without values.

Torch's fake tensors have shapes, dtypes, devices and storages with a size, and no memory, so that the engine, autograd
and the optimizer run as they are and the ledgers see what they would see. The other ranks are taken to do the same at
the same time: a collective begins when this rank comes to it, and takes as long as the link says.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from unittest.mock import patch

import torch
from torch._C import DisableTorchFunctionSubclass
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves

from zerolab.collectives.call import Call, Group, current_call
from zerolab.collectives.transport import RowOf
from zerolab.errors import InputError
from zerolab.flat.views import has_values
from zerolab.ranks.child import run
from zerolab.ranks.failure import Unreturned
from zerolab.ranks.job import Outcome
from zerolab.ranks.lockstep.transport import LockstepTransport
from zerolab.ranks.lockstep.world import Launch


class VirtualLaunch(Launch):
    """The rank of a virtual world that is run: the first."""

    most = 1

    def live(self, rank: int) -> Outcome:
        with patch.object(torch.utils, "swap_tensors", set_data), QuietMode(allow_non_fake_inputs=True):
            return run(self.job, VirtualTransport(self.world, rank), self.function)


class QuietMode(FakeTensorMode):
    """Looks at tensors without asking them: stage 3's parameters, which are away, hear of each question."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with DisableTorchFunctionSubclass():
            return super().__torch_dispatch__(func, types, args, kwargs or {})


class VirtualTransport(LockstepTransport):
    """The transport of a rank that knows how many others there are, and reaches none by a message."""

    def left(self, call: Call) -> None:
        task = self.world.current
        if task is not None and self.world.link is not None and not self.world.stopping:
            size = call.place_of(self.rank, self.size)[1]
            task.clock += self.world.link.ring_seconds(call.name, call.numel, call.itemsize, size)
        super().left(call)

    def moved(self, nbytes: int) -> None:
        """In the middle of a call, where a rank would wait for others, let its main line and its other lanes go on."""
        self.world.wake(self.world.running())
        self.world.wait()

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


def set_data(parameter: torch.Tensor, other: torch.Tensor) -> None:
    """In place of `swap_tensors`, by which `model.bfloat16()` changes fake parameters: that refuses where there is
    a weak reference, and the fake mode has one of each."""
    parameter.data = other.data
