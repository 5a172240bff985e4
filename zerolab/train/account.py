"""What a run should take by its layout alone, and what its parameters are in the end."""

from __future__ import annotations

import hashlib
from typing import Any

import torch

from zerolab.memory import predict, predict_traffic
from zerolab.train import instances
from zerolab.train.config import TrainConfig
from zerolab.zero import ZeroEngine


def predictions(engine: ZeroEngine, config: TrainConfig, steps: int, skipped: int) -> dict[str, Any]:
    """What memory and traffic should be, by rank, from the layout alone; traffic as the mean over so many steps."""
    spec = config.spec
    copies = config.num_distributed_optimizer_instances
    memory = predict(engine.plans, spec.stage, engine.state_size, spec.precision, spec.places)
    whole, cut = (
        instances.added(
            instances.of_all(
                predict_traffic(
                    engine.plans,
                    spec.stage,
                    engine.comm.size,
                    micro_batches=spec.micro_batches,
                    reduction=spec.reduction,
                    reduce_each=spec.reduce_each,
                    clip=bool(config.clip_norm),
                    precision=spec.precision,
                    offload=spec.places,
                    skipped=is_skipped,
                    limits=config.make_limits(),
                    resident=[unit.name for unit in engine.units if len(unit.modules) > 1],
                ),
                copies,
            ),
            instances.traffic_across(engine.plans, spec, copies, is_skipped),
        )
        for is_skipped in (False, True)
    )
    traffic = {
        name: [
            mean(all_of * (steps - skipped) + less * skipped, steps)
            for all_of, less in zip(sent, cut.get(name, [0] * len(sent)), strict=True)
        ]
        for name, sent in whole.items()
    }
    return {"memory": instances.of_all(memory, copies), "traffic": traffic}


def mean(total: int, count: int) -> int | float:
    """`total / count`, as an int where that is a whole number."""
    return total // count if total % count == 0 else total / count


def parameters_sha256(engine: ZeroEngine) -> str:
    """Of all parameters: names, dtypes, shapes and bytes, unit by unit, so that one unit at a time is whole."""
    digest = hashlib.sha256()
    for unit in engine.units:
        for name, value in sorted(engine.parameters_of(unit).items()):
            digest.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
            digest.update(value.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
