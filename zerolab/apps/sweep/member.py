"""One rank on shaped wires, in the world that its environment describes: trains, or measures what the wires cost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from zerolab.apps.cost.calibration import carried
from zerolab.apps.interop.huggingface.start import weights_of
from zerolab.apps.sweep.measure import Figures, measured, write_trace
from zerolab.ranks import launch
from zerolab.run import RunSpec
from zerolab.train import train
from zerolab.train.model import load_data


def carry_member() -> dict[str, list[float]]:
    """What collectives take of a rank's processor here."""
    values = launch(carried, ranks=None, collectives="ring", device="cpu", prints="quiet")
    # A process that joins a world has its own rank's value.
    return next(value for value in values if value is not None)


def train_member(settings: dict[str, Any], trace: Path | None = None) -> Figures:
    """The figures of the run with these settings, the same on each rank; the trace of all goes to `trace`."""
    config = RunSpec(**settings, trace=Path("trace.json"))
    corpus = load_data(config)
    report = train(config, corpus, weights=weights_of(config))
    write_trace(report, trace)
    return measured(report, corpus)
