"""A whole training run: load the text, start the ranks, gather what they measured."""

from __future__ import annotations

import json
import math
import os
import platform
import re
import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from zerolab.data import Corpus
from zerolab.errors import CheckpointError, InputError
from zerolab.files import write_whole
from zerolab.ranks import launch
from zerolab.ranks.failure import RankFailure
from zerolab.run import RunSpec
from zerolab.train.here import check_here
from zerolab.train.model import load_data, with_vocabulary
from zerolab.train.progress import Stop, follow
from zerolab.train.rank import TRACKED_STEPS, train_rank
from zerolab.train.resume import Start, Weights, find_start
from zerolab.train.trace import RankTrace, Time, chrome_json, times_of

ByRank = dict[str, list[int]]


@dataclass(frozen=True)
class Report:
    """What a run did and what it took. Bytes are lists by rank; traffic is that of one optimizer step. Where
    `traffic_is_stated` the collectives are torch's own, whose messages nobody can count: what stands as measured is
    what a ring sends in the calls that were made. Of a virtual world the lists have rank 0 alone, seconds are virtual,
    and losses and the parameters' digest are None: nothing of that kind is computed.

    `loss` and times are those of this run's own steps, which come after `resumed_step` where it began with the
    checkpoint in `resumed`. `step` is the last; a run that was asked to end before it was done is `stopped`.
    `validation_loss` is by the number of steps before it. `save_seconds` are what each save took beside training, by
    its step.
    """

    config: RunSpec
    ranks: int
    loss: list[float | None]
    step_seconds: list[float]
    parameters_sha256: str | None
    memory_predicted: ByRank
    memory_measured: ByRank
    peak: ByRank
    traffic_predicted: ByRank
    traffic_measured: ByRank
    text: str
    loss_scale: list[float] = field(default_factory=list)
    skipped_steps: list[int] = field(default_factory=list)
    validation_loss: dict[int, float] = field(default_factory=dict)
    tracked_steps: int = TRACKED_STEPS
    traffic_is_stated: bool = False
    step: int = 0
    stopped: bool = False
    resumed: str | None = None
    resumed_step: int = 0
    save_seconds: dict[int, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    traces: tuple[RankTrace, ...] = ()

    @property
    def times(self) -> list[Time]:
        """Of a step, where the run was traced; of the steps that no tracker slowed down, if there are any."""
        return times_of(self.traces, self.resumed_step + self.tracked_steps + 1) if self.traces else []

    @property
    def lr(self) -> list[float]:
        """The learning rate of each of this run's own steps."""
        return [self.config.schedule(self.resumed_step + done) for done in range(len(self.loss))]

    @property
    def median_step_seconds(self) -> float:
        """Of the steps that no tracker slowed down, or of all if there were no others."""
        return statistics.median(self.step_seconds[self.tracked_steps :] or self.step_seconds)

    def as_json(self) -> dict[str, Any]:
        """What `--profile-json` writes."""
        return {
            "zero_stage": self.config.zero_stage,
            "world": self.config.world,
            "ranks": self.ranks,
            "loss": self.loss,
            "validation_loss": self.validation_loss,
            "lr": self.lr,
            "loss_scale": self.loss_scale,
            "skipped_steps": self.skipped_steps,
            "step_seconds": self.step_seconds,
            "tracked_steps": self.tracked_steps,
            "step": self.step,
            "resumed": self.resumed,
            "resumed_step": self.resumed_step,
            "save_seconds": self.save_seconds,
            "parameters_sha256": self.parameters_sha256,
            "memory": {
                "predicted": self.memory_predicted,
                "measured": self.memory_measured,
                "peak": self.peak,
            },
            "traffic": {"predicted": self.traffic_predicted, "measured": self.traffic_measured},
            "traffic_is_stated": self.traffic_is_stated,
            "times": [asdict(time) for time in self.times],
            "text": self.text,
            "config": json.loads(self.config.model_dump_json()),
            "machine": {
                "torch": torch.__version__,
                "python": platform.python_version(),
                "processor": platform.machine(),
                "cores": os.cpu_count(),
            },
        }


def train(
    config: RunSpec,
    corpus: Corpus | None = None,
    start: Start | None = None,
    stop: Stop | None = None,
    weights: Weights | None = None,
) -> Report:
    """Train as `config` says and return the report. Under torchrun every process calls this, and every one gets it.
    `stop` can ask the run to end before its last step, with a checkpoint if it saves any. `weights` reads what an
    `init_from` stands for.

    Raises InputError for text that cannot be used and a checkpoint of another run or of its end, CheckpointError if
    saving or loading fails, RankError if a rank fails otherwise.
    """
    check_here(config)
    corpus = corpus or load_data(config)
    config = with_vocabulary(config, corpus)
    start = start or find_start(config, corpus, weights)
    config = start.config
    if start.step >= config.max_steps:
        raise InputError(f"max_steps is {config.max_steps} and {start.folder} is at step {start.step}; give more")
    what = f"ZeRO-{config.zero_stage}, {config.ranks} ranks"
    stop = stop or Stop()
    with follow(config.max_steps, what, start.step) as progress, _checkpoint_errors():
        stop.tell(progress)
        results = launch(
            train_rank,
            start,
            corpus,
            progress,
            stop,
            ranks=config.ranks,
            world=config.world,
            collectives=config.collective_impl,
            timeout=config.timeout,
            collective_timeout=config.collective_timeout,
            device=config.device,
            link=config.link,
            trace=config.trace is not None,
        )
    record = next(result for result in results if result is not None)
    return make_report(start, record, corpus)


@contextmanager
def _checkpoint_errors() -> Iterator[None]:
    """What failed to be saved or loaded is no fault of the rank that says so."""
    try:
        yield
    except RankFailure as failure:
        if failure.error == CheckpointError.__name__:
            # Whichever rank was heard first: the one that failed, or one that heard of it.
            raise CheckpointError(re.sub(r"^(rank \d+ (raised \w+|failed): )+", "", str(failure))) from failure
        raise


def make_report(start: Start, record: dict[str, Any], corpus: Corpus) -> Report:
    config = start.config
    of_ranks, traffic = record["ranks"], record["predicted"]["traffic"]
    ranks = config.ranks if config.world == "virtual" else len(of_ranks)
    return Report(
        config=config,
        ranks=ranks,
        loss=record["loss"],
        # A step has ended when its slowest rank has.
        step_seconds=[max(seconds) for seconds in zip(*(of["seconds"] for of in of_ranks), strict=True)],
        parameters_sha256=record["parameters_sha256"],
        memory_predicted=record["predicted"]["memory"],
        memory_measured=by_rank([of["memory"] for of in of_ranks]),
        peak=by_rank([of["peak"] for of in of_ranks]),
        traffic_predicted=traffic,
        traffic_measured=by_rank([dict.fromkeys(traffic, 0) | of["traffic"] for of in of_ranks]),
        text=corpus.text.note or corpus.text.source,
        validation_loss=record["validation_loss"],
        loss_scale=record["loss_scale"],
        skipped_steps=record["skipped_steps"],
        tracked_steps=record["tracked_steps"],
        traffic_is_stated=record["traffic_is_stated"],
        step=record["step"],
        stopped=record["step"] < config.max_steps,
        resumed=None if start.folder is None else str(start.folder),
        resumed_step=start.step,
        save_seconds={
            step: max(seconds)
            for step, *seconds in zip(record["saved_steps"], *(of["save_seconds"] for of in of_ranks), strict=True)
        },
        notes=tuple(record["notes"]),
        traces=tuple(RankTrace.of_record(of["trace"]) for of in of_ranks if of["trace"] is not None),
    )


def by_rank(records: list[dict[str, int]]) -> ByRank:
    """{kind: [bytes of rank 0, of rank 1, ...]} from one record a rank."""
    kinds = list(dict.fromkeys(kind for record in records for kind in record))
    return {kind: [record.get(kind, 0) for record in records] for kind in kinds}


def json_of(report: Report) -> str:
    """The text of a profile. Of a run that has diverged, what is no number any more is null, as JSON has it."""
    return json.dumps(finite(report.as_json()), indent=1, allow_nan=False) + "\n"


def finite(value: Any) -> Any:
    """The same, with None in the place of each number that is infinite or none."""
    if isinstance(value, dict):
        return {name: finite(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def trace_of(report: Report) -> str:
    """The text of a trace file."""
    run = report.config
    clock = "real time" if run.world == "processes" else "virtual time"
    return chrome_json(report.traces, f"zerolab train, ZeRO-{run.zero_stage}, {report.ranks} ranks, {clock}")


def write_json(report: Report, path: Path) -> None:
    """Write the report whole or not at all."""
    write_whole(path, json_of(report))
