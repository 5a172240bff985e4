"""What a row says of a case: predicted figures and measured ones beside each other.

Bytes are those of the rank that has most, seconds those of a step: by the trace on the virtual clock in lockstep, by
the median of the steps that no tracker slowed down in processes.
"""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from zerolab import __version__
from zerolab.apps.cost import Machine
from zerolab.apps.plan import gpu_bytes
from zerolab.apps.plan.timing import predict_step
from zerolab.apps.sweep.rows import disk_errors
from zerolab.collectives import Span
from zerolab.collectives.observe.tracer import merge
from zerolab.data import Corpus, MappedCorpus
from zerolab.files import write_whole
from zerolab.memory.kinds import OFFLOADED
from zerolab.run import RunSpec
from zerolab.train import Report
from zerolab.train.run import trace_of
from zerolab.train.trace import PARTS, STEP, Interval, RankTrace, number_of, total

Figures = dict[str, Any]


@dataclass(frozen=True)
class StepParts:
    """Seconds of one rank's step: how long some collective was under way, how long the rank computed meanwhile (the
    intersection of both), and how long it stood still for one."""

    step: float
    communication: float
    overlap: float
    waiting: float


def measured(report: Report, corpus: Corpus) -> Figures:
    """The figures of a run of this text that was traced."""
    config = report.config
    # A tracker sees the text, which no GPU would hold, where the ranks compute on the CPU; one that is mapped from
    # files it does not count to the device.
    on_gpus = torch.cuda.is_available() and config.device != "cpu"
    uncounted = on_gpus or isinstance(corpus, MappedCorpus)
    text = 0 if uncounted else corpus.train.nbytes + corpus.valid.nbytes
    parts = mean_parts(report)
    seconds = step_seconds(report)
    found = {
        "loss": report.loss,
        "parameters_sha256": report.parameters_sha256,
        "step_seconds": seconds,
        "tokens_per_s": config.batch_size * config.seq_len / seconds,
        "communication_share": parts.communication / parts.step,
        "overlap_share": parts.overlap / parts.communication if parts.communication else None,
        "waiting_share": parts.waiting / parts.step,
        "sent_bytes_predicted": most(report.traffic_predicted),
        "sent_bytes": most(report.traffic_measured),
        "traffic_is_stated": report.traffic_is_stated,
        "state_bytes_predicted": most(on_device(report.memory_predicted)),
        "state_bytes": most(on_device(report.memory_measured, report.memory_predicted)),
        "peak_bytes_predicted": gpu_bytes(config.but(on_gpus=on_gpus)),
        "peak_bytes": most(on_device(report.peak)) - text,
    }
    for place in OFFLOADED:
        if kinds := {kind: sizes for kind, sizes in report.memory_predicted.items() if kind.startswith(place)}:
            name = place.rstrip(":")
            found[f"{name}_bytes_predicted"] = most(kinds)
            found[f"{name}_bytes"] = most({kind: report.memory_measured.get(kind, []) for kind in kinds})
    return found


def predicted_times(config: RunSpec, device: Machine | None) -> Figures:
    """Of a step on this device; None without one, and with several copies of the shards, which the planner does not
    know."""
    names = ("step_seconds", "communication_share", "waiting_share")
    if device is None or config.num_distributed_optimizer_instances > 1:
        return {f"{name}_predicted": None for name in names}
    step = predict_step(config, device, config.link, clips=bool(config.clip_norm), overlap=config.overlap)
    figures = (step.seconds, step.communication / step.seconds, step.exposed / step.seconds)
    return {f"{name}_predicted": figure for name, figure in zip(names, figures, strict=True)}


def write_trace(report: Report, path: Path | None) -> None:
    """Write what the ranks did when, for a viewer of traces. Raises a DiskError if it cannot be."""
    if path is not None:
        with disk_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, trace_of(report))


def machine() -> Figures:
    """What figures of time depend on besides the settings."""
    return {
        "zerolab": __version__,
        "torch": str(torch.__version__),
        "processor": platform.machine(),
        "cores": os.cpu_count(),
    }


def on_device(kinds: Mapping[str, list[int]], of: Iterable[str] | None = None) -> dict[str, list[int]]:
    """The kinds of memory that are neither on the host nor on the disk; of those in `of` alone, where it is given."""
    wanted = kinds if of is None else set(of)
    return {kind: sizes for kind, sizes in kinds.items() if kind in wanted and not kind.startswith(OFFLOADED)}


def most(kinds: Mapping[str, Sequence[float]]) -> float:
    """Bytes of the rank that has most, all kinds together."""
    return max((sum(of_rank) for of_rank in zip(*(sizes for sizes in kinds.values() if sizes), strict=True)), default=0)


def step_seconds(report: Report) -> float:
    """Seconds of a step, which ends when its slowest rank does: the median over steps."""
    if report.config.world != "lockstep":
        return report.median_step_seconds
    by_step = [steps_of(trace, report) for trace in report.traces]
    return statistics.median(max(step.seconds for step in of_ranks) for of_ranks in zip(*by_step, strict=True))


def mean_parts(report: Report) -> StepParts:
    """Means over the ranks and the steps that no tracker slowed down."""
    found = [
        parts_of(step, [span for span in trace.spans if span is not step])
        for trace in report.traces
        for step in steps_of(trace, report)
    ]
    return StepParts(*(statistics.fmean(getattr(one, name) for one in found) for name in StepParts.__annotations__))


def steps_of(trace: RankTrace, report: Report) -> list[Span]:
    """The steps to read times from: those after the tracked ones and the one that follows, whose parameters have been
    waited for before it began; or all if there are no others."""
    steps = [span for span in trace.spans if span.name.startswith(STEP)]
    return [step for step in steps if number_of(step) > report.resumed_step + report.tracked_steps + 1] or steps


def parts_of(step: Span, spans: Iterable[Span]) -> StepParts:
    """What one rank's step consists of. What began before it, or ended after it, counts with its part."""
    inside: dict[str, list[Interval]] = {"collective": [], "compute": [], "wait": []}
    for span in spans:
        start, stop = max(span.start, step.start), min(span.stop, step.stop)
        if stop > start and span.kind in inside and (span.kind != "compute" or span.name in PARTS):
            inside[span.kind].append((start, stop))
    both = intersect(inside["collective"], inside["compute"])
    return StepParts(
        step.seconds,
        total(inside["collective"]),
        total(both) - total(intersect(both, inside["wait"])),
        total(inside["wait"]),
    )


def intersect(one: Iterable[Interval], other: Iterable[Interval]) -> list[Interval]:
    """When something of `one` and something of `other` was under way."""
    left, right, found = merge(one), merge(other), list[Interval]()
    while left and right:
        start, stop = max(left[0][0], right[0][0]), min(left[0][1], right[0][1])
        if stop > start:
            found.append((start, stop))
        # The one that ends first meets nothing more.
        (left if left[0][1] <= right[0][1] else right).pop(0)
    return found
