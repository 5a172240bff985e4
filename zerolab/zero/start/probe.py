"""Whether an optimizer can be sharded by elements, found out before training starts.

A rank updates flat slices of what a user's model has as matrices, each by an optimizer that sees nothing else. So the
probe steps small parameters of several shapes whole, and slices of them by optimizers of their own, and compares
parameters and states from time to time:

    even cuts      at whole pairs of vector registers: slices must end with the same bits
    uneven cuts    anywhere: slices may differ by rounding, which kernels do otherwise in a tensor's last few elements.
                   One optimizer has them all, which must not take one's gradient for another's

Where a rank steps some of its parameters after the other (sub-groups, of states that rest encoded or on the host), one
optimizer of several slices is held to the same, too.

In the end a new optimizer is given the state and the options, which are what a checkpoint has, and takes some more
steps, as the old one does: if they differ, a checkpoint would lose something, such as a count in an attribute.

Gradients are ordinary first, then zero, small and large; then the optimizer is told, through its state dict, that it
has done many steps. What changes after more steps than that, and keeps no state that shows it, is not found.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable
from functools import partial
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from zerolab.errors import InputError
from zerolab.memory import StateSize
from zerolab.zero.tiers.in_parts import StepInParts, options_of, put

Factory = Callable[..., torch.optim.Optimizer]

LARGE = (160, 144)
"""Some treat a matrix as one only from some size on; Adafactor does from 128 rows and columns on."""
SHAPES = ((6, 16), (32,), (2, 3, 16), LARGE)
CUTS: dict[tuple[int, ...], tuple[tuple[int, ...], ...]] = {
    (6, 16): ((32, 64), (7, 30, 59)),
    (32,): ((5, 27),),
    (2, 3, 16): ((64, 32),),
    LARGE: ((11_520, 11_520),),
}
EVEN = 32
"""Elements of fp32: torch's vector loops take two registers of up to 16 at a time; a scalar loop does the rest."""
PHASES: tuple[tuple[int | None, tuple[float, ...]], ...] = (
    (None, (1.0, 1.0)),
    (None, (1.0, 0.0, 0.0, *[1.0] * 7, 1e-3, 1.0)),
    (1_000, (1.0,)),
    (1_000_000, (1.0, 1e3)),
)
"""In turn: how many steps the optimizer is told it has done (None: it is told nothing), and the sizes of the gradients
that come then."""


CPU = torch.device("cpu")


def probe(factory: Factory, device: torch.device = CPU, in_parts: bool = False) -> StateSize:
    """What the optimizer keeps per element and per tensor where it steps, on `device`: another kernel runs on each kind
    of them, or none. `in_parts`: one step will be made by several calls (`in_parts.py`). No generator of random numbers
    is moved.

    Raises:
        InputError: it is no factory, refuses parameters or slices of them, is not elementwise, or, with `in_parts`,
            keeps something of a step in attributes of its own.
    """
    if not callable(factory):
        raise InputError(
            f"optimizer is of type {type(factory).__name__}; give a function from parameter groups to an optimizer, "
            "such as functools.partial(torch.optim.AdamW, lr=1e-3)"
        )
    known = _of_torch(factory)
    key = None if known is None else (known, device.type, in_parts)
    if key is not None and key in _found:
        return _found[key]
    # An optimizer may draw numbers itself. What it does here is no part of a run: nobody tracks or prices it, and its
    # tensors have values in a virtual world, too.
    gpus = [device.index or 0] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=gpus), _disable_current_modes():
        if _is_default(factory):
            size = _size(_stepped(factory, device), complete=True)
        else:
            whole, *_ = [_follow(factory, shape, device, in_parts) for shape in SHAPES]
            size = _size(whole, _complete(whole, factory))
    if key is not None:
        _found[key] = size
    return size


_found: dict[Hashable, StateSize] = {}
"""What came of torch's own optimizers in this process, by `_of_torch` and the type of the device."""


def _of_torch(factory: Factory) -> Hashable:
    """What tells one of torch's own optimizers with plain numbers from others, whoever made the factory; None for all
    else, which may answer otherwise the next time."""
    its = factory if isinstance(factory, partial) else partial(factory)
    values = [*its.args, *its.keywords.values()]
    parts = [part for value in values for part in (value if isinstance(value, tuple) else (value,))]
    # By its class first: somebody else's factory may have no hash.
    if not isinstance(its.func, type) or its.func not in TORCHS or not all(isinstance(part, PLAIN) for part in parts):
        return None
    return its.func, repr(its.args), repr(sorted(its.keywords.items()))


def _is_default(factory: Factory) -> bool:
    """Whether it makes torch's fused AdamW with nothing but a learning rate, which each `ZeroEngine(lr=...)` has. That
    it passes is for a test to find out, not for each start."""
    its = factory if isinstance(factory, partial) else partial(factory)
    fused = its.keywords.get("fused") is True and its.keywords.keys() == {"fused", "lr"}
    return its.func is torch.optim.AdamW and not its.args and fused and isinstance(its.keywords["lr"], int | float)


def _stepped(factory: Factory, device: torch.device) -> Stepped:
    whole = Stepped(factory, torch.zeros(SHAPES[0], device="cpu", dtype=torch.float32).to(device))
    whole.step(torch.ones(SHAPES[0], device="cpu", dtype=torch.float32).to(device))
    return whole


PLAIN = (int, float, str, type(None))
TORCHS = {kind for kind in vars(torch.optim).values() if isinstance(kind, type)}


class Stepped:
    """A tensor and an optimizer: of its own, or one that updates others as well, each by a call."""

    def __init__(
        self, factory: Factory, tensor: torch.Tensor, shared: tuple[torch.optim.Optimizer, StepInParts] | None = None
    ) -> None:
        self.tensor = tensor
        self.optimizer = factory([{"params": [tensor]}]) if shared is None else shared[0]
        self.parts = StepInParts(self.optimizer) if shared is None else shared[1]

    @property
    def state(self) -> dict[str, Any]:
        return dict(self.optimizer.state[self.tensor])

    def step(self, gradient: torch.Tensor) -> None:
        self.tensor.grad = gradient.reshape(self.tensor.shape).clone()
        with self.parts.only([self.tensor]):
            self.optimizer.step()

    def jump(self, steps: int) -> None:
        """Have it believe that it has done so many steps."""
        packed = self.optimizer.state_dict()
        for kept in [*packed["state"].values(), *packed["param_groups"]]:
            if torch.is_tensor(kept.get("step")):
                kept["step"] = torch.full_like(kept["step"], steps)
            elif isinstance(kept.get("step"), int | float):
                kept["step"] = type(kept["step"])(steps)
        self.optimizer.load_state_dict(packed)


def _cut(factory: Factory, values: torch.Tensor, cut: tuple[int, ...], together: bool) -> list[Stepped]:
    """Slices of a tensor, with one optimizer, or with one each."""
    tensors = [part.clone() for part in values.view(-1).split(cut)]
    if not together:
        return [Stepped(factory, tensor) for tensor in tensors]
    optimizer = factory([{"params": tensors}])
    parts = StepInParts(optimizer)
    return [Stepped(factory, tensor, (optimizer, parts)) for tensor in tensors]


def uneven(cut: tuple[int, ...]) -> bool:
    return any(numel % EVEN for numel in cut)


def _follow(factory: Factory, shape: tuple[int, ...], device: torch.device, in_parts: bool) -> Stepped:
    """Step a parameter of some shape and its slices side by side; the parameter, stepped."""
    generator = torch.Generator("cpu").manual_seed(0)

    def drawn() -> torch.Tensor:
        return torch.randn(shape, generator=generator, device="cpu", dtype=torch.float32).to(device)

    values = drawn()
    try:
        # As in plain torch: one that wants the graph of a gradient (create_graph=True) says so here.
        whole = Stepped(factory, values.clone().requires_grad_())
        whole.step(drawn())
    except Exception as error:
        raise InputError(
            f"the optimizer refused a parameter of shape {shape} and its gradient ({error}); give an elementwise one "
            "such as AdamW"
        ) from error
    # Again, beside its slices.
    whole = Stepped(factory, values.clone())
    name = type(whole.optimizer).__name__
    try:
        cuts = [_cut(factory, values, cut, together=uneven(cut)) for cut in CUTS[shape]]
        ways = CUTS[shape]
        if in_parts:
            # The first cut again, with one optimizer.
            ways = (*ways, ways[0])
            cuts.append(_cut(factory, values, ways[0], together=True))
        for jump, scales in ((None, (1.0,) * 4),) if shape == LARGE else PHASES:
            if jump is not None:
                for stepped in [whole, *(part for parts in cuts for part in parts)]:
                    stepped.jump(jump)
            for at, scale in enumerate(scales):
                gradient = drawn() * scale
                if at % 3 == 2:
                    # The gradient of the first slice is zero, that of the whole is not.
                    gradient.view(-1)[:EVEN] = 0
                whole.step(gradient)
                for cut, parts in zip(ways, cuts, strict=True):
                    if uneven(cut):
                        for part, its in zip(parts, gradient.view(-1).split(cut), strict=True):
                            part.tensor.grad = its.clone()
                        parts[0].optimizer.step()
                        continue
                    parts[0].parts.begin(len(parts))
                    for part, its in zip(parts, gradient.view(-1).split(cut), strict=True):
                        part.step(its)
                    parts[0].parts.end()
            room = (whole.tensor - values).abs().max().item()
            for number, parts in enumerate(cuts):
                why = _difference(whole, parts, room)
                if why and number == len(CUTS[shape]):
                    raise InputError(
                        f"{name} keeps something of a step in itself, such as a count of steps, and here one step is "
                        "made of several calls, one for each sub-group of parameters: keep that in the options or the "
                        "state of the optimizer, or leave states on the device and in the model's dtype"
                    )
                if why:
                    raise InputError(
                        f"{name} is not elementwise ({why}), so its state cannot be sharded by elements; use AdamW, "
                        "Adam, SGD or another elementwise optimizer"
                    )
    except InputError:
        raise
    except Exception as error:
        raise InputError(
            f"{name} needs whole parameters (it refused a flat slice of one: {error}), and a rank holds only slices of "
            "them; use an elementwise optimizer such as AdamW, or train under torch's DistributedDataParallel, where "
            "every rank holds whole matrices"
        ) from error
    return whole


def _difference(whole: Stepped, parts: list[Stepped], room: float) -> str:
    """In words, what a parameter and its slices do not have alike; nothing if they agree. Uneven slices may be off by
    rounding: of their values, and of all updates so far, of size `room`."""
    shape = tuple(whole.tensor.shape)
    even = all(part.tensor.numel() % EVEN == 0 for part in parts)
    joined = torch.cat([part.tensor for part in parts])
    if not _alike(whole.tensor.view(-1), joined, even, room):
        return f"a parameter of shape {shape} and flat slices of it are updated differently"
    for name, value in whole.state.items():
        those = [part.state.get(name) for part in parts]
        if not torch.is_tensor(value):
            if isinstance(value, int | float) and not all(_alike(value, other, even, room) for other in those):
                return f"its state {name!r} is another one for a slice than for the whole"
        elif value.numel() not in (1, whole.tensor.numel()):
            return f"its state {name!r} has shape {tuple(value.shape)} for a parameter of shape {shape}"
        elif any(not torch.is_tensor(other) for other in those):
            return f"it keeps a state {name!r} for a parameter of shape {shape} and none for a flat slice"
        elif value.numel() == 1:
            if not all(_alike(value, other, even, room) for other in those):
                return f"its state {name!r} is another one for a slice than for the whole"
        else:
            flat = torch.cat([other.reshape(-1) for other in those])  # type: ignore[union-attr]
            if flat.numel() != value.numel() or not _alike(value.reshape(-1), flat, even, 0.0):
                return f"its state {name!r} is another one for slices than for the whole"
    return ""


def _alike(one: Any, other: Any, even: bool, room: float) -> bool:
    """Whether numbers or tensors agree: in all bits if cut evenly, else but for rounding. NaN equals NaN."""
    if other is None:
        return False
    one, other = (torch.as_tensor(value).double().reshape(-1) for value in (one, other))
    if one.shape != other.shape:
        return False
    if even:
        return bool(((one == other) | (one.isnan() & other.isnan())).all())
    largest = one.nan_to_num().abs().max().item()
    return torch.allclose(one, other, rtol=1e-5, atol=1e-5 * room + 1e-6 * largest, equal_nan=True)


def _complete(whole: Stepped, factory: Factory) -> bool:
    """Whether a new optimizer with the state and the options of `whole` steps as it does, to the bit, and the
    optimizer's own `state_dict` has nothing else."""
    if whole.optimizer.state_dict().keys() - {"state", "param_groups"}:
        return False
    try:
        new = Stepped(factory, whole.tensor.clone())
        new.optimizer.state[new.tensor] = copy.deepcopy(whole.state)
        for group, its in zip(new.optimizer.param_groups, whole.optimizer.param_groups, strict=True):
            put(group, options_of(its))
        for _ in range(10):
            for stepped in whole, new:
                stepped.step(torch.ones_like(whole.tensor))
    except Exception:
        return False
    return not _difference(whole, [new], room=0.0)


def _size(whole: Stepped, complete: bool) -> StateSize:
    kept = {name: value for name, value in whole.state.items() if torch.is_tensor(value)}
    long = tuple(name for name, value in kept.items() if value.numel() == whole.tensor.numel())
    return StateSize(len(long), sum(value.nbytes for name, value in kept.items() if name not in long), long, complete)
