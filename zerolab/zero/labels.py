"""Which tensor of an engine is what, for `zerolab.memory.Tracker`. Names only; the storages say how large they are."""

from __future__ import annotations

from collections.abc import Callable

import torch

from zerolab.offload.places import ledger
from zerolab.zero.table import STAGES
from zerolab.zero.zero_engine import ZeroEngine


def engine_labels(engine: ZeroEngine) -> Callable[[], dict[str, list[torch.Tensor | None]]]:
    """Labels for a tracker. Where two tensors are in one storage, the kind that stays is named first: a bucket's
    `shard` is a part of `whole` at stages 0 to 2, and local gradients may be reduced where they lie at 0 and 1."""
    offload, step = engine.offload, engine.optimizer_step
    memory = "device" if offload.optimizer == "device" else "host"
    parameters = "device" if offload.parameters == "device" else "host"
    gradients = memory if STAGES[engine.stage][1] else "device"

    def labels() -> dict[str, list[torch.Tensor | None]]:
        buckets = engine.buckets
        kept: dict[str, list[torch.Tensor | None]] = {"parameters": [], ledger(parameters, "parameters"): []}
        for bucket in buckets:
            kept["parameters" if bucket.persistent else ledger(parameters, "parameters")].append(bucket.shard)
        return {
            **kept,
            ledger(gradients, "gradients"): [bucket.gradients.reduced for bucket in buckets],
            ledger(memory, "optimizer_states"): [*step.resting()],
            ledger(memory, "step_buffers"): step.transient(),
            "host:swap_buffers": [*engine.tier.buffers],
            "gathered_units": [bucket.whole for bucket in buckets],
            "gradient_buffers": [bucket.gradients.local for bucket in buckets],
        }

    return labels
