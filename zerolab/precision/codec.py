"""How a state rests in fewer bytes than it is computed with: values to bytes and back.

    plain     fp32, bf16, or whatever the model has: a cast
    scaled    fp16, fp8: blocks of 128 values with an fp32 scale each, which moves the block's largest value to the top
              of the format's range (Dettmers et al., arXiv 2110.02861, on why per block)

Adam divides by the root of its second moment, whose values span twice as many powers of two as the first's: a scaled
format keeps the root, and a value that is not zero becomes the format's smallest normal value at least, so that a step
is too short rather than without bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from zerolab.precision.recipe import FLOATS

BLOCK = 128
"""Values that share a scale: 4 bytes for 128, 3 % of fp8."""

MOMENT_DTYPES = {name: getattr(torch, dtype) for name, dtype in {**FLOATS, "fp8": "float8_e4m3fn"}.items()}
"""The dtypes in which a moment may rest, by name."""
SMALLEST = 2.0**-100
"""A block with no value above this, which moves nothing, rests as zeros: its scale would leave fp32's range."""
FORMAT_MAX = {torch.float16: 2.0**15, torch.float8_e4m3fn: 448.0}
"""Where a scaled format's largest value goes."""


@dataclass(frozen=True)
class Codec:
    """How one state is stored: in `dtype`, `scaled` block by block or not. With `root` the square root is stored, as
    for Adam's second moment, which is never negative and by whose root the step divides."""

    dtype: torch.dtype
    scaled: bool = False
    root: bool = False

    @property
    def width(self) -> int:
        """Alignment in bytes: in a record, where this form begins and how long it is are multiples of it."""
        return max(self.dtype.itemsize, 4 if self.scaled else 1)

    def nbytes(self, numel: int) -> int:
        """Bytes of `numel` values (whole blocks), scales included."""
        return numel * self.dtype.itemsize + (4 * (numel // BLOCK) if self.scaled else 0)

    @property
    def copies(self) -> float:
        """How many copies of the values `encode` makes, at most at a time; a comparison takes a quarter of one."""
        return 0 if not self.scaled else 4.25 if self.root else 2

    def encode(self, values: torch.Tensor, raw: torch.Tensor) -> None:
        """Encode `values` (1-D, fp32) into uint8 `raw` [nbytes(numel)]."""
        codes, scales = self.split(raw, values.numel())
        if scales is None:
            codes.copy_(values)
            return
        top = FORMAT_MAX[self.dtype]
        blocks = values.view(-1, BLOCK)
        if self.root:
            blocks = blocks.sqrt()
        largest = blocks.abs().amax(1, keepdim=True)
        # The comparison is false for NaN, so a block that holds one is not set to zero: a NaN must show.
        largest = largest.masked_fill(largest <= SMALLEST, 0.0)
        scales.copy_(largest.squeeze(1) / top)
        # A block of zeros has the scale 0 and codes 0.
        scaled = torch.where(largest == 0, 0.0, blocks * (top / largest))
        if self.root:
            scaled = torch.where(blocks > 0, scaled.clamp_min(torch.finfo(self.dtype).smallest_normal), scaled)
        codes.view(-1, BLOCK).copy_(scaled)

    def decode(self, raw: torch.Tensor, out: torch.Tensor) -> None:
        """Decode `raw` into `out` (1-D, fp32)."""
        codes, scales = self.split(raw, out.numel())
        out.copy_(codes)
        if scales is not None:
            blocks = out.view(-1, BLOCK)
            blocks.mul_(scales.unsqueeze(1))
            if self.root:
                blocks.square_()

    def view(self, raw: torch.Tensor, numel: int) -> torch.Tensor:
        """The values themselves, where the form at rest is plain."""
        return self.split(raw, numel)[0]

    def split(self, raw: torch.Tensor, numel: int) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The codes, and the scales of their blocks if there are some."""
        end = numel * self.dtype.itemsize
        codes = raw[:end].view(self.dtype)
        return codes, raw[end : self.nbytes(numel)].view(torch.float32) if self.scaled else None


def codec_of(state: str, format: str) -> Codec:
    """The codec of an optimizer's state by torch's name for it ("exp_avg", ...), in a format by name."""
    dtype = MOMENT_DTYPES[format]
    scaled = dtype in FORMAT_MAX
    return Codec(dtype, scaled, root=scaled and state == "exp_avg_sq")


def cast(tree: Any, dtype: torch.dtype) -> Any:
    """Floating-point tensors among arguments, in another dtype."""
    return tree_map_only(torch.Tensor, lambda leaf: leaf.to(dtype) if leaf.is_floating_point() else leaf, tree)
