"""What happens once, before training: what an engine refuses, since it would be wrong in silence; first values of a
model from the meta device; and the optimizer's probe.

    with torch.device("meta"):
        model = GPT2(config)                        # shapes, no memory
    engine = ZeroEngine(model, comm, stage=3, lr=1e-3)

A unit's parameters get their memory; its modules write first values by their own `reset_parameters`, children first,
and then by `init(module)`; rank 0's are handed around. At stage 3 a rank keeps its shard, and the next unit begins.

A rank updates flat slices of matrices. So the probe steps small parameters whole and, side by side, slices of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any
from weakref import WeakSet

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils._python_dispatch import _disable_current_modes

from zerolab.collectives import Collectives
from zerolab.errors import InputError
from zerolab.flat.views import address, same_device, values_here, view, zero_gaps
from zerolab.offload.formats import StateSize
from zerolab.precision.recipe import Precision
from zerolab.zero.bucket import Bucket
from zerolab.zero.step import Factory
from zerolab.zero.table import STAGES
from zerolab.zero.units import Unit

Init = Callable[[nn.Module], object]
Tensor = torch.Tensor

models_in_use: WeakSet[nn.Module] = WeakSet()
"""Models whose parameters an engine holds: two engines would move each other's."""


def check_model(model: nn.Module, device: torch.device, ranks: int = 1, precision: Precision | None = None) -> None:
    """Refuse a model that is elsewhere, in use or half-way through a step, or of which ranks would differ."""
    if model in models_in_use:
        raise InputError(f"this {type(model).__name__} is in an engine already; close() that, or build a new model")
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if not tensor.is_meta and not same_device(tensor.device, device):
            raise InputError(f"{name} is on {tensor.device}, the ranks are on {device}; call model.to(comm.device)")
    names: dict[int, str] = {}
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            raise InputError(f"{name} has a gradient; wrap the model before its first backward, or zero_grad() it")
        other = names.setdefault(address(parameter), name)
        if parameter.numel() and other != name:
            raise InputError(
                f"{name} and {other} are two parameters in one memory; use the same nn.Parameter in both places"
            )
        if precision is not None and parameter.dtype.is_complex and parameter.requires_grad:
            raise InputError(f"{name} is complex, and a precision says nothing of complex numbers; leave it out")
    for name, module in model.named_modules():
        limit = getattr(module, "max_norm", None)
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and limit is not None and ranks > 1:
            raise InputError(
                f"{name or 'the model'} has max_norm={limit:g}, by which a forward writes to the rows it looks up, on "
                "each rank others; scale them between steps, inside `with engine.summon_full_params():`"
            )


def check_alike(
    comm: Collectives, replicate: Collectives | None, units: Iterable[Unit], options: Mapping[str, Any]
) -> None:
    """Raise a MismatchError, on every rank, if ranks build engines that differ, or replicas hold different shards."""
    lines = [f"{name}={value!r}" for name, value in options.items() if " at 0x" not in repr(value)]
    for bucket in (bucket for unit in units for bucket in unit.buckets):
        plan = bucket.plan
        kind = f"unit {plan.unit}, {bucket.dtype}, {'trains' if plan.trainable else 'frozen'}"
        for slot, group in zip(plan.layout.slots, plan.groups, strict=True):
            its = "" if " at 0x" in repr(group) else repr(group)
            lines.append(f"{slot.name} {list(slot.shape)} at {slot.start} ({kind}, {its})")
    differ = "the ranks build different engines ({listed}); make the same model with the same options on every rank"
    comm.compare_lines(lines, differ)
    if replicate is not None:
        size = comm.size
        differ += f", and both groups by comm.split: comm.rank // {size} to shard, comm.rank % {size} to replicate"
        replicate.compare_lines([f"shard {comm.rank} of {comm.size}", *lines], differ)


def check_stage(stage: int) -> None:
    if isinstance(stage, bool) or stage not in STAGES:
        raise InputError(f"there is no ZeRO stage {stage!r}; choose 0, 1, 2 or 3")


REDUCTIONS = ("reduce_scatter", "all_reduce")
"""How stage 1 may reduce gradients."""


def check_norm(max_norm: float, norm_type: float) -> None:
    if not (isinstance(max_norm, int | float) and max_norm > 0):
        raise InputError(f"the clipping norm is {max_norm!r}; give a number above 0, or None for no clipping")
    if not (isinstance(norm_type, int | float) and norm_type >= 1):
        raise InputError(f"norm_type is {norm_type!r}; give 1, 2, another p of at least 1, or inf")


def default_factory(lr: float, **options: Any) -> Factory:
    """AdamW, fused: one pass over parameter, gradient and both moments."""
    return partial(torch.optim.AdamW, lr=lr, fused=True, **options)


# A model from the meta device.


def on_meta(module: nn.Module) -> list[str]:
    own = {**module._parameters, **module._buffers}
    return [name for name, tensor in own.items() if tensor is not None and tensor.is_meta]


def reset_of(module: nn.Module) -> Callable[[], object] | None:
    return getattr(module, "reset_parameters", None) or getattr(module, "_reset_parameters", None)


def find_init(model: nn.Module, init: Init | None) -> Init | None:
    """What writes first values: the one given, else `model.init_module`. Refuse what no module could write."""
    if init is not None and not any(map(on_meta, model.modules())):
        raise InputError(
            f"init is given, and no tensor of this {type(model).__name__} is on the meta device; leave it out, or "
            'build the model inside torch.device("meta")'
        )
    init = init or getattr(model, "init_module", None)
    for path, module in model.named_modules():
        there = [name for name, parameter in module.named_parameters(recurse=False) if not parameter.is_meta]
        if (new := on_meta(module)) and (there or (init is None and reset_of(module) is None)):
            what = f"{there[0]} in memory" if there else "no reset_parameters to write its first values"
            raise InputError(
                f"{path or 'the model'} ({type(module).__name__}) has {new[0]} on the meta device and {what}; build "
                "all of it there, and give its class reset_parameters, or give ZeroEngine(init=...)"
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
    """All buckets, each once its parameters have first values: if all were meta tensors, in a buffer in `flats`."""
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
    """Give a tensor on the meta device memory, marked as not written. It stays the same object."""
    memory.fill_(float("nan")) if memory.is_floating_point() or memory.is_complex() else memory.zero_()
    # Made from `data`, it has a version of its own: writes to its neighbours in the flat buffer do not count as its.
    new = nn.Parameter(memory.data, old.requires_grad) if isinstance(old, nn.Parameter) else memory
    new.__dict__.update(old.__dict__)
    # Torch keeps hooks with the memory that is swapped.
    new._backward_hooks = old._backward_hooks
    torch.utils.swap_tensors(old, new)


# The optimizer's probe.

EVEN = 32
"""Torch's vector loops take two registers of up to 16 fp32 elements at a time; a scalar loop does the rest."""
CASES = (
    ((2, 3, 16), (2 * EVEN, EVEN)),
    ((6, 16), (7, 30, 59)),
    # Some treat a matrix as one only above some size; Adafactor does from 128 rows and columns on.
    ((160, 144), (360 * EVEN, 360 * EVEN)),
)
"""Shapes of parameters and sizes of their slices. Slices that are cut evenly have an optimizer each, and end with the
same bits. Others share one, and may differ by rounding."""
STEPS = (
    *[(0, scale) for scale in (1.0, 1.0, 1.0, 0.0, 0.0, *[1.0] * 6, 1e-3, 1.0)],
    *[(1_000, 1.0), (1_000_000, 1.0), (0, 1e3)],
)
"""How many steps the optimizer is told it has done (0: it is told nothing), and the size of the next gradient."""
CPU = torch.device("cpu")
ADAMW = StateSize(2, 4, ("exp_avg", "exp_avg_sq"))

_found: dict[tuple[Any, ...], StateSize] = {}
"""What torch's own optimizers keep that were probed in this process."""


def probe(factory: Factory, device: torch.device = CPU, in_parts: bool = False) -> tuple[StateSize, dict[str, Any]]:
    """What the optimizer keeps per element and per tensor if it steps on `device`; its name and its options.

    `in_parts`: a step will be made by several calls. Raises an InputError if the optimizer is not elementwise or, with
    `in_parts`, keeps something of a step in attributes of its own.
    """
    gpus = [device.index or 0] if device.type == "cuda" else []
    # Nobody tracks or prices what the probe does, and its tensors have values in a virtual world, too.
    with torch.random.fork_rng(devices=gpus), _disable_current_modes():
        made = factory([{"params": [torch.zeros((1, 1), device="cpu", dtype=torch.float32).to(device)]}])
        kind, options = type(made), made.defaults
        # One of torch's own is known by its options; somebody else's factory may answer otherwise the next time.
        of_torch = getattr(factory, "func", factory) is kind and kind.__module__.startswith("torch.optim.")
        known = _found if of_torch else {}
        key = (kind, repr(options), device.type, in_parts)
        if key not in known:
            # That the default passes is for a test to find out, not for each start.
            default = kind is torch.optim.AdamW and getattr(factory, "keywords", {}).keys() == {"lr", "fused"}
            known[key] = ADAMW if of_torch and default else _measure(factory, device, in_parts)
    return known[key], {"optimizer": kind.__name__, **{f"optimizer's {name}": options[name] for name in options}}


def _measure(factory: Factory, device: torch.device, in_parts: bool) -> StateSize:
    try:
        whole, *_ = [_follow(factory, device, *case) for case in CASES]
    except Exception as error:
        error.add_note("A rank holds flat slices of parameters: use an elementwise optimizer, such as AdamW.")
        raise
    shape = CASES[0][0]
    numel = math.prod(shape)
    try:
        _follow(factory, device, shape, (numel,), resume=True)
        resumes = True
    except Exception:
        resumes = False
    if in_parts and not resumes:
        raise InputError(
            f"{type(whole).__name__} keeps something of a step in itself, and here one step is made of several calls: "
            "keep that in the options or the state, or leave states on the device and in the model's dtype"
        )
    complete = resumes and whole.state_dict().keys() == {"state", "param_groups"}
    kept = {name: value for state in whole.state.values() for name, value in state.items() if torch.is_tensor(value)}
    long = tuple(name for name, value in kept.items() if value.numel() == numel)
    return StateSize(len(long), sum(value.nbytes for name, value in kept.items() if name not in long), long, complete)


def _follow(
    factory: Factory, device: torch.device, shape: tuple[int, ...], cut: tuple[int, ...], resume: bool = False
) -> Optimizer:
    """Step a parameter and its slices side by side; the parameter's optimizer. Raises an InputError if they part.

    `resume`: each step has a new optimizer, with the state and the options of the one before."""
    generator = torch.Generator("cpu").manual_seed(0)

    def drawn() -> torch.Tensor:
        return torch.randn(shape, generator=generator, device="cpu", dtype=torch.float32).to(device)

    values = drawn()
    # An optimizer that needs the graph of a gradient (create_graph=True) looks for it if a parameter requires one.
    whole = values.clone().requires_grad_()
    slices = [part.clone() for part in values.view(-1).split(cut)]
    even = all(numel % EVEN == 0 for numel in cut)
    optimizer = factory([{"params": [whole]}])
    its = [factory([{"params": part}]) for part in (([part] for part in slices) if even else [slices])]
    for at, (done, scale) in enumerate(STEPS):
        for kept in (kept for one in (optimizer, *its) for kept in (*one.state.values(), *one.param_groups)):
            if done and "step" in kept:
                kept["step"] += done - kept["step"]
        whole.grad = drawn() * scale
        if at % 3 == 2:
            # The gradient of a slice may be zero where that of the whole is not.
            whole.grad.view(-1)[:EVEN] = 0
        for part, own in zip(slices, whole.grad.view(-1).split(cut), strict=True):
            part.grad = own.clone()
        for one in (optimizer, *its):
            one.step()
        states = {part: state for one in its for part, state in one.state.items()}
        seen = {"values": (whole, slices)}
        for name, value in optimizer.state.get(whole, {}).items():
            seen[f"state {name!r}"] = value, [states.get(part, {}).get(name, []) for part in slices]
        for name, (value, parts) in seen.items() if at % 5 == 0 else ():
            if isinstance(value, torch.Tensor | int | float) and not _alike(value, parts, 0.0 if even else 1e-6):
                raise InputError(
                    f"{type(optimizer).__name__} is not elementwise (a parameter of shape {shape} and flat slices of "
                    f"it differ in {name}), so its state cannot be sharded by elements; use AdamW, Adam, SGD or "
                    "another elementwise optimizer"
                )
        if resume:
            (before,), its = its, [factory([{"params": slices}])]
            Optimizer.load_state_dict(its[0], Optimizer.state_dict(before))
    return optimizer


def _alike(whole: Any, slices: list[Any], rtol: float) -> bool:
    one = torch.as_tensor(whole).detach().double().reshape(-1)
    # A number that goes for a whole tensor goes for each slice as well.
    one = one.expand(len(slices)) if one.numel() == 1 else one
    other = torch.cat([torch.as_tensor(part).double().reshape(-1) for part in slices])
    atol = rtol * one.nan_to_num(0, 0, 0).norm().item()
    return one.shape == other.shape and torch.allclose(one, other, rtol, atol, equal_nan=True)
