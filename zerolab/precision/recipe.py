"""Which dtype each state has: a recipe of mixed precision (Micikevicius et al., arXiv 1710.03740; ZeRO, section 3.1).

    state          lives from ... to                          fp16, bf16    bf16_fp32_grads
    params         always; forward and backward use them      16 bits       16 bits
    grads          backward to the end of their reduction     16 bits       fp32
    main_grads     that reduction to the optimizer step       16 bits       fp32
    main_params    always; what the optimizer updates         fp32          fp32
    exp_avg(_sq)   always; Adam's moments                     fp32          fp32

Main parameters are called so by Megatron-LM; papers and DeepSpeed say master weights. A step computes in fp32. Where
main_params has the dtype of params, there is one copy of both. `reduce` is the dtype in which gradients travel and are
added up.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

from zerolab.errors import InputError

if TYPE_CHECKING:
    import torch

FLOATS = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
"""What torch calls the dtypes of states."""
MOMENTS = (*FLOATS, "fp8")
"""Adam's moments may also rest in 8 bits. fp16 and fp8 moments have a scale for each block (`codec.py`)."""
BYTES = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1}


@dataclass(frozen=True)
class Precision:
    """A dtype by name ("fp32", "bf16", "fp16"; for moments also "fp8") for each state. An empty `reduce` is that of
    `grads`. `sharded_main` is FSDP2's way, for stage 3: the main parameters are what is sharded; units are cast to
    `params` when they are gathered, and kept in it only while they are here. `fp8` computes linear layers in emulated
    fp8 (`fp8.py`); it changes no state."""

    params: str = "fp32"
    main_params: str = "fp32"
    grads: str = "fp32"
    main_grads: str = "fp32"
    exp_avg: str = "fp32"
    exp_avg_sq: str = "fp32"
    reduce: str = ""
    sharded_main: bool = False
    fp8: bool = False

    def __post_init__(self) -> None:
        if not self.reduce:
            object.__setattr__(self, "reduce", self.grads)
        for state in STATES:
            name, known = getattr(self, state), MOMENTS if state.startswith("exp") else (*FLOATS,)
            if name not in known:
                raise InputError(f"{state} is {name!r}; choose one of {', '.join(known)}")
        if self.itemsize("main_params") < self.itemsize("params"):
            raise InputError(
                f"main_params is {self.main_params} and params {self.params}; the copy that is updated must not be the "
                "narrower one"
            )
        if self.sharded_main and self.params == self.main_params:
            raise InputError(f"sharded_main with params and main_params both {self.params} casts nothing; leave it out")

    def dtype(self, state: str) -> torch.dtype:
        """The torch dtype of a state that is no moment."""
        import torch

        dtype: torch.dtype = getattr(torch, FLOATS[getattr(self, state)])
        return dtype

    @property
    def shares_main(self) -> bool:
        """Whether parameters and main parameters are one copy."""
        return self.params == self.main_params

    @property
    def stages(self) -> tuple[int, ...]:
        """The ZeRO stages that it goes with: all, or stage 3 alone, which gathers what `sharded_main` casts."""
        return (3,) if self.sharded_main else (0, 1, 2, 3)

    @property
    def name(self) -> str:
        """What errors call it: its name in PRECISIONS, or its dtypes."""
        known = next((name for name, precision in PRECISIONS.items() if precision == self), None)
        return known or ", ".join(f"{state} {getattr(self, state)}" for state in STATES)

    @property
    def scales_loss(self) -> bool:
        """fp16 has no bits for small gradients: the loss is scaled up (`scaler.py`)."""
        return "fp16" in (self.params, self.grads, self.reduce, self.main_grads)

    def itemsize(self, state: str) -> int:
        """Bytes of a value, the scales of moments left out."""
        return BYTES[getattr(self, state)]


STATES = tuple(field.name for field in fields(Precision) if field.type == "str")

BF16 = Precision(params="bf16", grads="bf16", main_grads="bf16")
PRECISIONS = {
    "fp32": Precision(),
    "bf16": BF16,
    "fp16": Precision(params="fp16", grads="fp16", main_grads="fp16"),
    # Megatron-LM's way: gradients are added up, over micro-batches and over ranks, in fp32.
    "bf16_fp32_grads": Precision(params="bf16"),
    "fp8": replace(BF16, fp8=True),
    "fsdp2": Precision(params="bf16", sharded_main=True),
    # No main parameters apart: an update smaller than half a unit in the last of 8 bits is lost.
    "pure_bf16": Precision("bf16", "bf16", "bf16", "bf16", "bf16", "bf16"),
    # 2 + 2 + 4 + 1 + 1: what DeepSeek-V3 and Megatron-LM's precision-aware optimizer come near to.
    "bf16_fp8_moments": replace(BF16, exp_avg="fp8", exp_avg_sq="fp8"),
}
"""The recipes by name, which all that takes a precision takes; the only table of them."""


def find_precision(precision: str | Precision | None) -> Precision | None:
    """The recipe of this name in PRECISIONS; a Precision or None as it is. Raises InputError for any other."""
    if precision is None or isinstance(precision, Precision):
        return precision
    if not isinstance(precision, str) or precision not in PRECISIONS:
        raise InputError(f"there is no precision {precision!r}; choose one of {', '.join(PRECISIONS)}")
    return PRECISIONS[precision]
