"""Whether an optimizer can be sharded by elements, found out before training starts.

A rank updates flat slices of what are matrices in the model. So the probe steps small parameters whole and, side by
side, slices of them, and compares values and states. What changes only after more steps than these, and keeps no
state that shows it, is not found.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.optim import Optimizer
from torch.utils._python_dispatch import _disable_current_modes

from zerolab.errors import InputError
from zerolab.offload.formats import StateSize
from zerolab.zero.step import Factory

EVEN = 32
"""Torch's vector loops take two registers of up to 16 fp32 elements at a time; a scalar loop does the rest."""
CASES = (
    ((2, 3, 16), (2 * EVEN, EVEN)),
    ((6, 16), (7, 30, 59)),
    # Some treat a matrix as one only above some size; Adafactor does from 128 rows and columns on.
    ((160, 144), (360 * EVEN, 360 * EVEN)),
)
"""Shapes of parameters and sizes of their slices. Slices that are cut evenly have an optimizer each, and end with the
same bits. Others share one, and may differ by rounding, which kernels do otherwise in a tensor's last elements."""
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

    `in_parts`: a step will be made by several calls. No generator of random numbers is moved. Raises an InputError if
    the optimizer is not elementwise or, with `in_parts`, keeps something of a step in attributes of its own.
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
            f"{type(whole).__name__} keeps something of a step in itself, such as a count of steps, and here one step "
            "is made of several calls, one for each sub-group of parameters: keep that in the options or the state of "
            "the optimizer, or leave states on the device and in the model's dtype"
        )
    complete = resumes and whole.state_dict().keys() == {"state", "param_groups"}
    kept = {name: value for state in whole.state.values() for name, value in state.items() if torch.is_tensor(value)}
    long = tuple(name for name, value in kept.items() if value.numel() == numel)
    return StateSize(len(long), sum(value.nbytes for name, value in kept.items() if name not in long), long, complete)


def _follow(
    factory: Factory, device: torch.device, shape: tuple[int, ...], cut: tuple[int, ...], resume: bool = False
) -> Optimizer:
    """Step a parameter and its slices side by side; the parameter's optimizer. Raises an InputError if they part.

    `resume`: each step has a new optimizer, with the state and the options of the one before, which is what
    checkpoints have."""
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
        # To compare costs more than a step.
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
    """Whether a parameter and its slices have values or a state alike. NaN equals NaN."""
    one = torch.as_tensor(whole).detach().double().reshape(-1)
    # A number that goes for a whole tensor goes for each slice as well.
    one = one.expand(len(slices)) if one.numel() == 1 else one
    other = torch.cat([torch.as_tensor(part).double().reshape(-1) for part in slices])
    atol = rtol * one.nan_to_num(0, 0, 0).norm().item()
    return one.shape == other.shape and torch.allclose(one, other, rtol, atol, equal_nan=True)
