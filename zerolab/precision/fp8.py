"""Linear layers that train in fp8, emulated (Micikevicius et al., "FP8 Formats for Deep Learning", arXiv 2209.05433).

    y  = x8 · w8ᵀ          x8, w8: input and weight in e4m3: 3 bits of mantissa, for values of similar size
    dx = g8 · w8           g8: the output's gradient in e5m2: 5 bits of exponent, for values of very different size
    dw = g8ᵀ · x8          the bias gets the gradient as it came

Emulated: values are really rounded to torch's float8 dtypes, then multiplied by an ordinary matmul in the weight's
dtype. This shows fp8's numerics and the memory of its activations (one byte an element), not its speed.

Each tensor is scaled to fill its format: rounded is tensor · scale, scale = largest / max of history. The history holds
the tensor's largest absolute values in past steps ("delayed scaling", as in NVIDIA's Transformer Engine), so a kernel
need not read a tensor twice; one that has outgrown its history is clamped. The first tensor of all is scaled by its own
maximum. After that, scales change in `update_amax_history` alone, after a step (an engine with the precision fp8 calls
it). Within a step they are constants, so that micro-batches may come in any order, and a checkpointed block computes in
backward what it computed in forward.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils.weak import WeakTensorKeyDictionary

from zerolab.errors import InputError
from zerolab.flat.layout import check_count
from zerolab.flat.views import has_values

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
INPUT, WEIGHT, GRADIENT = range(3)
ROLE_FORMATS = (E4M3, E4M3, E5M2)  # of input, weight and gradient
BUFFERS = ("fp8_scale", "fp8_amax", "fp8_history")
# Beyond these, tensor · scale or its inverse would leave the normal numbers of fp32.
SMALLEST_SCALE, LARGEST_SCALE = 2.0**-120, 2.0**120

Skip = Callable[[str, nn.Linear], bool]


def quantise(tensor: Tensor, dtype: torch.dtype, scale: Tensor) -> Tensor:
    """`tensor · scale` rounded to an fp8 format. What is too large becomes the format's largest, which torch does not
    promise. An infinity becomes NaN: e4m3 has no other way to say that something overflowed before."""
    largest = torch.finfo(dtype).max
    scaled = (tensor.float() * scale).clamp_(-largest, largest)
    return scaled.masked_fill_(tensor.isinf(), float("nan")).to(dtype)


def dequantise(values: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    return (values.float() / scale).to(dtype)


def largest_of(tensor: Tensor) -> Tensor:
    """The largest absolute value, fp32; NaN if there is one, 0 if there is nothing."""
    if tensor.numel() == 0:
        return tensor.new_zeros((), dtype=torch.float32)
    low, high = tensor.aminmax()
    return torch.maximum(-low, high).float()


def delayed_scale(largest: Tensor, dtype: torch.dtype) -> Tensor:
    """The scale that takes `largest` to the format's largest; 0 where it is 0."""
    scale = (torch.finfo(dtype).max / largest).clamp(SMALLEST_SCALE, LARGEST_SCALE)
    return torch.where(largest > 0, scale, 0.0)


class _Shared(NamedTuple):
    """An input as the first layer that read it has quantised it, and the version of the tensor that it read."""

    values: Tensor
    scale: Tensor
    largest: Tensor
    version: int


# Layers that read one tensor (query, key and value, say) keep one fp8 copy of it. It goes when the tensor goes.
_shared = WeakTensorKeyDictionary()


class Fp8Linear(nn.Linear):
    """What `fp8_linears` makes of an nn.Linear. Buffers, fp32, a row each for input, weight and gradient:

    fp8_scale    the scale of this step; 0 before the first maximum
    fp8_amax     the largest absolute value in this step so far
    fp8_history  those of past steps, the last one first; 0 where there were none
    """

    fp8_scale: Tensor
    fp8_amax: Tensor
    fp8_history: Tensor

    def reset_parameters(self) -> None:
        """First values, for a layer that was built on the meta device."""
        super().reset_parameters()
        for buffer in self.buffers(recurse=False):
            buffer.zero_()

    def forward(self, input: Tensor) -> Tensor:
        self._check(input)
        training = torch.is_grad_enabled()
        with torch.no_grad():
            values, scale = self._quantised(input, training)
            weight_scale = self.scale_of(WEIGHT, largest_of(self.weight), training)
        return _Multiply.apply(input, self.weight, self.bias, values, scale, weight_scale, self)

    def _check(self, input: Tensor) -> None:
        """Refuse what nn.Linear would: fp8 has its own copy of everything, and would take any dtype silently."""
        dtype = self.weight.dtype
        alike = input.dtype == dtype or torch.is_autocast_enabled(input.device.type)
        if not (alike and input.is_floating_point()):
            raise InputError(f"the input is {input.dtype} and the weight {dtype}; give the layer input.to({dtype})")

    def scale_of(self, role: int, largest: Tensor, record: bool) -> Tensor:
        """The scale for a tensor with this maximum, which is noted if `record` and finite."""
        usable = torch.where(largest.isfinite(), largest, 0.0)
        scale = self.fp8_scale[role]
        scale = torch.where(scale > 0, scale, delayed_scale(usable, ROLE_FORMATS[role]))
        if record:
            self.fp8_scale[role] = scale
            self.fp8_amax[role] = torch.maximum(self.fp8_amax[role], usable)
        return torch.where(scale > 0, scale, 1.0)

    def update_amax_history(self) -> None:
        """End a step. A maximum of 0, where there was none, changes nothing."""
        largest = self.fp8_amax
        pushed = torch.cat((largest[:, None], self.fp8_history[:, :-1]), dim=1)
        self.fp8_history.copy_(torch.where(largest[:, None] > 0, pushed, self.fp8_history))
        for role, maximum in enumerate(self.fp8_history.amax(dim=1)):
            self.fp8_scale[role] = delayed_scale(maximum, ROLE_FORMATS[role])
        self.fp8_amax.zero_()

    def _quantised(self, input: Tensor, training: bool) -> tuple[Tensor, Tensor]:
        # A leaf, such as a parameter, may be written to without a new version, as ZeRO does.
        shareable = training and not input.is_leaf
        known: _Shared | None = _shared.get(input) if shareable else None
        if known is not None and known.version != input._version:
            known = None
        largest = known.largest if known else largest_of(input)
        scale = self.scale_of(INPUT, largest, training)
        # Layers whose inputs were always the same have the same scale. On a GPU the host waits for this answer.
        if known is not None and (not has_values(scale) or torch.equal(known.scale, scale)):
            return known.values, scale
        values = quantise(input, E4M3, scale)
        if shareable:
            _shared[input] = _Shared(values, scale, largest, input._version)
        return values, scale

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Fp8Linear:
        before = {name: getattr(self, name) for name in BUFFERS}
        super()._apply(fn, recurse)
        # model.bfloat16() is meant for the parameters: scales and maxima stay fp32.
        for name, buffer in before.items():
            if getattr(self, name).dtype != buffer.dtype:
                self._buffers[name] = buffer.to(getattr(self, name).device)
        return self


class _Multiply(torch.autograd.Function):
    """The three products. Kept for backward: the input in fp8, and the weight itself, which ZeRO may let go until
    then; it is rounded anew, by the same scale."""

    @staticmethod
    def forward(
        ctx: Any,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        values: Tensor,
        scale: Tensor,
        weight_scale: Tensor,
        linear: Fp8Linear,
    ) -> Tensor:
        for_input, for_weight = ctx.needs_input_grad[:2]
        ctx.save_for_backward(values if for_weight else None, scale, weight if for_input else None, weight_scale)
        ctx.linear, ctx.dtype = linear, weight.dtype
        rounded = dequantise(quantise(weight, E4M3, weight_scale), weight_scale, weight.dtype)
        return F.linear(dequantise(values, scale, weight.dtype), rounded, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        values, scale, weight, weight_scale = ctx.saved_tensors
        for_input, for_weight, for_bias = ctx.needs_input_grad[:3]
        of_input = of_weight = of_bias = None
        gradient_scale = ctx.linear.scale_of(GRADIENT, largest_of(gradient), record=True)
        rounded = dequantise(quantise(gradient, E5M2, gradient_scale), gradient_scale, ctx.dtype)
        if for_input:
            of_input = rounded @ dequantise(quantise(weight, E4M3, weight_scale), weight_scale, ctx.dtype)
        if for_weight:
            inputs = dequantise(values, scale, ctx.dtype)
            of_weight = rounded.reshape(-1, rounded.shape[-1]).T @ inputs.reshape(-1, inputs.shape[-1])
        if for_bias:
            of_bias = gradient.reshape(-1, gradient.shape[-1]).sum(0)
        return of_input, of_weight, of_bias, None, None, None, None


def fp8_linears(model: nn.Module, history: int = 16, skip: Skip | None = None) -> nn.Module:
    """Make the linear layers of `model` compute in fp8, in place, and return it. Modules, parameters and their names
    stay; layers for which `skip(name, layer)` is true stay as they are. Give the model to an engine afterwards, which
    then broadcasts the scales' buffers. What cannot be converted is refused, and nothing is changed."""
    check_count("history", history)
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
        if type(linear) is not nn.Linear:
            raise InputError(
                f"{name} is a {type(linear).__name__}, whose own forward would be lost in fp8; leave it out with skip"
            )
    for _, linear in chosen:
        # With another class instead of another forward, a model can still be copied and sent to ranks.
        linear.__class__ = Fp8Linear
        for name, shape in (("fp8_scale", (3,)), ("fp8_amax", (3,)), ("fp8_history", (3, history))):
            linear.register_buffer(name, torch.zeros(shape, device=linear.weight.device))
    return model


def fp8_layers(model: nn.Module) -> list[Fp8Linear]:
    return [module for module in model.modules() if isinstance(module, Fp8Linear)]


@torch.no_grad()
def update_amax_history(model: nn.Module) -> None:
    """End a step: its maxima enter the histories, and the scales of the next follow, on each rank by what it saw."""
    layers = fp8_layers(model)
    if not layers:
        raise InputError(f"no layer of this {type(model).__name__} computes in fp8; call fp8_linears(model) first")
    for layer in layers:
        layer.update_amax_history()
