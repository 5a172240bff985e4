"""A plan as people read it: lines and tables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.table import Table

from zerolab.apps.cli.tables import make_table
from zerolab.apps.cost import find_gpu, machine_of
from zerolab.apps.cost.gpus import LINK_EFFICIENCY
from zerolab.apps.plan import GB, advice, gpu_bytes, needs_of
from zerolab.apps.plan.describe import explain_table
from zerolab.apps.plan.guide import (
    against_memory,
    against_slowness,
    buckets,
    kept_by_threshold,
    seconds_on_links,
    traffic,
    traffic_bytes,
)
from zerolab.apps.plan.mixture import parameter_count
from zerolab.apps.plan.needs import at_stage, changed
from zerolab.apps.plan.timing import BATCHES, LEAST_GBIT, MOST_GBIT, by_stage, crossings, network_of
from zerolab.memory.kinds import KINDS, OFFLOADED
from zerolab.run import RunSpec

Parts = Iterator[str | Table]
Rows = list[tuple[str, ...]]
LINKS = ("node_size", "link_gbit_per_s", "link_latency_us", "cards", "algorithm")


class StepTimes:
    """The times of a step at each stage, and where a stage is slower than the one before, with a plan's flags."""

    def __init__(self, run: RunSpec, given: Any) -> None:
        self.run, self.gpu = run, find_gpu(given.gpu)
        self.machine = machine_of(self.gpu, given.reached)
        links = {name.removeprefix("link_"): getattr(given, name) for name in LINKS}
        links = {name: value for name, value in links.items() if value is not None}
        self.network = network_of(self.gpu, run.ranks, **links)
        self.stages = by_stage(run, self.machine, self.network)
        self.crossings = list(crossings(run, self.machine, self.network)) if given.crossings else None


def describe_needs(run: RunSpec, limit: float | None, gpu: str) -> Parts:
    found = needs_of(run)
    what = f"{run.model_name}: {parameter_count(run.architecture):,} parameters; {run.ranks} ranks"
    what += f" at stage {run.stage}" + (f" in {run.instances} instances" if run.instances > 1 else "")
    batch = f"{run.micro_batches} x " if run.micro_batches > 1 else ""
    batch += f"{run.micro_batch_size} x {run.seq_len} tokens a rank"
    recipe = run.precision if isinstance(run.precision, str) else "fp32"
    how = ", activations recomputed" if run.checkpoint_activations else ""
    yield f"{what}, {recipe}; {batch}, {run.attention} attention{how}"
    yield explain_table(run)
    held = {kind: nbytes for kind in KINDS if (nbytes := found.peak.bytes.get(kind))}
    rests = ["from step to step" if kind in found.states else "" for kind in held]
    rows: Rows = [(kind.replace("_", " "), in_gb(held[kind]), rest) for kind, rest in zip(held, rests, strict=True)]
    rows.append(("total", in_gb(found.peak.total), ""))
    yield make_table(f"one GPU at the peak of a step ({found.peak.where})", "kind|GB|rests", rows)
    away = {kind: size for kind, size in found.states.items() if kind.startswith(OFFLOADED) and size}
    if rows := [(*kind.replace("_", " ").split(":"), in_gb(size)) for kind, size in away.items()]:
        yield make_table("a rank's states outside its GPU", "place|kind|GB", rows)
    if sent := traffic(run):
        rows = [(phase, name, in_gb(nbytes)) for phase, calls in sent.items() for name, nbytes in calls.items()]
        rows.append(("total", "", in_gb(traffic_bytes(run))))
        yield make_table("sent by a rank in a step (rings)", "phase|collective|GB", rows)
    yield tell_whether_fits(run, limit, gpu)
    fp8 = ", 8-bit copies of linear layers" if run.dtypes is not None and run.dtypes.fp8 else ""
    yield f"Not counted: the allocator's losses, the CUDA context, NCCL's buffers{fp8}; leave a few GB free."


def tell_whether_fits(run: RunSpec, limit: float | None, gpu: str) -> str:
    needed = gpu_bytes(run)
    if limit is None:
        return f"A GPU needs {in_gb(needed)} GB. (--gpu or --gpu-memory says whether that fits, and what would.)"
    if needed <= limit:
        return f"Fits: {in_gb(needed)} GB of the {limit / GB:g} GB of {gpu}."
    found = advice(run, limit)
    does_not = f"Does not fit: {in_gb(needed)} GB are more than the {limit / GB:g} GB of {gpu}"
    if found is None:
        return f"{does_not}, and no stage on up to 8192 ranks makes it fit."
    change = " and ".join(changed(run, found))
    return f"{does_not}. The smallest change that fits: {change}, {in_gb(gpu_bytes(found))} GB."


def describe_recommended(run: RunSpec, chosen: RunSpec | None, reasons: list[str], limit: float) -> Parts:
    yield f"\nRecommended: {'nothing of all this' if chosen is None else f'stage {chosen.stage}'}"
    yield from (f"  {reason}" for reason in reasons)
    base = chosen or run.but(stage=3)
    remedies_of = {"if memory runs out": against_memory, "if it is too slow": against_slowness}
    for title, remedies in remedies_of.items():
        first = "as recommended" if chosen else "stage 3"
        rows: Rows = [(first, in_gb(gpu_bytes(base)), "", "", in_gb(traffic_bytes(base)), "")]
        for remedy in remedies(base):
            needed = gpu_bytes(remedy.run)
            by, fits = f"{(needed - gpu_bytes(base)) / GB:+.2f}", "yes" if needed <= limit else "no"
            rows.append((remedy.what, in_gb(needed), by, fits, in_gb(traffic_bytes(remedy.run)), remedy.note))
        if len(rows) > 1:
            yield make_table(f"{title}: each change alone", "change|GB|by|fits|sent, GB|and", rows)
    links = ", ".join(f"{seconds:.3g} s ({link})" for link, seconds in seconds_on_links(base).items())
    yield f"On a link alone the bytes of a step take {links}; overlap_comm hides at most this, and changes no byte."
    for numel in (None, 500_000_000, 50_000_000):
        count, largest = buckets(base, numel)
        what = "whole units (the default)" if numel is None else f"at most {numel:.0e} elements"
        yield f"Buckets of {what}: {count} a step, the largest of {largest:,} elements."
    if base.stage == 3:
        kept = f"{kept_by_threshold(base) / GB:.4f} GB whole"
        yield f"A persistence threshold of 100,000 elements keeps {kept}; it is DeepSpeed's default."


def describe_times(times: StepTimes) -> Parts:
    gpu, network, rows = times.gpu, times.network, []
    for stage, step in times.stages.items():
        needed = gpu_bytes(at_stage(times.run, stage)) / GB
        row = [f"{stage} *" if stage == times.run.stage else str(stage), f"{step.seconds:.3g}"]
        row += [f"{step.tokens_per_s:,.0f}", "" if step.mfu is None else f"{step.mfu:.1%}"]
        row += [f"{step.exposed:.3g}", f"{step.communication:.3g}"]
        rows.append([*row, f"{needed:,.1f}", "yes" if needed <= gpu.memory_gb else "no"])
    title, columns = (
        f"a step on {times.run.ranks} {gpu.name}, predicted",
        "stage|seconds|tokens/s|MFU|waits, s|wire, s|GB|fits",
    )
    yield make_table(title, columns, rows)
    yield "Waits: for collectives, which take the wire so long, most of it beside what is computed."
    reached = times.machine.flop["matmul", 2].points[0][1] / 1e12
    yield f"Taken: {reached:.3g} of the {gpu.tflop_per_s:g} TFLOP/s of its data sheet in 16 bits (--reached),"
    links = f"{LINK_EFFICIENCY:.0%} of each link: {network.inside.gbit_per_s:g} Gbit/s inside a node"
    if network.between is not None:
        cards = f"{network.cards} x {network.between.gbit_per_s:g} between nodes of {network.node_size}"
        links += f", {cards}, {network.between.latency_us:g} us a message"
    yield f"{links}. benchmarks/README.md says how far such predictions are off."
    for crossing in times.crossings or ():
        if crossing.gbit_per_s is None:
            bandwidth = f"at no bandwidth from {LEAST_GBIT:g} to {MOST_GBIT:g} Gbit/s"
        else:
            what = "the GPUs' links reach" if network.between is None else "a network card reaches"
            bandwidth = f"where {what} less than {crossing.gbit_per_s:.3g} Gbit/s"
        batches = {None: f"every micro-batch up to {BATCHES[-1]}", 1: "no micro-batch"}
        batch = batches.get(crossing.batch, f"micro-batches below {crossing.batch}")
        yield f"Stage {crossing.stage} is slower than stage {crossing.before} {bandwidth}; here with {batch}."


def in_gb(nbytes: float) -> str:
    """GB with two digits behind the point, or more where that would be nought."""
    return f"{nbytes / GB:,.2f}" if nbytes >= GB / 100 else f"{nbytes / GB:.2g}"
