"""A model that was built on the meta device gets its memory here, one unit at a time.

    with torch.device("meta"):
        model = GPT2(config)                        # shapes, no memory
    engine = ZeroEngine(model, comm, stage=3, lr=1e-3)

A unit's parameters get their memory, in flat buffers where they can stay; its modules write first values by their own
`reset_parameters`, as torch's layers have it, children first, and then by `init(module)`; rank 0's are handed around.
At stage 3 a rank then keeps its shard, and the next unit begins: the most that building takes is the shards and the
largest unit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import nn

from zerolab.collectives import Collectives
from zerolab.errors import InputError
from zerolab.flat.views import values_here, view, zero_gaps
from zerolab.zero.bucket import Bucket
from zerolab.zero.units import Unit

Init = Callable[[nn.Module], object]
Tensor = torch.Tensor


def on_meta(module: nn.Module) -> list[str]:
    """The parameters and buffers that hang on the module directly and are on the meta device."""
    own = {**module._parameters, **module._buffers}
    return [name for name, tensor in own.items() if tensor is not None and tensor.is_meta]


def reset_of(module: nn.Module) -> Callable[[], object] | None:
    """The method by which a module writes its first values; torch's attention has it under a private name."""
    return getattr(module, "reset_parameters", None) or getattr(module, "_reset_parameters", None)


def find_init(model: nn.Module, init: Init | None) -> Init | None:
    """What writes first values besides `reset_parameters`: the one given, else the model's own `init_module`. Refuse
    what no module could write, while the model is as it was."""
    if init is not None and not any(map(on_meta, model.modules())):
        raise InputError(
            f"init is given, and no tensor of this {type(model).__name__} is on the meta device, so nothing would "
            'be written; leave it out, or build the model inside torch.device("meta")'
        )
    init = init or getattr(model, "init_module", None)
    for path, module in model.named_modules():
        there = [name for name, parameter in module.named_parameters(recurse=False) if not parameter.is_meta]
        if (new := on_meta(module)) and (there or (init is None and reset_of(module) is None)):
            what = f"{there[0]} in memory" if there else "no reset_parameters to write its first values"
            raise InputError(
                f"{path or 'the model'} ({type(module).__name__}) has {new[0]} on the meta device and {what}; build "
                "all of it there, and give its class reset_parameters, or give ZeroEngine(init=...), a function of a "
                "module"
            )
    if not values_here():
        leave_meta(model)
    return init


def leave_meta(model: nn.Module) -> None:
    """In a virtual world no tensor takes memory: those on the meta device are replaced by others on the CPU at once."""
    new: dict[Tensor, Tensor] = {}
    for module in model.modules():
        for name in on_meta(module):
            old = getattr(module, name)
            if old not in new:
                there = torch.empty_like(old, device="cpu", requires_grad=False)
                new[old] = nn.Parameter(there, old.requires_grad) if isinstance(old, nn.Parameter) else there
            setattr(module, name, new[old])


def materialize(
    model: nn.Module, units: list[Unit], comm: Collectives, init: Init | None, flats: dict[Bucket, Tensor]
) -> Iterator[Bucket]:
    """All buckets, unit by unit, each once its parameters have memory and first values. Of a bucket that was on the
    meta device as a whole, `flats` has the flat buffer in which they lie."""
    inner = {module for unit in units for module in unit.modules}
    named = reversed([(parameter, module) for module in model.modules() for parameter in module.parameters(False)])
    # The module under whose name a parameter stands: it has the last word on the values of a tied one.
    owner = dict(named)

    def owns_all(module: nn.Module) -> bool:
        return all(owner[parameter] is module for parameter in module.parameters(recurse=False))

    def parts_of(module: nn.Module) -> Iterator[nn.Module]:
        """The module and what is in it, but for the units inside: children first, as they are built."""
        for child in module.children():
            if child not in inner:
                yield from parts_of(child)
        yield module

    # In the end the buffers of modules that stand in no unit.
    for modules, buckets in [*((unit.modules, unit.buckets) for unit in units), ([model], [])]:
        parts = sorted((part for module in modules for part in parts_of(module)), key=owns_all)
        new = list(filter(on_meta, parts))
        for bucket in buckets:
            if all(parameter.is_meta and parameter.dtype == bucket.dtypes.main for parameter in bucket.parameters):
                flats[bucket] = comm.allocate(bucket.layout.numel, bucket.dtypes.main)
                zero_gaps(flats[bucket], bucket.layout)
                for slot, parameter in zip(bucket.layout.slots, bucket.parameters, strict=True):
                    put(parameter, view(flats[bucket], slot))
        for module in new:
            for name in on_meta(module):
                tensor = getattr(module, name)
                put(tensor, torch.empty_like(tensor, device=comm.device, requires_grad=False))
        for module in new:
            if reset := reset_of(module):
                reset()
        if new and init is not None:
            for module in parts:
                init(module)
        if comm.rank == 0:
            # All others get its values anyway.
            check_written(model, new)
        yield from buckets


def check_written(model: nn.Module, modules: list[nn.Module]) -> None:
    for module in modules:
        for name, tensor in [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]:
            # A sum takes no memory, and it is NaN if one of its summands is.
            if torch.isnan(tensor.sum()) and torch.isnan(tensor).any():
                path = next(path for path, part in model.named_modules() if part is module) or "the model"
                raise InputError(
                    f"{name} of {path} ({type(module).__name__}) was on the meta device, and neither reset_parameters "
                    "nor init(module) has written all of it; let one of them, and build the model anew"
                )


def put(old: Tensor, memory: Tensor) -> None:
    """Give a tensor on the meta device memory, whose values are marked as not written where the dtype can say so. It
    stays the same object, which several modules may hold."""
    memory.fill_(float("nan")) if memory.is_floating_point() or memory.is_complex() else memory.zero_()
    # Made from `data`, it has a version of its own: writes to its neighbours in the flat buffer do not count as its.
    new = nn.Parameter(memory.data, old.requires_grad) if isinstance(old, nn.Parameter) else memory
    new.__dict__.update(old.__dict__)
    # Torch keeps hooks with the memory that is swapped.
    new._backward_hooks = old._backward_hooks
    torch.utils.swap_tensors(old, new)
