"""What one rank needs for a training run, and what would make it fit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from zerolab.memory.kinds import OFFLOADED
from zerolab.memory.states import predict_states
from zerolab.offload.places import NOWHERE
from zerolab.plan.spec import RunSpec
from zerolab.precision.recipe import Precision

GB = 10**9
DEVICE = ("parameters", "gradients", "optimizer_states", "gathered_units", "activations")
"""What a GPU holds, by kind, each in bytes of `needs`."""


def needs(run: RunSpec) -> dict[str, float]:
    """Bytes of one rank: on its GPU by kind (`DEVICE`), and "host" and "disk" for what lies outside it."""
    dtypes = run.dtypes or Precision()
    states = predict_states(run.shape.parameters, run.ranks, run.stage, dtypes, run.places)
    # Two layers, since the next one is gathered while one computes.
    gathered = 2 * run.shape.layer_parameters if run.stage == 3 and run.ranks > 1 else 0
    width = dtypes.itemsize("params")
    # The formula counts 16 bits; fp32 activations are twice as long.
    kept = run.shape.activation_bytes(run.micro_batch_size, run.seq_len, run.checkpoint_activations) * width / 2
    held = {**dict.fromkeys(DEVICE, 0.0), **states, "gathered_units": float(gathered * width), "activations": kept}
    elsewhere = {
        place.rstrip(":"): sum(held.pop(kind) for kind in [*held] if kind.startswith(place)) for place in OFFLOADED
    }
    return {**held, **elsewhere}


def gpu_bytes(run: RunSpec) -> float:
    """All that one GPU must hold. Not in it: the head's logits, buffers of collectives, and fragmentation."""
    return sum(nbytes for kind, nbytes in needs(run).items() if kind in DEVICE)


def advice(run: RunSpec, limit: float) -> RunSpec | None:
    """The run with the smallest change that makes it fit into a GPU of `limit` bytes: itself, else one of `changes`, in
    that order; None if none of them does."""
    return next((changed for changed in changes(run) if gpu_bytes(changed) <= limit), None)


def changes(run: RunSpec) -> Iterator[RunSpec]:
    """From what costs least to what costs most: a higher stage, recomputation, a smaller batch, the host, and last more
    ranks."""
    yield run
    stages = [stage for stage in (run.dtypes or Precision()).stages if stage >= run.stage]
    for ranks in [run.ranks, *(2**power for power in range(1, 14) if 2**power > run.ranks)]:
        for offload in (run.offload, "optimizer") if run.places == NOWHERE else (run.offload,):
            for batch in dict.fromkeys((run.micro_batch_size, 1)):
                for checkpointing in dict.fromkeys((run.checkpoint_activations, True)):
                    for stage in stages:
                        yield replace(
                            run, ranks=ranks, stage=stage, micro_batch_size=batch, checkpoint_activations=checkpointing,
                            offload=offload,
                        )  # fmt: skip
