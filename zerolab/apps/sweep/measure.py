"""What a row says of a case: predicted figures and measured ones.

Bytes are those of the rank that has most, seconds those of a step.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import torch

from zerolab.apps.cost import Machine
from zerolab.apps.interop.huggingface.start import weights_of
from zerolab.apps.plan import gpu_bytes
from zerolab.apps.plan.timing import predict_step
from zerolab.apps.sweep.rows import write_file
from zerolab.collectives import Span
from zerolab.collectives.observe import merge
from zerolab.data import Corpus, MappedCorpus
from zerolab.memory.kinds import OFFLOADED
from zerolab.run import RunSpec
from zerolab.train import Report, train
from zerolab.train.model import load_data
from zerolab.train.run import trace_of
from zerolab.train.trace import PARTS, STEP, Interval, RankTrace, number_of, total

Figures = dict[str, Any]


class StepParts(NamedTuple):
    """Seconds of a rank's step: with a collective under way, of these computing, and waiting for one."""

    step: float
    communication: float
    overlap: float
    waiting: float


def run_traced(config: RunSpec, trace: Path | None = None) -> Figures:
    """The figures of a run, whose trace goes to a file."""
    corpus = load_data(config)
    # Any path turns tracing on; the trace stays in the report.
    report = train(config.model_copy(update={"trace": Path("trace.json")}), corpus, weights=weights_of(config))
    if trace is not None:
        write_file(trace, trace_of(report))
    return measured(report, corpus)


def measured(report: Report, corpus: Corpus) -> Figures:
    """The figures of a run of this text that was traced."""
    config = report.config
    # On the CPU a tracker sees the text, unless it is mapped from files.
    on_gpus = torch.cuda.is_available() and config.device != "cpu"
    uncounted = on_gpus or isinstance(corpus, MappedCorpus)
    text = 0 if uncounted else corpus.train.nbytes + corpus.valid.nbytes
    predicted = report.memory_predicted
    states = {kind: report.memory_measured.get(kind, []) for kind in predicted}
    parts, seconds = mean_parts(report), step_seconds(report)
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
        "state_bytes_predicted": most(predicted),
        "state_bytes": most(states),
        "peak_bytes_predicted": gpu_bytes(config.but(on_gpus=on_gpus)),
        "peak_bytes": most(report.peak) - text,
    }
    for place in OFFLOADED:
        if any(kind.startswith(place) for kind in predicted):
            name = place.rstrip(":")
            found |= {f"{name}_bytes_predicted": most(predicted, place), f"{name}_bytes": most(states, place)}
    return found


def predicted_times(config: RunSpec, device: Machine | None) -> Figures:
    """Of a step on this device; None without one, and with copies of the shards."""
    names = ("step_seconds", "communication_share", "waiting_share")
    if device is None or config.num_distributed_optimizer_instances > 1:
        return {f"{name}_predicted": None for name in names}
    step = predict_step(config, device, config.link, clips=bool(config.clip_norm), overlap=config.overlap)
    figures = (step.seconds, step.communication / step.seconds, step.exposed / step.seconds)
    return {f"{name}_predicted": figure for name, figure in zip(names, figures, strict=True)}


def most(kinds: Mapping[str, Sequence[float]], place: str = "") -> float:
    """Bytes of the rank that has most at a place: on the device, if none is named."""
    wanted = [sizes for kind, sizes in kinds.items() if sizes and kind.startswith(place or OFFLOADED) is bool(place)]
    return max(map(sum, zip(*wanted, strict=True)), default=0)


def step_seconds(report: Report) -> float:
    """Seconds of a step, which ends when its slowest rank does: the median over steps."""
    if report.config.world != "lockstep":
        return report.median_step_seconds
    by_step = [steps_of(trace, report) for trace in report.traces]
    return statistics.median(max(step.seconds for step in of_ranks) for of_ranks in zip(*by_step, strict=True))


def mean_parts(report: Report) -> StepParts:
    """Means over the ranks and the steps that no tracker slowed down."""
    found = [parts_of(step, trace.spans) for trace in report.traces for step in steps_of(trace, report)]
    return StepParts(*map(statistics.fmean, zip(*found, strict=True)))


def steps_of(trace: RankTrace, report: Report) -> list[Span]:
    """Those after the tracked ones and the one that follows, whose parameters have been waited for before it began; or
    all if there are no others."""
    steps = [span for span in trace.spans if span.name.startswith(STEP)]
    return [step for step in steps if number_of(step) > report.resumed_step + report.tracked_steps + 1] or steps


def parts_of(step: Span, spans: Iterable[Span]) -> StepParts:
    """Of what began before the step, or ended after it, its part counts."""
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
    both = [(max(a, c), min(b, d)) for (a, b), (c, d) in product(merge(one), merge(other))]
    return [(start, stop) for start, stop in both if start < stop]
