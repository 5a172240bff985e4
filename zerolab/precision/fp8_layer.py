"""A linear layer in emulated fp8: rounding, scales, and the three products (`fp8.py` says what they are).

Micikevicius et al., "FP8 Formats for Deep Learning", arXiv 2209.05433.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils.weak import WeakTensorKeyDictionary

from zerolab.errors import InputError
from zerolab.flat.views import has_values
from zerolab.gpu import door
from zerolab.precision.fp8_past import Past, new_number

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
INPUT, WEIGHT, GRADIENT = range(3)
ROLE_FORMATS = (E4M3, E4M3, E5M2)  # of input, weight and gradient
BUFFERS = ("fp8_scale", "fp8_amax", "fp8_history")
# Beyond these, tensor · scale or its inverse would leave the normal numbers of fp32.
SMALLEST_SCALE, LARGEST_SCALE = 2.0**-120, 2.0**120


def quantise(tensor: Tensor, dtype: torch.dtype, scale: Tensor) -> Tensor:
    """`tensor · scale` rounded to an fp8 format. What is too large becomes the format's largest, which torch's own
    conversion does for e4m3 in some versions only and for e5m2 in none. An infinity becomes NaN: e4m3 has no other
    way to say that something overflowed before."""
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


def delayed_scale(largest: Tensor, dtype: torch.dtype, margin: int) -> Tensor:
    """The scale that takes `largest` to the format's largest, `margin` powers of two below; 0 where it is 0."""
    scale = (torch.finfo(dtype).max / largest / 2**margin).clamp(SMALLEST_SCALE, LARGEST_SCALE)
    return torch.where(largest > 0, scale, 0.0)


class _Shared(NamedTuple):
    """An input as the first layer that read it has quantised it, and the version of the tensor that it read. On a GPU
    `past` says where its scale is from (`fp8_past.py`)."""

    values: Tensor
    scale: Tensor
    largest: Tensor
    version: int
    number: int
    past: Hashable


# Layers that read one tensor (query, key and value, say) keep one fp8 copy of it. It goes when the tensor goes.
_shared = WeakTensorKeyDictionary()


class Fp8Linear(nn.Linear):
    """What `fp8_linears` makes of an nn.Linear. Buffers, fp32, a row or an element each for input, weight and
    gradient:

    fp8_scale    the scale of this step; 0 before the first maximum
    fp8_amax     the largest absolute value in this step so far
    fp8_history  those of past steps, the last one first; 0 where there were none
    """

    fp8_scale: Tensor
    fp8_amax: Tensor
    fp8_history: Tensor
    fp8_margin: int
    fp8_past: Past

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
        """The scale for a tensor with this maximum, which is noted if `record`. A maximum that is not finite leaves
        no trace."""
        usable = torch.where(largest.isfinite(), largest, 0.0)
        scale = self.fp8_scale[role]
        scale = torch.where(scale > 0, scale, delayed_scale(usable, ROLE_FORMATS[role], self.fp8_margin))
        if record:
            known = self.fp8_past.is_known(self._three)
            self.fp8_scale[role] = scale
            self.fp8_amax[role] = torch.maximum(self.fp8_amax[role], usable)
            if known:
                self.fp8_past.wrote(self._three)
        return torch.where(scale > 0, scale, 1.0)

    def advance(self, largest: Tensor) -> None:
        """End a step in which `largest` [3] were the maxima; 0 where there was none, which changes nothing."""
        known = self.fp8_past.is_known(self._three)
        pushed = torch.cat((largest[:, None], self.fp8_history[:, :-1]), dim=1)
        self.fp8_history.copy_(torch.where(largest[:, None] > 0, pushed, self.fp8_history))
        for role, maximum in enumerate(self.fp8_history.amax(dim=1)):
            self.fp8_scale[role] = delayed_scale(maximum, ROLE_FORMATS[role], self.fp8_margin)
        self.fp8_amax.zero_()
        self.fp8_past.advance()
        if known:
            self.fp8_past.wrote(self._three)

    @property
    def _three(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.fp8_scale, self.fp8_amax, self.fp8_history

    def _quantised(self, input: Tensor, training: bool) -> tuple[Tensor, Tensor]:
        # Only what an operation has made is shared: a leaf, such as a parameter, may be written to without a new
        # version, as ZeRO does.
        shareable = training and not input.is_leaf
        known: _Shared | None = _shared.get(input) if shareable else None
        if known is not None and known.version != input._version:
            known = None
        largest = known.largest if known else largest_of(input)
        number = known.number if known else new_number()
        past = self.fp8_past.of(self._three, INPUT, number) if shareable and door.holds(input) else None
        scale = self.scale_of(INPUT, largest, training)
        if shareable:
            self.fp8_past.saw(number)
        # Layers whose inputs were always the same have the same scale.
        if known is not None:
            seen = not has_values(scale) or torch.equal(known.scale, scale) if past is None else known.past == past
            if seen:
                return known.values, scale
        values = quantise(input, E4M3, scale)
        if shareable:
            _shared[input] = _Shared(values, scale, largest, input._version, number, past)
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
