"""Bytes of model states from a count of parameters: what a rank keeps from step to step.

With Ψ parameters, N ranks, and P, G, O bytes a parameter for parameters, gradients and optimizer states:

    stage 0   P + G + O              stage 2   P + (G + O) / N
    stage 1   P + G + O / N          stage 3   (P + G + O) / N

P, G and O follow from the precision (`state_widths`). This is the arithmetic of the ZeRO paper (arXiv 1910.02054,
section 5 and figure 1): no activations, no buffers, and no padding, which `zerolab.memory.predict` has.
"""

from __future__ import annotations

import torch

from zerolab.flat.layout import check_count
from zerolab.offload.formats import format_of
from zerolab.offload.places import NO_OFFLOAD, Offload, check_places, ledger
from zerolab.precision.recipe import Precision, find_precision
from zerolab.zero.start import check_stage

ADAM = ("exp_avg", "exp_avg_sq")
"""What torch's Adam and AdamW call their two moments."""
SHARDED_FROM = {"parameters": 3, "gradients": 2, "optimizer_states": 1}
"""The first stage at which a rank keeps only its own shard."""


def state_widths(precision: Precision, offload: Offload = NO_OFFLOAD) -> dict[str, int]:
    """Bytes a parameter, by kind of state: {"parameters": 2, "gradients": 2, "optimizer_states": 12} for bf16.

    Optimizer states are Adam's two moments and, where the optimizer updates a copy of the parameters, that copy: main
    parameters of their own dtype, or parameters that rest in another place. The scales of moments in 8 or 16 bits are
    left out: 4 bytes for each 128 values.
    """
    form = format_of(torch.float32, precision, offload, ADAM)
    return {
        "parameters": precision.itemsize("main_params" if precision.sharded_main else "params"),
        "gradients": precision.itemsize("main_grads"),
        "optimizer_states": sum(codec.dtype.itemsize for codec in form.codecs),
    }


def predict_states(
    parameters: int,
    ranks: int,
    stage: int,
    precision: Precision | str | None = "bf16",
    offload: Offload = NO_OFFLOAD,
) -> dict[str, float]:
    """Bytes that one rank keeps of `parameters`, `gradients` and `optimizer_states`, for a model of so many
    parameters. Not rounded: a share of an odd count may end in a fraction. A kind off the device has its place before
    its name ("host:optimizer_states"), as in `predict`. No precision means fp32.
    """
    check_count("parameters", parameters)
    check_count("ranks", ranks)
    check_stage(stage)
    precision = find_precision(precision)
    check_places(stage, precision, offload)
    places = {
        "parameters": offload.parameters,
        "gradients": "host" if stage >= 2 and offload.optimizer != "device" else "device",
        "optimizer_states": offload.optimizer,
    }
    return {
        ledger(places[kind], kind): parameters * width / (ranks if stage >= SHARDED_FROM[kind] else 1)
        for kind, width in state_widths(precision or Precision(), offload).items()
    }
