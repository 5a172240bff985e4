"""A virtual world: of any number of ranks one, or a chosen few, run the real function on tensors without values.

Their tensors are torch's fake ones (FakeTensorMode): they have shapes, dtypes, devices and storages with a size, and no
memory, so that the engine, autograd and the optimizer run as they are and the ledgers see what they would see. The
other ranks are taken to do the same at the same time: a collective begins when this rank comes to it, and takes as long
as the link says. Those that are asynchronous have a clock of their own, that of their lane; who waits for one goes on
at the later of both. A rank's lanes run when it waits, as in lockstep, so that memory is alive in the same order there.
"""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch._C import DisableTorchFunctionSubclass
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.utils._pytree import tree_leaves

from zerolab.collectives.call import Call, Group, current_call
from zerolab.collectives.transport import Request, RowOf
from zerolab.errors import InputError
from zerolab.flat.views import has_values
from zerolab.ranks.child import run
from zerolab.ranks.failure import ResultRefused
from zerolab.ranks.job import Job, Outcome
from zerolab.ranks.lockstep.transport import Event, LockstepTransport
from zerolab.ranks.lockstep.world import Launch, run_alone
from zerolab.ranks.pickling import loads

REMEDY = 'leave it out there (zerolab.flat.views.has_values tells), or run it with world="lockstep"'


def run_virtual(job: Job, function: bytes, prints: str) -> tuple[list[Outcome], list[str], float, list[Event]]:
    """Run the ranks `job.only` of a job; their outcomes, all printed texts, virtual seconds, and events. Raises a
    RankError."""
    return run_alone(VirtualLaunch(job, function, prints, job.only))


class VirtualLaunch(Launch):
    """Some ranks of a virtual world."""

    def live(self, rank: int, device: torch.device) -> Outcome:
        transport = VirtualTransport(self.world, rank, device, self.ranks)
        fake = Fake()
        return run(self.job, transport, self.function, fake.loads, fake)


class VirtualTransport(LockstepTransport):
    """One rank's transport: it knows how many others there are, and reaches only those that are run, too."""

    def __init__(self, world: Any, rank: int, device: torch.device, ranks: Sequence[int]) -> None:
        super().__init__(world, rank, device)
        self._run = ranks

    def isend(self, tensor: torch.Tensor, dst: int, tag: int = 0) -> Request:
        self._check_run(dst, "send to")
        return super().isend(tensor, dst, tag)

    def irecv(self, tensor: torch.Tensor, src: int, tag: int = 0) -> Request:
        self._check_run(src, "receive from")
        return super().irecv(tensor, src, tag)

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
                raise ResultRefused(
                    f"returned a tensor of shape {tuple(leaf.shape)}, which has no values in a virtual world; return "
                    "its shape, or numbers"
                )

    def _check_run(self, peer: int, verb: str) -> None:
        self.check_peer(peer)
        if peer not in self._run:
            shown = ", ".join(map(str, self._run))
            raise InputError(
                f"rank {self.rank} would {verb} rank {peer}, which is not run in this virtual world (only {shown} is); "
                "run it, too, by only=[...], or use collectives"
            )


class QuietMode(FakeTensorMode):
    """Looks at tensors without asking them: stage 3's parameters, which are away, hear of each question."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with DisableTorchFunctionSubclass():
            return super().__torch_dispatch__(func, types, args, kwargs or {})


class Fake:
    """A context in which torch makes tensors without values. A read of one ends it with an InputError."""

    def __init__(self) -> None:
        self.mode = QuietMode(allow_non_fake_inputs=True)

    def loads(self, packed: bytes) -> Any:
        """A function and its arguments, whose tensors lose their values on the way. A parameter is refused: somebody
        has built a model, with all its memory."""

        # By storage and dtype: the storage, and a tensor without values that is as large.
        wholes: dict[tuple[int, torch.dtype], tuple[torch.UntypedStorage, torch.Tensor]] = {}

        def without_values(tensor: torch.Tensor) -> torch.Tensor:
            if tensor.layout is not torch.strided:
                return self.mode.from_tensor(tensor)
            # A part of a larger tensor brings all of it along, as in other worlds.
            storage = tensor.untyped_storage()
            with self.mode, torch.no_grad():
                if (storage._cdata, tensor.dtype) not in wholes:
                    whole = torch.empty(storage.nbytes() // tensor.itemsize, dtype=tensor.dtype)
                    wholes[storage._cdata, tensor.dtype] = storage, whole
                whole = wholes[storage._cdata, tensor.dtype][1]
                part = whole.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset()).detach()
                return part.requires_grad_(tensor.requires_grad)

        class Unpickler(pickle.Unpickler):
            def find_class(self, module: str, name: str) -> Any:
                found = super().find_class(module, name)
                if name in ("_rebuild_parameter", "_rebuild_parameter_with_state"):
                    return refuse_parameter
                if name not in ("_rebuild_tensor_v2", "_rebuild_tensor_v3", "new_tensor"):
                    return found

                return lambda *args: without_values(found(*args))

        return loads(packed, Unpickler)

    def __enter__(self) -> None:
        self.mode.__enter__()
        nn.Module._apply = apply_in_place  # type: ignore[method-assign, assignment]

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        nn.Module._apply = _apply  # type: ignore[method-assign]
        self.mode.__exit__(kind, error, trace)
        if error is not None and reads_a_value(error):
            frames = traceback.extract_tb(trace)
            own = (frame for frame in reversed(frames) if not is_between(frame))
            where = next(own, frames[-1])
            code = f": {where.line}" if where.line else ""
            raise InputError(
                f"{where.name}, line {where.lineno}, reads a value of a tensor, and in a virtual world tensors have "
                f"none{code}; {REMEDY}"
            ) from error


def refuse_parameter(data: torch.Tensor, *_: Any) -> Any:
    raise InputError(
        f"a parameter of shape {tuple(data.shape)} came with the rank function, and the ranks of a virtual world have "
        "no values; build the model inside the rank function, where it takes no memory"
    )


_apply = nn.Module._apply


def apply_in_place(module: nn.Module, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> nn.Module:
    """What `model.to(device)` and `model.bfloat16()` do: torch would swap a fake parameter for another one, which it
    does not do where somebody has a weak reference, and the fake mode has one of each."""
    own = module._parameters
    if not any(isinstance(parameter, FakeTensor) for parameter in own.values()):
        return _apply(module, fn, recurse)
    for child in module.children() if recurse else ():
        child._apply(fn)
    with torch.no_grad():
        for parameter in own.values():
            if parameter is not None and (new := fn(parameter)) is not parameter:
                parameter.data = new
    module._parameters = {}
    try:
        return _apply(module, fn, recurse=False)
    finally:
        module._parameters = own


def is_between(frame: traceback.FrameSummary) -> bool:
    """Whether a call stands between who read a value and who refused it: torch's, and the dispatch modes'."""
    return "/torch/" in frame.filename.replace("\\", "/") or frame.name == "__torch_dispatch__"


def reads_a_value(error: BaseException) -> bool:
    """Whether an error is torch's answer to who asks a fake tensor for a value."""
    if isinstance(error, DataDependentOutputException | DynamicOutputShapeException):
        return True
    signs = ("() is not supported for tensor subclasses", "FakeTensor.__format__")
    return isinstance(error, RuntimeError | TypeError) and any(sign in str(error) for sign in signs)
