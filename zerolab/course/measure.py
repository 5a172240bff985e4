"""The other ledger: a run's steps on lockstep ranks of this machine's CPU, and what a tracker sees of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch

from zerolab.apps.plan.guide import PHASES
from zerolab.apps.plan.layout import decay_of
from zerolab.apps.plan.mixture import build_model
from zerolab.collectives import Collectives
from zerolab.memory import Tracker
from zerolab.memory.kinds import OFFLOADED
from zerolab.precision import LossScaler
from zerolab.ranks import launch
from zerolab.run import RunSpec
from zerolab.run.instances import split
from zerolab.zero import ZeroEngine
from zerolab.zero.zero_engine import engine_labels


@dataclass(frozen=True)
class Measured:
    """What one rank held in its first two steps.

    states  bytes between two steps by kind; one off the device has its place before its name
    peak    bytes on the device by kind, at the moment when these were most
    phase   in which that moment was
    sent    bytes sent in the second step, by phase and collective
    """

    states: dict[str, int]
    peak: dict[str, int]
    phase: str
    sent: dict[str, dict[str, int]]

    @property
    def total(self) -> int:
        return sum(self.peak.values())


def measure(runs: Sequence[RunSpec]) -> list[list[Measured]]:
    """What each rank of each run held, with rings for collectives. The models must be small: all ranks are in this
    process, and compute."""
    found: dict[int, list[Measured]] = {}
    for ranks in {run.ranks for run in runs}:
        mine = {at: run for at, run in enumerate(runs) if run.ranks == ranks}
        by_rank = launch(measure_rank, [*mine.values()], ranks=ranks, world="lockstep", collectives="ring")
        found |= dict(zip(mine, map(list, zip(*by_rank, strict=True)), strict=True))
    return [found[at] for at in range(len(runs))]


def measure_rank(comm: Collectives, runs: Sequence[RunSpec]) -> list[Measured]:
    return [measure_run(comm, run) for run in runs]


def measure_run(comm: Collectives, run: RunSpec) -> Measured:
    torch.manual_seed(0)
    config, scales = run.architecture, run.dtypes is not None and run.dtypes.scales_loss
    model = build_model(config, run.checkpoint_activations, run.dropout)
    shard, replicate = split(comm, run.instances)
    engine = ZeroEngine(
        model, shard, run.stage, 1e-3, clip_norm=1.0, groups=decay_of_train,
        reduction=run.reduction, prefetch=run.prefetch, bucket_numel=run.bucket_numel, precision=run.dtypes,
        offload=run.places, limits=run.limits, scaler=UNSCALED if scales else None,
        replicate=replicate,
    )  # fmt: skip

    def step() -> None:
        shape = (run.micro_batches, 2, run.micro_batch_size, run.seq_len)
        batches = [[part.clone() for part in batch] for batch in torch.randint(0, config.vocab_size, shape)]
        for number, (tokens, targets) in enumerate(batches, start=1):
            loss = engine(tokens, targets) / run.micro_batches
            engine.backward(loss, reduce=not run.defer_reduction or number == run.micro_batches)
            del loss
        engine.step()
        engine.synchronize()

    assert comm.meter is not None
    with Tracker(engine_labels(engine)) as tracker:
        # The optimizer's states come with the first step, which may take more than others, where states are encoded.
        step()
        comm.meter.reset()
        step()
    sent = {phase: nonzero(comm.meter.bytes_by_collective(phase)) for phase in PHASES}
    states = {kind: size for kind, size in tracker.now().items() if kind.partition(":")[2] or kind in KEPT}
    states |= engine.disk_bytes()
    engine.close()
    samples = ((on_device(sample.bytes), sample.phase) for sample in tracker.samples)
    peak, phase = max(samples, key=lambda sample: sum(sample[0].values()))
    return Measured(nonzero(states), peak, phase, nonzero(sent))


T = TypeVar("T")
UNSCALED = LossScaler(static=1.0)
"""No scale overflows, so each step comes to the optimizer."""
KEPT = ("parameters", "gradients", "optimizer_states")


def decay_of_train(name: str, parameter: torch.nn.Parameter) -> dict[str, float]:
    """The groups of the planner's layout, as options that AdamW knows."""
    return {"weight_decay": 0.1 if decay_of(name, parameter)["decays"] else 0.0}


def on_device(live: dict[str, int]) -> dict[str, int]:
    return {kind: size for kind, size in live.items() if size and not kind.startswith(OFFLOADED)}


def nonzero(found: dict[str, T]) -> dict[str, T]:
    return {name: value for name, value in found.items() if value}
