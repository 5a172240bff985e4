"""A plan as it is asked for: as lines and tables, as JSON, or as the run for another tool."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.table import Table

from zerolab.apps.cli import ending
from zerolab.apps.cli.tables import make_table, render
from zerolab.apps.cost import find_gpu, machine_of
from zerolab.apps.cost.gpus import LINK_EFFICIENCY
from zerolab.apps.dialects import DIALECTS
from zerolab.apps.plan import GB, advice, gpu_bytes, guide, predict_memory
from zerolab.apps.plan.describe import as_settings, describe_plan, explain_table
from zerolab.apps.plan.footprint import at_stage, name_changes
from zerolab.apps.plan.mixture import parameter_count
from zerolab.apps.plan.timing import network_of, predict_step
from zerolab.errors import InputError
from zerolab.memory.kinds import KINDS, OFFLOADED
from zerolab.precision import Precision
from zerolab.run import RunSpec
from zerolab.train.outputs import write_output

Parts = Iterator[str | Table]
Rows = list[tuple[str, ...]]


class StepTimes:
    """A step's times at each stage."""

    def __init__(self, run: RunSpec, given: Any) -> None:
        self.run, self.gpu = run, find_gpu(given.gpu)
        self.machine = machine_of(self.gpu, given.reached)
        links = {name.removeprefix("link_"): getattr(given, name) for name in given.links}
        links = {name: value for name, value in links.items() if value is not None}
        self.network = network_of(self.gpu, run.ranks, **links)
        stages = (run.dtypes or Precision()).stages
        self.stages = {stage: predict_step(at_stage(run, stage), self.machine, self.network) for stage in stages}


def describe_needs(run: RunSpec, limit: float | None, gpu: str) -> Parts:
    found = predict_memory(run)
    what = f"{run.model_name}: {parameter_count(run.architecture):,} parameters"
    ranks = f"{run.ranks} ranks at stage {run.stage}"
    ranks += f" in {run.instances} instances" if run.instances > 1 else ""
    recipe = run.precision if isinstance(run.precision, str) else "fp32"
    batch = f"{run.micro_batches} x " if run.micro_batches > 1 else ""
    batch += f"{run.micro_batch_size} x {run.seq_len} tokens a rank"
    how = ", activations recomputed" if run.checkpoint_activations else ""
    yield f"{what}; {ranks}, {recipe}; {batch}, {run.attention} attention{how}"
    yield explain_table(run)
    held = {kind: nbytes for kind in KINDS if (nbytes := found.peak.bytes.get(kind))}
    rows: Rows = []
    for kind, nbytes in held.items():
        rests = "from step to step" if kind in found.states else ""
        rows.append((kind.replace("_", " "), in_gb(nbytes), rests))
    rows.append(("total", in_gb(found.peak.total), ""))
    title = f"one GPU at the peak of a step ({found.peak.where})"
    yield make_table(title, "kind|GB|rests", rows)
    away = {kind: size for kind, size in found.states.items() if kind.startswith(OFFLOADED)}
    rows = [(*kind.replace("_", " ").split(":"), in_gb(away[kind])) for kind in away if away[kind]]
    if rows:
        yield make_table("a rank's states outside its GPU", "place|kind|GB", rows)
    if sent := guide.traffic(run):
        rows = [(phase, name, in_gb(sent[phase][name])) for phase in sent for name in sent[phase]]
        rows.append(("total", "", in_gb(guide.traffic_bytes(run))))
        yield make_table("sent by a rank in a step (rings)", "phase|collective|GB", rows)
    yield tell_whether_fits(run, limit, gpu)
    fp8 = ", 8-bit copies of layers" if run.dtypes is not None and run.dtypes.fp8 else ""
    not_counted = f"the allocator's losses, the CUDA context, NCCL's buffers{fp8}"
    yield f"Not counted: {not_counted}; leave a few GB free."


def tell_whether_fits(run: RunSpec, limit: float | None, gpu: str) -> str:
    needed = gpu_bytes(run)
    if limit is None:
        return f"A GPU needs {in_gb(needed)} GB. (Does that fit? Give --gpu or --gpu-memory.)"
    there = f"the {limit / GB:g} GB of {gpu}"
    if needed <= limit:
        return f"Fits: {in_gb(needed)} GB of {there}."
    does_not = f"Does not fit: {in_gb(needed)} GB are more than {there}"
    found = advice(run, limit)
    if found is None:
        return f"{does_not}, and no stage on up to 8192 ranks makes it fit."
    change = f"{' and '.join(name_changes(run, found))}, {in_gb(gpu_bytes(found))} GB"
    return f"{does_not}. The smallest change that fits: {change}."


def describe_recommended(run: RunSpec, chosen: RunSpec | None, why: list[str], limit: float) -> Parts:
    yield "\nRecommended: " + (f"stage {chosen.stage}" if chosen else "nothing of all this")
    yield from (f"  {reason}" for reason in why)
    base = chosen or run.but(stage=3)
    for title, remedies in (
        ("if memory runs out", guide.against_memory),
        ("if it is too slow", guide.against_slowness),
    ):
        first = "as recommended" if chosen else "stage 3"
        before = gpu_bytes(base)
        rows: Rows = [(first, in_gb(before), "", "", in_gb(guide.traffic_bytes(base)), "")]
        for remedy in remedies(base):
            needed, sent = gpu_bytes(remedy.run), in_gb(guide.traffic_bytes(remedy.run))
            by, fits = f"{(needed - before) / GB:+.2f}", "yes" if needed <= limit else "no"
            rows.append((remedy.what, in_gb(needed), by, fits, sent, remedy.note))
        if len(rows) > 1:
            columns = "change|GB|by|fits|sent, GB|and"
            yield make_table(f"{title}: each change alone", columns, rows)
    on_links = guide.seconds_on_links(base).items()
    links = ", ".join(f"{seconds:.3g} s ({link})" for link, seconds in on_links)
    yield f"On a link alone a step's bytes take {links}; overlap_comm hides at most this."
    for numel in (None, 500_000_000, 50_000_000):
        count, largest = guide.count_buckets(base, numel)
        what = "whole units (the default)" if numel is None else f"at most {numel:.0e}"
        yield f"Buckets of {what}: {count} a step, the largest of {largest:,} elements."
    if base.stage == 3:
        kept = f"{guide.kept_by_threshold(base) / GB:.4f} GB whole"
        yield f"DeepSpeed's threshold of 100,000 elements keeps {kept}."


def describe_times(times: StepTimes) -> Parts:
    gpu, network, rows = times.gpu, times.network, []
    for stage, step in times.stages.items():
        needed = gpu_bytes(at_stage(times.run, stage)) / GB
        mark, mfu = "*" * (stage == times.run.stage), step.mfu
        row = [f"{stage} {mark}".strip(), f"{step.seconds:.3g}", f"{step.tokens_per_s:,.0f}"]
        row += ["" if mfu is None else f"{mfu:.1%}", f"{step.exposed:.3g}"]
        row += [f"{step.communication:.3g}", f"{needed:,.1f}"]
        rows.append([*row, "yes" if needed <= gpu.memory_gb else "no"])
    columns = "stage|seconds|tokens/s|MFU|waits, s|wire, s|GB|fits"
    yield make_table(f"a step on {times.run.ranks} {gpu.name}, predicted", columns, rows)
    yield "Waits: for collectives, which take the wire so long."
    reached = times.machine.flop["matmul", 2].points[0][1] / 1e12
    yield f"Taken: {reached:.3g} of the data sheet's {gpu.tflop_per_s:g} TFLOP/s (--reached),"
    inside, between = network.inside, network.between
    links = f"{LINK_EFFICIENCY:.0%} of each link: {inside.gbit_per_s:g} Gbit/s inside a node"
    if between:
        cards = f"{network.cards} x {between.gbit_per_s:g} between nodes"
        links += f", {cards} of {network.node_size}, {between.latency_us:g} us a message"
    yield f"{links}. benchmarks/README.md says how far off that is."


def in_gb(nbytes: float) -> str:
    return f"{nbytes / GB:,.2f}" if nbytes >= GB / 100 else f"{nbytes / GB:.2g}"


def plan(given: Any, run: RunSpec, limit: float | None, gpu: str, file: Path | None) -> None:
    """Show the plan of a run, and write it to a file; `given` are the flags, `limit` bytes of the `gpu`."""
    chosen, reasons = guide.recommend(run, limit) if given.recommend and limit is not None else (None, [])
    best = chosen or run
    times = None if given.gpu is None or run.instances > 1 else StepTimes(run, given)
    if given.emit is not None:
        if given.recommend and chosen is None:
            raise InputError("no stage fits, so there is no run to emit; leave --emit out")
        ending.print_output(emit(best, given.emit, (given.model_extra or {}).get("offload_path")))
        if given.emit == "deepspeed" and run.checkpoint_activations:
            ending.print_error("--checkpoint-activations is in no DeepSpeed configuration; switch it on in the model")
        if limit is not None and gpu_bytes(best) > limit:
            ending.print_error(tell_whether_fits(best, limit, gpu))
    else:
        parts = [*describe_needs(run, limit, gpu)]
        if times is not None:
            parts += describe_times(times)
        elif given.gpu is not None:
            parts.append("A step's time is predicted of one instance only.")
        if given.recommend and limit is not None:
            parts += describe_recommended(run, chosen, reasons, limit)
        ending.print_output(render(parts))
    if file is not None:
        record = describe_plan(run, limit)
        if times is not None:
            record["time"] = record_times(times)
        if given.recommend:
            record["recommended"] = {
                "run": None if chosen is None else describe_plan(chosen, limit), "reasons": reasons,
                "memory_remedies": [record_remedy(one, limit) for one in guide.against_memory(best)],
                "seconds_on_links": guide.seconds_on_links(best),
                "speed_remedies": [record_remedy(one, limit) for one in guide.against_slowness(best)],
            }  # fmt: skip
        write_output("the plan", file, json.dumps(record, indent=1) + "\n")


def record_remedy(remedy: guide.Mitigation, limit: float | None) -> dict[str, Any]:
    needed = gpu_bytes(remedy.run)
    return {
        "change": remedy.what, "gpu_bytes": needed, "fits": None if limit is None else needed <= limit,
        "sent_bytes": guide.traffic_bytes(remedy.run), "note": remedy.note,
    }  # fmt: skip


def record_times(times: StepTimes) -> dict[str, Any]:
    network, between = times.network, times.network.between
    return {
        "gpu": times.gpu.name,
        "network": {
            "inside_gbit_per_s": network.inside.gbit_per_s, "inside_latency_us": network.inside.latency_us,
            "between_gbit_per_s": between and between.gbit_per_s, "between_latency_us": between and between.latency_us,
            "node_size": network.node_size, "cards": network.cards, "algorithm": network.algorithm,
        },
        "by_stage": {
            str(stage): {
                "seconds": step.seconds, "tokens_per_s": step.tokens_per_s, "mfu": step.mfu,
                "spent": step.time_breakdown, "exposed_communication": step.exposed,
                "communication": step.communication,
            }
            for stage, step in times.stages.items()
        },
    }  # fmt: skip


def emit(run: RunSpec, dialect: str, folder: str | None) -> str:
    settings = as_settings(run)
    if run.places.on_disk:
        settings["offload_path"] = folder
    return DIALECTS[dialect](settings)
