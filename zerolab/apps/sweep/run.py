"""A sweep from begin to end: the cases that its folder does not have yet, and the machine of its predictions."""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, product
from pathlib import Path
from typing import Any, NamedTuple

import torch

from zerolab import __version__
from zerolab.apps.cost import Machine
from zerolab.apps.cost.calibration import Seconds, machine_from, measure_carrying, measure_ranks
from zerolab.apps.cost.machine import constant_rate
from zerolab.apps.interop.huggingface import weights_of
from zerolab.apps.plan import gpu_bytes
from zerolab.apps.plan.timing import predict_step
from zerolab.apps.sweep.cases import SweepCase
from zerolab.apps.sweep.rows import DONE, FAILED, TABLE, Row, hold, make_csv, read_rows, write_file, write_rows
from zerolab.apps.sweep.shaping import call_on_hosts, check_wires
from zerolab.collectives import Link, Span
from zerolab.collectives.observe import merge
from zerolab.data import Corpus, MappedCorpus
from zerolab.errors import DiskError, InputError, ZerolabError
from zerolab.memory.kinds import OFFLOADED
from zerolab.ranks import launch
from zerolab.run import RunSpec
from zerolab.train import Report, train
from zerolab.train.model import load_data
from zerolab.train.progress import Bar
from zerolab.train.run import trace_of
from zerolab.train.trace import PARTS, STEP, Interval, RankTrace, number_of, total

MACHINE = "calibration.json"
HERE = {
    "zerolab": __version__,
    "torch": str(torch.__version__),
    "processor": platform.machine(),
    "cores": os.cpu_count(),
}
"""What figures of time depend on besides the settings."""
Figures = dict[str, Any]
BySeconds = dict[str, Seconds]
"""What was measured of this machine, by what it was measured with."""


@dataclass(frozen=True)
class SweepOutcome:
    """A sweep that is over: the rows of its cases in order, and how many of them were run now."""

    rows: list[Row]
    ran: int

    @property
    def failed(self) -> list[Row]:
        return [row for row in self.rows if row["status"] == FAILED]


def sweep(cases: Sequence[SweepCase], folder: Path, traces: bool = False) -> SweepOutcome:
    """Run the cases that the folder has no finished row of. One that fails becomes a row that says why, and is tried
    again the next time. `traces`: each is kept in `traces/KEY.json`."""
    with hold(folder):
        rows, seconds = {row["key"]: row for row in read_rows(folder)}, read_seconds(folder)
        left = [case for case in cases if case.key not in rows or rows[case.key]["status"] != DONE]
        for link in dict.fromkeys(case.config.link for case in left if case.hosts):
            check_wires(link)
        done = len(cases) - len(left)
        with Bar(total=len(cases), initial=done, desc="sweep", unit="case", file=sys.stderr, disable=None) as bar:
            for case in left:
                bar.set_postfix_str(case.title)
                # One that failed before goes.
                rows.pop(case.key, None)
                rows[case.key] = run_case(case, seconds, folder, traces)
                write_rows(folder, rows.values())
                bar.update()
        ours = {case.key: rows.pop(case.key) for case in cases}
        rows |= ours
        write_rows(folder, rows.values())
        write_file(folder / TABLE, make_csv(rows.values()))
        return SweepOutcome([*ours.values()], len(left))


def run_case(case: SweepCase, seconds: BySeconds, folder: Path, traces: bool) -> Row:
    """Predict and run a case. What lines are found by comes first, for who reads them by eye."""
    row: Row = {"key": case.key, "case": case.title, "status": DONE, "error": None, "settings": case.shown}
    trace = folder / "traces" / f"{case.key}.json" if traces else None
    try:
        predicted = predict_times(case.config, find_machine(case, seconds, folder))
        row |= predicted | (run_shaped(case, trace) if case.hosts else run_traced(case.config, trace))
    except DiskError:
        raise
    except Exception as error:
        said = str(error)
        if not isinstance(error, ZerolabError):
            said = f"{type(error).__name__}: {' '.join(said.split())}"
        row |= {"status": FAILED, "error": said}
    return row | {"machine": HERE}


def read_seconds(folder: Path) -> BySeconds:
    """What a folder has of this machine; a sweep that goes on predicts by it."""
    path = folder / MACHINE
    try:
        read = json.loads(path.read_text(encoding="utf-8"))
        machine, seconds = read["machine"], dict(read["seconds"])
        return seconds if machine == HERE else {}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, KeyError):
        raise InputError(f"{path} holds no machine of a sweep; take it away, or name another folder") from None


def find_machine(case: SweepCase, seconds: BySeconds, folder: Path) -> Machine | None:
    """What computes in a case: on a virtual clock what its settings say, else this CPU, measured now if it was not.
    None for GPUs."""
    config, places = case.config, case.config.places
    if config.world != "processes":
        speeds = {("matmul", 4): constant_rate(config.gflop_per_s * 1e9)}
        return Machine(config.world, speeds, constant_rate(config.gbyte_per_s * 1e9))
    if torch.cuda.is_available() and config.device != "cpu":
        return None

    def measure_once(name: str, how: Callable[[], Seconds]) -> Seconds:
        if name not in seconds:
            seconds[name] = how()
            write_file(folder / MACHINE, json.dumps({"machine": HERE, "seconds": seconds}, indent=1) + "\n")
        return dict(seconds[name])

    # On a link, simulated or shaped, ranks send by rings.
    collectives = "ring" if config.link is not None or case.hosts else config.collective_impl
    disk = places.folder if places.on_disk else None
    name = f"{config.ranks} ranks, {collectives}" + ("" if disk is None else f", {disk}")
    found = measure_once(name, partial(measure_ranks, config.ranks, collectives, disk))
    if case.hosts:
        found |= measure_once(f"{name}, {case.hosts} hosts", partial(carry_on_wires, case.hosts, config.ranks))
    return machine_from(found, config.ranks)


def carry_on_wires(hosts: int, ranks: int) -> Seconds:
    """Seconds of a processor that each rank's collectives take on shaped wires."""
    measure = partial(launch, measure_carrying, ranks=None, collectives="ring", device="cpu", prints="quiet")
    # Of all results a process that joins a world has that of its own rank.
    return dict(call_on_hosts(hosts, ranks, Link(1.0, 0.0), measure)[0])


def run_shaped(case: SweepCase, trace: Path | None = None) -> Figures:
    """The figures of a case; its trace goes to `trace`."""
    config = case.config
    # As on a simulated link, where "auto" is the ring: what shared memory moves goes over no wire.
    collectives = "ring" if config.collective_impl == "auto" else config.collective_impl
    unlinked = {"gbit_per_s": None, "latency_us": 0.0, "device": "cpu", "collective_impl": collectives}
    run = partial(run_traced, config.model_copy(update=unlinked), trace and trace.absolute())
    return dict(call_on_hosts(case.hosts, config.ranks, config.link, run))


def run_traced(config: RunSpec, trace: Path | None = None) -> Figures:
    """The figures of a run, whose trace goes to a file."""
    corpus = load_data(config)
    # Any path turns tracing on; the trace stays in the report.
    traced = config.model_copy(update={"trace": Path("trace.json")})
    report = train(traced, corpus, weights=weights_of(config))
    if trace is not None:
        write_file(trace, trace_of(report))
    return find_figures(report, corpus)


class StepParts(NamedTuple):
    """Seconds of a rank's step: with a collective under way, of these computing, and waiting for one."""

    step: float
    communication: float
    overlap: float
    waiting: float


def find_figures(report: Report, corpus: Corpus) -> Figures:
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
    """Of a step on this device, and the spread of its speed; None without one, and with copies of the shards."""
    figures: Sequence[float | None] = (None, None, None, None)
    if device is not None and config.instances == 1:
        step = predict_step(config, device, config.link, clips=bool(config.clip_norm), overlap=config.overlap)
        figures = step.seconds, step.communication / step.seconds, step.exposed / step.seconds, device.spread
    names = ("step_seconds", "communication_share", "waiting_share")
    return dict(zip((*(f"{name}_predicted" for name in names), "machine_spread"), figures, strict=True))


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
