"""A whole training run: load the text, start the ranks, gather what they measured."""

from __future__ import annotations

import json
import os
import platform
import statistics
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from zerolab.data import Corpus, load_corpus
from zerolab.ranks import launch
from zerolab.train.config import TrainConfig
from zerolab.train.loop import TRACKED_STEPS, train_rank
from zerolab.train.outputs import write_whole
from zerolab.train.progress import follow

ByRank = dict[str, list[int]]


@dataclass(frozen=True)
class Report:
    """What a run did and what it took. Bytes are lists by rank; traffic is that of one optimizer step. Where
    `traffic_is_stated` the collectives are torch's own, whose messages nobody can count: what stands as measured is
    what a ring sends in the calls that were made."""

    config: TrainConfig
    ranks: int
    loss: list[float]
    step_seconds: list[float]
    parameters_sha256: str
    memory_predicted: ByRank
    memory_measured: ByRank
    peak: ByRank
    traffic_predicted: ByRank
    traffic_measured: ByRank
    text: str
    loss_scale: list[float] = field(default_factory=list)
    skipped_steps: list[int] = field(default_factory=list)
    tracked_steps: int = TRACKED_STEPS
    traffic_is_stated: bool = False

    @property
    def median_step_seconds(self) -> float:
        """Of the steps that no tracker slowed down, or of all if there were no others."""
        return statistics.median(self.step_seconds[self.tracked_steps :] or self.step_seconds)

    def as_json(self) -> dict[str, Any]:
        """What `--profile-json` writes."""
        return {
            "zero_stage": self.config.zero_stage,
            "ranks": self.ranks,
            "loss": self.loss,
            "loss_scale": self.loss_scale,
            "skipped_steps": self.skipped_steps,
            "step_seconds": self.step_seconds,
            "tracked_steps": self.tracked_steps,
            "parameters_sha256": self.parameters_sha256,
            "memory": {
                "predicted": self.memory_predicted,
                "measured": self.memory_measured,
                "peak": self.peak,
            },
            "traffic": {"predicted": self.traffic_predicted, "measured": self.traffic_measured},
            "traffic_is_stated": self.traffic_is_stated,
            "text": self.text,
            "config": json.loads(self.config.model_dump_json()),
            "machine": {
                "torch": torch.__version__,
                "python": platform.python_version(),
                "processor": platform.machine(),
                "cores": os.cpu_count(),
            },
        }


def train(config: TrainConfig, corpus: Corpus | None = None) -> Report:
    """Train as `config` says and return the report. Under torchrun every process calls this, and every one gets it.

    Raises InputError for text that cannot be used, RankError if a rank fails.
    """
    corpus = corpus or load_corpus(config.data_mode, seq_len=config.seq_len)
    with follow(config.max_steps, f"ZeRO-{config.zero_stage}, {config.ranks} ranks") as progress:
        results = launch(
            train_rank,
            config,
            corpus,
            progress,
            ranks=config.ranks,
            collectives=config.collective_impl,
            timeout=config.timeout,
            device=config.device,
            link=config.link,
        )
    record = next(result for result in results if result is not None)
    return make_report(config, record, corpus)


def make_report(config: TrainConfig, record: dict[str, Any], corpus: Corpus) -> Report:
    of_ranks, traffic = record["ranks"], record["predicted"]["traffic"]
    return Report(
        config=config,
        ranks=len(of_ranks),
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
        loss_scale=record["loss_scale"],
        skipped_steps=record["skipped_steps"],
        tracked_steps=record["tracked_steps"],
        traffic_is_stated=record["traffic_is_stated"],
    )


def by_rank(records: list[dict[str, int]]) -> ByRank:
    """{kind: [bytes of rank 0, of rank 1, ...]} from one record a rank."""
    kinds = list(dict.fromkeys(kind for record in records for kind in record))
    return {kind: [record.get(kind, 0) for record in records] for kind in kinds}


def json_of(report: Report) -> str:
    """The text of a profile."""
    return json.dumps(report.as_json(), indent=1) + "\n"


def most_json_bytes(config: TrainConfig) -> int:
    """More than the profile of such a run will take: some numbers a step, and some a rank for each kind of memory."""
    return 2**14 + 128 * config.max_steps + 2**11 * config.ranks


def write_json(report: Report, path: Path) -> None:
    """Write the report whole or not at all."""
    write_whole(path, json_of(report))
