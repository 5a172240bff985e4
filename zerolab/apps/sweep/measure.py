"""What a row says of a case, predicted and measured: bytes of the rank that has most, seconds of a step."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, product
from pathlib import Path
from typing import Any, NamedTuple

import torch

from zerolab.apps.cost import Machine
from zerolab.apps.interop.huggingface import weights_of
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
    traced = config.model_copy(update={"trace": Path("trace.json")})
    report = train(traced, corpus, weights=weights_of(config))
    if trace is not None:
        write_file(trace, trace_of(report))
    return measure(report, corpus)


def measure(report: Report, corpus: Corpus) -> Figures:
    """The figures of a run of this text that was traced."""
    config, predicted = report.config, report.memory_predicted
    states = {kind: report.memory_measured.get(kind, []) for kind in predicted}
    # On the CPU a tracker sees the text, unless it is mapped from files.
    on_gpus = torch.cuda.is_available() and config.device != "cpu"
    uncounted = on_gpus or isinstance(corpus, MappedCorpus)
    text = 0 if uncounted else corpus.train.nbytes + corpus.valid.nbytes
    by_rank = [parts_of(trace, report) for trace in report.traces]
    parts = StepParts(*map(statistics.fmean, zip(*chain(*by_rank), strict=True)))
    seconds = report.median_step_seconds
    if config.world == "lockstep":
        # A step ends when its slowest rank does.
        seconds = statistics.median(max(step)[0] for step in zip(*by_rank, strict=True))
    found = {
        "loss": report.loss,
        "parameters_sha256": report.parameters_sha256,
        "step_seconds": seconds,
        "tokens_per_s": config.batch_size * config.seq_len / seconds,
        "communication_share": parts.communication / parts.step,
        "overlap_share": parts.overlap / parts.communication if parts.communication else None,
        "waiting_share": parts.waiting / parts.step,
        "sent_bytes_predicted": find_most(report.traffic_predicted),
        "sent_bytes": find_most(report.traffic_measured),
        "traffic_is_stated": report.traffic_is_stated,
        "state_bytes_predicted": find_most(predicted),
        "state_bytes": find_most(states),
        "peak_bytes_predicted": gpu_bytes(config.but(on_gpus=on_gpus)),
        "peak_bytes": find_most(report.peak) - text,
    }
    for place in OFFLOADED:
        if any(kind.startswith(place) for kind in predicted):
            name = f"{place.rstrip(':')}_bytes"
            found |= {f"{name}_predicted": find_most(predicted, place), name: find_most(states, place)}
    return found


def predict_times(config: RunSpec, device: Machine | None) -> Figures:
    """Of a step on this device; None without one, and with copies of the shards."""
    figures: Sequence[float | None] = (None, None, None)
    if device is not None and config.instances == 1:
        step = predict_step(config, device, config.link, clips=bool(config.clip_norm), overlap=config.overlap)
        figures = step.seconds, step.communication / step.seconds, step.exposed / step.seconds
    names = ("step_seconds", "communication_share", "waiting_share")
    return {f"{name}_predicted": figure for name, figure in zip(names, figures, strict=True)}


def find_most(kinds: Mapping[str, Sequence[float]], place: str = "") -> float:
    """Bytes of the rank that has most at a place: on the device, if none is named."""
    there = [kind for kind in kinds if kind.startswith(place or OFFLOADED) is bool(place)]
    return max(map(sum, zip(*(kinds[kind] for kind in there if kinds[kind]), strict=True)), default=0)


def parts_of(trace: RankTrace, report: Report) -> list[StepParts]:
    """Of steps after the tracked ones and the one that follows, which need not wait for parameters; or of all."""
    steps = [span for span in trace.spans if span.name.startswith(STEP)]
    first = report.resumed_step + report.tracked_steps + 2
    return [part_step(step, trace.spans) for step in [one for one in steps if number_of(one) >= first] or steps]


def part_step(step: Span, spans: Iterable[Span]) -> StepParts:
    """Of what began before the step, or ended after it, its part counts."""
    inside: dict[str, list[Interval]] = {"collective": [], "compute": [], "wait": []}
    for span in spans:
        if span.kind in inside and (span.kind != "compute" or span.name in PARTS):
            inside[span.kind] += intersect([(span.start, span.stop)], [(step.start, step.stop)])
    both = intersect(inside["collective"], inside["compute"])
    hidden = total(both) - total(intersect(both, inside["wait"]))
    return StepParts(step.seconds, total(inside["collective"]), hidden, total(inside["wait"]))


def intersect(one: Iterable[Interval], other: Iterable[Interval]) -> list[Interval]:
    """When something of `one` and something of `other` was under way."""
    both = [(max(a, c), min(b, d)) for (a, b), (c, d) in product(merge(one), merge(other))]
    return [(start, stop) for start, stop in both if start < stop]
