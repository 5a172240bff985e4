"""Which stage to take, why, and what each remedy brings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from zerolab.apps.cost.gpus import GB
from zerolab.apps.plan.footprint import advice, at_stage, gpu_bytes, name_changes
from zerolab.apps.plan.layout import layout_of
from zerolab.memory.traffic import TrafficSettings, predict_phases
from zerolab.precision.recipe import Precision
from zerolab.run import OFFLOADS, RunSpec
from zerolab.run.instances import traffic_across

PHASES = ("forward", "backward", "norm", "publish")
SMALL = 100_000
"""Elements: DeepSpeed's default for `stage3_param_persistence_threshold`."""
LINKS = {"100 Gbit/s": 12.5 * GB, "400 Gbit/s": 50.0 * GB, "NVLink of an H100, 450 GB/s": 450.0 * GB}
"""Bytes a second in one direction."""


class Mitigation(NamedTuple):
    """One change to a run: in words, the run with it, and what it brings besides."""

    what: str
    run: RunSpec
    note: str


def traffic(run: RunSpec) -> dict[str, dict[str, int]]:
    """Bytes that rank 0 sends in a step by rings, by phase and collective. It clips by the norm."""
    layout, sent = layout_of(run), dict[str, dict[str, int]]()
    if run.sharing > 1:
        tied = [layout.plans[0].unit] if run.architecture.tied_head else []
        sending = TrafficSettings(
            run.micro_batches, run.reduction, not run.defer_reduction, True, run.dtypes, run.places,
            limits=run.limits.on(run.on_gpus), resident=tied,
        )  # fmt: skip
        sent = predict_phases(layout.plans, run.stage, 0, sending)
    for name, by_rank in traffic_across(layout.plans, run).items():
        # States on a disk tell of it in the phase of the norm.
        of_phase = sent.setdefault("backward" if name == "all_reduce" else "norm", {})
        of_phase[name] = of_phase.get(name, 0) + by_rank[0]
    return {phase: sent[phase] for phase in PHASES if phase in sent}


def traffic_bytes(run: RunSpec) -> int:
    return sum(sum(calls.values()) for calls in traffic(run).values())


def recommend(run: RunSpec, limit: float) -> tuple[RunSpec | None, list[str]]:
    """The run at the lowest stage that fits into `limit` bytes, which is the simplest; else with the smallest other
    change that makes it fit; else None. And why, in sentences."""
    reasons: list[str] = []
    for stage in (run.dtypes or Precision()).stages:
        one = at_stage(run, stage)
        sent = traffic_bytes(one) / GB
        said = f"stage {stage}: {gpu_bytes(one) / GB:.2f} GB of {limit / GB:g}, {sent:.2f} GB sent a step"
        if gpu_bytes(one) <= limit:
            return one, [*reasons, f"{said}; fits, and is the lowest stage that does"]
        reasons.append(f"{said}; too much")
    highest = at_stage(run, 3)
    found = advice(highest, limit)
    if found is None:
        return None, [*reasons, "no recomputation, smaller batch, place on the host or up to 8192 ranks makes it fit"]
    what = " and ".join(name_changes(highest, found))
    sent = traffic_bytes(found) / GB
    return found, [*reasons, f"stage 3 with {what}: {gpu_bytes(found) / GB:.2f} GB, {sent:.2f} GB sent a step; fits"]


def against_memory(run: RunSpec) -> Iterator[Mitigation]:
    """What makes a run smaller, each change alone."""
    for stage in (run.dtypes or Precision()).stages:
        if stage > run.stage:
            half = ", half as much again on the wire" if stage == 3 else ""
            yield Mitigation(f"stage {stage}", at_stage(run, stage), f"nothing computed twice{half}")
    if not run.checkpoint_activations:
        more = run.but(checkpoint_activations=True)
        yield Mitigation("recompute activations", more, "layers' forward runs twice: about a third more to compute")
    if run.micro_batch_size > 1:
        steps = run.micro_batches * run.micro_batch_size
        yield Mitigation(
            "micro-batches of 1", run.but(micro_batch_size=1, micro_batches=steps), "more, smaller kernels"
        )
    if run.places.optimizer == "device":
        yield Mitigation("optimizer on the host", run.but(offload="optimizer"), "the step is computed by the CPU")
    if run.stage == 3 and run.places.parameters == "device":
        both = run.but(offload=OFFLOADS["optimizer and parameters"])
        yield Mitigation("optimizer and parameters on the host", both, "each gathered shard crosses PCIe first")
    if run.stage == 3 and run.prefetch:
        note = "each layer waits; so with stage3_max_live_parameters below two layers, or stage3_prefetch_bucket_size 0"
        yield Mitigation("no prefetch", run.but(prefetch=False), note)
    if run.instances > 1:
        yield Mitigation("one instance", run.but(instances=1), "all ranks share the states; more goes between machines")
    if run.stage > 0:
        yield Mitigation(f"{2 * run.ranks} ranks", run.but(ranks=2 * run.ranks), "twice the GPUs, and sequences")


def against_slowness(run: RunSpec) -> Iterator[Mitigation]:
    """What makes a run send or compute less, each change alone."""
    for stage in (run.dtypes or Precision()).stages:
        if stage < run.stage:
            note = "fewer bytes sent" if run.stage == 3 else "the same bytes sent, simpler"
            yield Mitigation(f"stage {stage}", at_stage(run, stage), note)
    if run.checkpoint_activations:
        yield Mitigation("keep activations", run.but(checkpoint_activations=False), "no layer is computed twice")
    if run.micro_batches > 1:
        if not run.defer_reduction:
            once = run.but(defer_reduction=True)
            yield Mitigation("reduce once a step", once, "gradients stay whole from micro-batch to micro-batch")
        one = run.but(micro_batches=1, micro_batch_size=run.micro_batch_size * run.micro_batches)
        yield Mitigation("one micro-batch", one, "the same sequences at once")
    if run.places.optimizer != "device":
        yield Mitigation("optimizer on the GPU", run.but(offload="nothing"), "the step is computed by the GPU")


def seconds_on_links(run: RunSpec) -> dict[str, float]:
    """How many seconds a step's bytes take on links: what overlap can hide at best."""
    return {name: traffic_bytes(run) / speed for name, speed in LINKS.items()}


def count_buckets(run: RunSpec, bucket_numel: int | None) -> tuple[int, int]:
    """How many buckets a step reduces, and the elements of the largest."""
    plans = layout_of(run.but(bucket_numel=bucket_numel)).plans
    return len(plans), max(plan.layout.numel for plan in plans)


def kept_by_threshold(run: RunSpec) -> int:
    """Bytes of the parameters of at most `SMALL` elements, which a lower threshold could free."""
    width = (run.dtypes or Precision()).itemsize("params")
    slots = (slot for plan in layout_of(run).plans for slot in plan.layout.slots)
    return width * sum(slot.numel for slot in slots if slot.numel <= SMALL)
