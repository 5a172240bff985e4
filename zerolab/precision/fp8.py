"""Linear layers that train in fp8, emulated (Micikevicius et al., "FP8 Formats for Deep Learning", arXiv 2209.05433).

    y  = x8 · w8ᵀ          x8, w8: input and weight in e4m3: 3 bits of mantissa, for values of similar size
    dx = g8 · w8           g8: the output's gradient in e5m2: 5 bits of exponent, for values of very different size
    dw = g8ᵀ · x8          the bias gets the gradient as it came

Emulated: values are really rounded to torch's float8 dtypes, then converted back and multiplied by an ordinary matmul
in the weight's dtype. No fp8 tensor core is used, so this shows fp8's numerics and the memory of its activations
(one byte an element), not its speed. Main parameters, gradients and messages keep their dtypes.

Each tensor is scaled to fill its format: rounded is tensor · scale, scale = largest / (max of history · 2**margin).
The history holds the tensor's largest absolute values in past steps ("delayed scaling", as in NVIDIA's Transformer
Engine), so a kernel need not read a tensor twice; one that has outgrown its history is clamped. The first tensor of
all is scaled by its own maximum. After that, scales change in `advance` alone, once a step:

    fp8_linears(model)                  # before the engine, which then broadcasts the scales' buffers
    ...
    engine.step()
    advance(model)

Within a step they are constants, so that micro-batches may come in any order, and a checkpointed block computes in
backward what it computed in forward. The layer itself is in `fp8_layer.py`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from zerolab.collectives import Collectives
from zerolab.errors import InputError
from zerolab.precision.fp8_layer import Fp8Linear
from zerolab.precision.fp8_past import Past

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
LARGEST_MARGIN = 16

Skip = Callable[[str, nn.Linear], bool]


def fp8_linears(model: nn.Module, history: int = 16, margin: int = 0, skip: Skip | None = None) -> nn.Module:
    """Make the linear layers of `model` compute in fp8, in place, and return it. Modules, parameters and their names
    stay; layers for which `skip(name, layer)` is true stay as they are. Give the model to an engine afterwards.

    Raises:
        InputError: nothing to convert, a model converted before, a layer that cannot be, a history or a margin out
            of range; nothing was changed.
    """
    for what, value, least, most in (("history", history, 1, None), ("margin", margin, 0, LARGEST_MARGIN)):
        whole = isinstance(value, int) and not isinstance(value, bool)
        if not whole or value < least or (most is not None and value > most):
            upto = f"from {least} to {most}" if most is not None else f"of at least {least}"
            raise InputError(f"{what} is {value!r}; give a whole number {upto}")
    if not isinstance(model, nn.Module):
        raise InputError(f"the model is of type {type(model).__name__}; give an nn.Module")
    if fp8_layers(model):
        raise InputError(f"this {type(model).__name__} computes in fp8 already; convert a model once")
    linears = [(name, module) for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    chosen = [(name, linear) for name, linear in linears if skip is None or not skip(name, linear)]
    if not chosen:
        raise InputError(
            f"{len(linears)} linear layers were found in {type(model).__name__} and all were skipped, so fp8 would "
            "change nothing; give a model with an nn.Linear, or a skip that leaves one"
        )
    for name, linear in chosen:
        check_linear(name or "the model", linear)
    for _, linear in chosen:
        convert(linear, history, margin)
    return model


def check_linear(name: str, linear: nn.Linear) -> None:
    if type(linear) is not nn.Linear:
        raise InputError(
            f"{name} is a {type(linear).__name__}, whose own forward would be lost in fp8; leave it out with skip"
        )
    if linear.weight.dtype not in DTYPES:
        raise InputError(
            f"{name} has a weight of {linear.weight.dtype}, which fp8 layers do not multiply in; convert the model to "
            "torch.float32 or torch.bfloat16, or leave it out with skip"
        )


def convert(linear: nn.Linear, history: int, margin: int) -> None:
    # With another class instead of another forward, a model can still be copied and sent to ranks.
    linear.__class__ = Fp8Linear
    linear.fp8_margin = margin  # type: ignore[assignment]
    linear.fp8_past = Past()  # type: ignore[assignment]
    for name, shape in (("fp8_scale", (3,)), ("fp8_amax", (3,)), ("fp8_history", (3, history))):
        linear.register_buffer(name, torch.zeros(shape, device=linear.weight.device))


def fp8_layers(model: nn.Module) -> list[Fp8Linear]:
    return [module for module in model.modules() if isinstance(module, Fp8Linear)]


@torch.no_grad()
def advance(model: nn.Module, comm: Collectives | None = None) -> None:
    """End a step: this step's maxima enter the histories, and the scales of the next are computed. Call it after
    each optimizer step, on every rank.

    With `comm` the maxima are those over all ranks (one all-gather of 3 numbers a layer), so that ranks agree on
    scales; a run that is resumed from rank 0's buffers then goes on as it would have. Without, each rank scales by
    what it has seen itself.
    """
    layers = fp8_layers(model)
    if not layers:
        raise InputError(f"no layer of this {type(model).__name__} computes in fp8; call fp8_linears(model) first")
    largest = torch.stack([layer.fp8_amax for layer in layers])
    if comm is not None and comm.size > 1:
        largest = comm.all_gather(largest.flatten()).view(comm.size, -1, 3).amax(0)
    for layer, maxima in zip(layers, largest, strict=True):
        layer.advance(maxima)
