"""How long a run's step takes, and what of it is waiting for the wire."""

from __future__ import annotations

from dataclasses import dataclass, field

from zerolab.apps.cost import GPU, Machine, Network
from zerolab.apps.cost.gpus import LINK_REACHED
from zerolab.apps.plan.clock import Carrier, StepBytes, TimedReplay, seconds_of
from zerolab.apps.plan.layout import RunLayout
from zerolab.apps.plan.mixture import parameter_count
from zerolab.apps.plan.needs import at_stage, dtype_of, layout_of, shards, widths_of, work_of
from zerolab.apps.plan.trace import trace_layers
from zerolab.collectives import Link
from zerolab.flat.layout import check_count
from zerolab.memory.states import ADAM
from zerolab.offload.formats import format_of
from zerolab.precision.recipe import Precision
from zerolab.run import RunSpec

WAITS = ("gather", "reduce", "norm", "publish")


@dataclass(frozen=True)
class StepTime:
    """A step of one rank, in seconds.

    seconds        from the first forward to the new parameters
    spent          the same by what it was spent on: "compute", "optimizer", "offload", and waiting for collectives:
                   "gather", "reduce", "norm", "publish"
    communication  in which collectives ran, whoever waited
    tokens         of the step, over all ranks
    flop           floating-point operations of the model that a rank's tokens need, recomputation not counted
    peak           of the device, in floating-point operations a second; None where it is not known
    """

    seconds: float
    spent: dict[str, float] = field(repr=False)
    communication: float
    tokens: int
    flop: float
    peak: float | None = None

    @property
    def exposed(self) -> float:
        """Seconds in which the device waited for collectives."""
        return sum(self.spent.get(what, 0.0) for what in WAITS)

    @property
    def tokens_per_s(self) -> float:
        """Over all ranks."""
        return self.tokens / self.seconds

    @property
    def mfu(self) -> float | None:
        """Model FLOPs utilization: what the model needs a second, as a share of the device's peak."""
        return None if self.peak is None else self.flop / self.seconds / self.peak


def predict_step(
    run: RunSpec, machine: Machine, network: Network | Link | None, clips: bool = True, overlap: bool = True
) -> StepTime:
    """The time of a step as rank 0 spends it, the second or a later one.

    network  what is between ranks; None: only what `machine` says of collectives itself
    clips    gradients are clipped by their norm, as `zerolab train` does
    overlap  reductions run while backward goes on
    """
    layout, stage = layout_of(run), shards(run)
    replay = TimedReplay(
        layout, stage, widths_of(run), Carrier(run.ranks, network, machine), run.prefetch, run.places,
        run.limits.on(run.on_gpus),        run.reduction, overlap,
    )  # fmt: skip
    seconds_of(trace_layers(run.architecture, work_of(run)), replay, run.micro_batches, not run.defer_reduction)
    replay.finish(step_bytes(run, layout, stage), clips)
    tokens = run.batch_size * run.seq_len
    peak = machine.peak.get(dtype_of(run).itemsize)
    return StepTime(replay.now, dict(replay.spent), replay.carried, tokens, model_flop(run), peak)


def model_flop(run: RunSpec) -> float:
    """6 a parameter and token, and 12 L h T a token for the scores of attention (PaLM, arXiv 2204.02311, app. B)."""
    tokens = run.micro_batches * run.micro_batch_size * run.seq_len
    config = run.architecture
    return tokens * (6.0 * parameter_count(config) + 12.0 * config.layers * config.dim * run.seq_len)


def step_bytes(run: RunSpec, layout: RunLayout, stage: int) -> StepBytes:
    """What AdamW moves of a rank's share: parameters and both moments read and written, gradients read. A state that
    rests in another dtype is decoded and encoded besides. What clipping moves stands apart."""
    recipe, width = run.dtypes or Precision(), dtype_of(run).itemsize
    plans = [plan for plan in layout.plans if plan.trainable]
    numel = sum(plan.layout.numel if stage == 0 else plan.layout.shard_numel for plan in plans)
    form = format_of(dtype_of(run), run.dtypes, run.places, ADAM)
    hand = form.step_dtype.itemsize
    resting = [codec.dtype.itemsize for codec in (*form.states.values(), *([form.main] if form.main else []))]
    touched = hand * (2 + 2 * 2 + 1) + sum(2 * (rest + hand) for rest in resting if rest != hand)
    if form.main is not None:
        touched += hand + width
    calls = len(plans)
    grads = recipe.itemsize("main_grads")
    published = numel * width if run.places.parameters == "device" else 0
    return StepBytes(numel * grads, numel * 2 * hand, numel * touched, numel * 2 * sum(resting), published, calls)


def network_of(
    gpu: GPU, ranks: int, node_size: int = 8, gbit_per_s: float = 400.0, latency_us: float = 14.0,
    cards: int | None = None, algorithm: str = "ring",
) -> Network:  # fmt: skip
    """Links of GPUs by the table: inside a node the GPU's own, between nodes `cards` network cards (one a GPU, if none
    are given) of `gbit_per_s` gigabits a second; rings reach four fifths of each. `latency_us` is a message's between
    nodes; inside it is 4."""
    check_count("node_size", node_size)
    inside = Link(8 * LINK_REACHED * gpu.link_gbyte_per_s, 4.0)
    if ranks <= node_size:
        return Network(inside)
    between = Link(LINK_REACHED * gbit_per_s, latency_us)
    return Network(inside, between, node_size, node_size if cards is None else cards, algorithm)


def by_stage(run: RunSpec, machine: Machine, network: Network | Link | None) -> dict[int, StepTime]:
    """The step at each stage that the run's precision allows."""
    stages = (run.dtypes or Precision()).stages
    return {stage: predict_step(at_stage(run, stage), machine, network) for stage in stages}
