"""How long a run's step takes, and what of it is waiting for the wire."""

from __future__ import annotations

from dataclasses import dataclass, field

from zerolab.apps.cost import GPU, Machine, Network
from zerolab.apps.cost.gpus import LINK_EFFICIENCY
from zerolab.apps.plan.mixture import parameter_count
from zerolab.apps.plan.simulator import StepSimulator
from zerolab.apps.plan.trace import dtype_of
from zerolab.collectives import Link
from zerolab.flat.layout import check_count
from zerolab.run import RunSpec

WAITS = ("gather", "reduce", "norm", "publish")


@dataclass(frozen=True)
class StepTime:
    """A step of one rank, in seconds.

    seconds        from the first forward to the new parameters
    time_breakdown the same by what it was spent on: "compute", "optimizer", "offload", and `WAITS`
    communication  in which collectives ran, whoever waited
    tokens         of the step, over all ranks
    flop           floating-point operations that a rank's tokens need, without recomputation
    peak           of the device, in floating-point operations a second; None where it is not known
    """

    seconds: float
    time_breakdown: dict[str, float] = field(repr=False)
    communication: float
    tokens: int
    flop: float
    peak: float | None = None

    @property
    def exposed(self) -> float:
        """Seconds in which the device waited for collectives."""
        return sum(self.time_breakdown.get(what, 0.0) for what in WAITS)

    @property
    def tokens_per_s(self) -> float:
        """Over all ranks."""
        return self.tokens / self.seconds

    @property
    def mfu(self) -> float | None:
        """Model FLOPs utilization: what the model needs, as a share of the device's peak."""
        return None if self.peak is None else self.flop / self.seconds / self.peak


def predict_step(
    run: RunSpec, machine: Machine, network: Network | Link | None, clips: bool = True, overlap: bool = True
) -> StepTime:
    """The time of a step as rank 0 spends it, the second or a later one.

    network  what is between ranks; None: only what `machine` says of collectives itself
    clips    gradients are clipped by their norm, as `zerolab train` does
    overlap  reductions run while backward goes on
    """
    step = StepSimulator(run, machine=machine, network=network, overlap=overlap)
    step.run_micro_batches()
    step.step_optimizer(clips)
    tokens = run.batch_size * run.seq_len
    peak = machine.peak.get(dtype_of(run).itemsize)
    return StepTime(step.now, dict(step.time_breakdown), step.carried, tokens, model_flop(run), peak)


def model_flop(run: RunSpec) -> float:
    """6 a parameter and token, and 12 L h T a token for attention's scores (arXiv 2204.02311, app. B)."""
    tokens = run.micro_batches * run.micro_batch_size * run.seq_len
    config = run.architecture
    return tokens * (6.0 * parameter_count(config) + 12.0 * config.layers * config.dim * run.seq_len)


def network_of(
    gpu: GPU, ranks: int, node_size: int = 8, gbit_per_s: float = 400.0, latency_us: float = 14.0,
    cards: int | None = None, algorithm: str = "ring",
) -> Network:  # fmt: skip
    """Links of GPUs: inside a node their own, between nodes `cards` network cards (None: one a GPU)."""
    check_count("node_size", node_size)
    inside = Link(8 * LINK_EFFICIENCY * gpu.link_gbyte_per_s, 4.0)
    if ranks <= node_size:
        return Network(inside)
    between = Link(LINK_EFFICIENCY * gbit_per_s, latency_us)
    return Network(inside, between, node_size, node_size if cards is None else cards, algorithm)
