"""A model that was built on the meta device gets its memory here, one unit at a time.

    with torch.device("meta"):
        model = GPT2(config)                        # shapes, no memory
    engine = ZeroEngine(model, comm, stage=3, lr=1e-3)

A unit's parameters come into being in the flat buffers where its stage wants them, its modules write their first
values, and rank 0's are handed around. At stage 3 a rank then keeps its shard, and the next unit begins: the most that
building takes is the shards and the largest unit (`memory.predict_building`).

First values come from each module's own `reset_parameters`, as torch's layers have it, children first; then from
`init(module)`, likewise. What neither has written is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from zerolab.collectives import Collectives
from zerolab.errors import InputError
from zerolab.flat.values import values_here
from zerolab.flat.views import view, zero_gaps
from zerolab.zero.bucket import Bucket
from zerolab.zero.units import Unit

Init = Callable[[nn.Module], object]
Tensor = torch.Tensor


def is_meta(model: nn.Module) -> bool:
    return any(tensor.is_meta for module in model.modules() for _, tensor in own_tensors(module))


def own_tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Parameters and buffers that hang on the module directly."""
    yield from module.named_parameters(recurse=False, remove_duplicate=False)
    yield from module.named_buffers(recurse=False, remove_duplicate=False)


def find_init(model: nn.Module, init: Init | None) -> Init | None:
    """What writes first values besides `reset_parameters`: the one given, else the model's own `init_module`. Refuse
    what no module could write, while the model is as it was."""
    if not is_meta(model):
        if init is not None:
            raise InputError(
                f"init is given, and no tensor of this {type(model).__name__} is on the meta device, so nothing would "
                'be written; leave it out, or build the model inside torch.device("meta")'
            )
        return None
    init = init or getattr(model, "init_module", None)
    for path, module in model.named_modules():
        meta = [name for name, tensor in own_tensors(module) if tensor.is_meta]
        there = [name for name, parameter in module.named_parameters(recurse=False) if not parameter.is_meta]
        where = path or "the model"
        if meta and there:
            raise InputError(
                f"{where} ({type(module).__name__}) has {there[0]} in memory and {meta[0]} on the meta device; build "
                "all of a module on one of the two"
            )
        if meta and init is None and reset_of(module) is None:
            raise InputError(
                f"{where} ({type(module).__name__}) has {meta[0]} on the meta device and no reset_parameters to write "
                "its first values; give the class one, or give ZeroEngine(init=...), a function of a module"
            )
    if not values_here():
        leave_meta(model)
        return None
    return init


def leave_meta(model: nn.Module) -> None:
    """In a virtual world no tensor takes memory: those on the meta device are replaced by others on the CPU at once."""
    new: dict[int, Any] = {}

    def on_cpu(tensor: Tensor, parameter: bool) -> Any:
        if id(tensor) not in new:
            there = torch.empty_like(tensor, device="cpu", requires_grad=False)
            new[id(tensor)] = nn.Parameter(there, tensor.requires_grad) if parameter else there
        return new[id(tensor)]

    for module in model.modules():
        for name, tensor in list(own_tensors(module)):
            if tensor.is_meta and name in module._parameters:
                module._parameters[name] = on_cpu(tensor, True)
            elif tensor.is_meta:
                module._buffers[name] = on_cpu(tensor, False)


def reset_of(module: nn.Module) -> Callable[[], object] | None:
    """The method by which a module writes its first values; torch's attention has it under a private name."""
    reset = getattr(module, "reset_parameters", None) or getattr(module, "_reset_parameters", None)
    return reset if callable(reset) else None


class Materializer:
    """Brings a model's tensors from the meta device to that of the ranks. A model with none there stays as it is."""

    def __init__(self, model: nn.Module, units: list[Unit], comm: Collectives, init: Init | None) -> None:
        self.model, self.comm, self.init = model, comm, init
        self._paths = {id(module): path for path, module in model.named_modules()}
        self._inner = {id(module) for unit in units for module in unit.modules}
        # The module under whose name a parameter stands: it has the last word on the values of a tied one.
        self._owner: dict[int, nn.Module] = {}
        for module in model.modules():
            for parameter in module.parameters(recurse=False):
                self._owner.setdefault(id(parameter), module)
        self._buffers: dict[int, Tensor] = {}

    def bring(self, unit: Unit) -> dict[Bucket, Tensor]:
        """Give memory and first values to a unit; return the flat buffers in which whole buckets lie already."""
        parts = [part for module in unit.modules for part in self._parts(module)]
        new = [part for part in parts if any(tensor.is_meta for _, tensor in own_tensors(part))]
        flats = {}
        for bucket in unit.buckets:
            if all(parameter.is_meta and parameter.dtype == bucket.dtypes.main for parameter in bucket.parameters):
                flats[bucket] = flat = self.comm.allocate(bucket.layout.numel, bucket.dtypes.main)
                zero_gaps(flat, bucket.layout)
                memory = [view(flat, slot) for slot in bucket.layout.slots]
            else:
                memory = [torch.empty_like(parameter, device=self.comm.device) for parameter in bucket.parameters]
            for parameter, tensor in zip(bucket.parameters, memory, strict=True):
                if parameter.is_meta:
                    put(parameter, tensor)
        self._start(new, parts)
        return flats

    def bring_rest(self) -> None:
        """The buffers of modules that stand in no unit."""
        new = [part for part in self._parts(self.model) if any(buffer.is_meta for _, buffer in own_tensors(part))]
        self._start(new, new)

    def _parts(self, module: nn.Module) -> Iterator[nn.Module]:
        """The module and what is in it, but for the units inside: children first, as they are built."""
        for child in module.children():
            if id(child) not in self._inner:
                yield from self._parts(child)
        yield module

    def _start(self, new: list[nn.Module], parts: list[nn.Module]) -> None:
        """First values for the modules that were on the meta device, of which the parameters are here by now."""
        for module in new:
            for name, buffer in module._buffers.items():
                if buffer is not None and buffer.is_meta:
                    if id(buffer) not in self._buffers:
                        self._buffers[id(buffer)] = unset(torch.empty_like(buffer, device=self.comm.device))
                    module._buffers[name] = self._buffers[id(buffer)]
        # Modules that share another's parameter come first, so that the values of its owner stay.
        for module in sorted(new, key=self._owns_all):
            reset = reset_of(module)
            if reset is not None:
                reset()
        if self.init is not None and new:
            for module in sorted(parts, key=self._owns_all):
                self.init(module)
        # All others get rank 0's values anyway.
        if self.comm.rank == 0:
            for module in new:
                self._check_set(module)

    def _owns_all(self, module: nn.Module) -> bool:
        return all(self._owner[id(parameter)] is module for parameter in module.parameters(recurse=False))

    def _check_set(self, module: nn.Module) -> None:
        for name, tensor in own_tensors(module):
            # A sum takes no memory, and it is NaN if one of its summands is.
            if torch.isnan(tensor.sum()) and torch.isnan(tensor).any():
                path = self._paths[id(module)] or "the model"
                raise InputError(
                    f"{name} of {path} ({type(module).__name__}) was on the meta device, and neither reset_parameters "
                    "nor init(module) has written all of it; let one of them, and build the model anew"
                )


def put(parameter: nn.Parameter, tensor: Tensor) -> None:
    """Give a parameter on the meta device memory. It stays the same object, which several modules may hold."""
    # Made from `data`, it has a version of its own: writes to its neighbours in the flat buffer do not count as its.
    new = nn.Parameter(unset(tensor).data, parameter.requires_grad)
    new.__dict__.update(parameter.__dict__)
    # Torch keeps hooks with the memory that is swapped.
    new._backward_hooks = parameter._backward_hooks
    torch.utils.swap_tensors(parameter, new)


def unset(tensor: Tensor) -> Tensor:
    """Mark values as not written, where the dtype can say so."""
    return tensor.fill_(float("nan")) if tensor.is_floating_point() or tensor.is_complex() else tensor.zero_()
