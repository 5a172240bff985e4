"""A plan as it is asked for: as text, as JSON, or as the run for another tool."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from zerolab.apps.cli import ending, plan_text
from zerolab.apps.cli.tables import render
from zerolab.apps.dialects import DIALECTS
from zerolab.apps.plan import gpu_bytes, guide
from zerolab.apps.plan.describe import as_settings, describe_plan
from zerolab.errors import InputError
from zerolab.run import RunSpec
from zerolab.train.outputs import write_output


def plan(given: Any, run: RunSpec, limit: float | None, gpu: str, file: Path | None) -> None:
    """Show the plan of a run, and write it to a file; `given` are the flags, `limit` bytes of the `gpu`."""
    chosen, reasons = guide.recommend(run, limit) if given.recommend and limit is not None else (None, [])
    best = chosen or run
    times = None if given.gpu is None or run.instances > 1 else plan_text.StepTimes(run, given)
    if given.emit is not None:
        if given.recommend and chosen is None:
            raise InputError("no stage fits, so there is no run to emit; leave --emit out")
        ending.print_output(emit(best, given.emit, (given.model_extra or {}).get("offload_path")))
        if given.emit == "deepspeed" and run.checkpoint_activations:
            ending.print_error("--checkpoint-activations is in no DeepSpeed configuration; switch it on in the model")
        if limit is not None and gpu_bytes(best) > limit:
            ending.print_error(plan_text.tell_whether_fits(best, limit, gpu))
    else:
        parts = [*plan_text.describe_needs(run, limit, gpu)]
        if times is not None:
            parts += plan_text.describe_times(times)
        elif given.gpu is not None:
            parts.append("A step's time is predicted of one instance only.")
        if given.recommend and limit is not None:
            parts += plan_text.describe_recommended(run, chosen, reasons, limit)
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


def record_times(times: plan_text.StepTimes) -> dict[str, Any]:
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
