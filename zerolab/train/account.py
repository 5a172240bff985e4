"""What a run should take by its layout alone, and what its parameters are in the end."""

from __future__ import annotations

import hashlib
from typing import Any

import torch

from zerolab.flat.views import values_here
from zerolab.memory import predict, predict_traffic
from zerolab.memory.predict import predict_rank
from zerolab.memory.traffic import Sending, predict_phases
from zerolab.run import RunSpec, instances
from zerolab.zero import ZeroEngine


def predictions(engine: ZeroEngine, config: RunSpec, steps: int, skipped: int) -> dict[str, Any]:
    """What memory and traffic should be, by rank, from the layout alone; traffic as the mean over so many steps. Of a
    virtual world this rank's alone."""
    copies = config.instances
    rank = engine.comm.rank if config.world == "virtual" else None
    if rank is None:
        memory = predict(engine.plans, config.stage, engine.state_size, config.dtypes, engine.offload)
        memory = instances.of_all(memory, copies)
    else:
        book = predict_rank(engine.plans, config.stage, rank, engine.state_size, config.dtypes, engine.offload)
        memory = {kind: [nbytes] for kind, nbytes in book.items()}
    whole, cut = (_traffic(engine, config, is_skipped, rank) for is_skipped in (False, True))
    traffic = {
        name: [
            mean(all_of * (steps - skipped) + less * skipped, steps)
            for all_of, less in zip(sent, cut.get(name, [0] * len(sent)), strict=True)
        ]
        for name, sent in whole.items()
    }
    return {"memory": memory, "traffic": traffic}


def _traffic(engine: ZeroEngine, config: RunSpec, skipped: bool, rank: int | None) -> dict[str, list[int]]:
    """Bytes of a step by collective and rank, or of one rank."""
    copies = config.instances
    sending = Sending(
        micro_batches=config.micro_batches,
        reduction=config.reduction,
        reduce_each=not config.defer_reduction,
        clip=bool(config.clip_norm),
        precision=config.dtypes,
        offload=engine.offload,
        skipped=skipped,
        limits=engine.limits,
        resident=[unit.name for unit in engine.units if len(unit.modules) > 1],
    )
    across = instances.traffic_across(engine.plans, config, skipped)
    if rank is None:
        sent = predict_traffic(engine.plans, config.stage, engine.comm.size, sending)
        return instances.added(instances.of_all(sent, copies), across)
    one: dict[str, list[int]] = {}
    for calls in predict_phases(engine.plans, config.stage, rank, sending).values():
        for name, nbytes in calls.items():
            one[name] = [one.get(name, [0])[0] + nbytes]
    return instances.added(one, {name: [of_each[rank]] for name, of_each in across.items()})


def mean(total: int, count: int) -> int | float:
    """`total / count`, as an int where that is a whole number."""
    return total // count if total % count == 0 else total / count


def parameters_sha256(engine: ZeroEngine) -> str | None:
    """The SHA-256 of all parameters: names, dtypes, shapes and bytes, unit by unit, so that one unit at a time is
    whole. None in a virtual world. A collective: every rank calls it."""
    if not values_here():
        return None
    digest = hashlib.sha256()
    for unit in engine.units:
        for name, value in sorted(engine.parameters_of(unit).items()):
            digest.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
            digest.update(value.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
