"""One rank of a case on shaped wires: trains in the world that its environment describes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from zerolab.sweep.measure import Figures, measured, write_trace
from zerolab.train import make_config, train
from zerolab.train.model import load_data


def train_member(settings: dict[str, Any], trace: Path | None = None) -> Figures:
    """The figures of the run with these settings, the same on each rank; the trace of all goes to `trace`."""
    config = make_config(**settings, trace=Path("trace.json"))
    corpus = load_data(config, config.seq_len)
    report = train(config, corpus)
    write_trace(report, trace)
    return measured(report, corpus)
