"""A sweep from begin to end: the cases that its folder does not have yet, and the machine of its predictions."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from zerolab import __version__
from zerolab.apps.cost import Machine
from zerolab.apps.cost.calibration import Seconds, machine_from, measure_ranks
from zerolab.apps.cost.machine import constant_rate
from zerolab.apps.sweep.cases import SweepCase
from zerolab.apps.sweep.measure import predict_times, run_traced
from zerolab.apps.sweep.rows import DONE, FAILED, TABLE, Row, hold, make_csv, read_rows, write_file, write_rows
from zerolab.apps.sweep.shaping import carry_on_wires, check_wires, run_shaped
from zerolab.errors import DiskError, InputError, ZerolabError
from zerolab.train.progress import Bar

MACHINE = "calibration.json"
HERE = {
    "zerolab": __version__,
    "torch": str(torch.__version__),
    "processor": platform.machine(),
    "cores": os.cpu_count(),
}
"""What figures of time depend on besides the settings."""
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

    def measure(name: str, how: Callable[[], Seconds]) -> Seconds:
        if name not in seconds:
            seconds[name] = how()
            write_file(folder / MACHINE, json.dumps({"machine": HERE, "seconds": seconds}, indent=1) + "\n")
        return dict(seconds[name])

    # On a link, simulated or shaped, ranks send by rings.
    collectives = "ring" if config.link is not None or case.hosts else config.collective_impl
    disk = places.folder if places.on_disk else None
    name = f"{config.ranks} ranks, {collectives}" + ("" if disk is None else f", {disk}")
    found = measure(name, partial(measure_ranks, config.ranks, collectives, disk))
    if case.hosts:
        found |= measure(f"{name}, {case.hosts} hosts", partial(carry_on_wires, case.hosts, config.ranks))
    return machine_from(found, config.ranks)
