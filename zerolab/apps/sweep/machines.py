"""The machines that a sweep's predictions are of. What was measured of this one is kept in the folder: a sweep that
goes on predicts by what it began with, unless the machine or torch is another."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from zerolab import __version__
from zerolab.apps.cost import Machine
from zerolab.apps.cost.calibration import Seconds, machine_from, measure_ranks
from zerolab.apps.cost.machine import constant_rate
from zerolab.apps.sweep.cases import SweepCase
from zerolab.apps.sweep.rows import write_file
from zerolab.apps.sweep.shaping import carry_on_wires
from zerolab.errors import InputError
from zerolab.run import RunSpec

MACHINE = "calibration.json"


class Machines:
    """The devices of a sweep's cases."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / MACHINE
        self.here = this_machine()
        self.seconds: dict[str, Seconds] = {}
        try:
            read = json.loads(self.path.read_text(encoding="utf-8"))
            machine, seconds = read["machine"], dict(read["seconds"])
            self.seconds = seconds if machine == self.here else {}
        except FileNotFoundError:
            pass
        except (OSError, ValueError, TypeError, KeyError):
            raise InputError(f"{self.path} holds no machine of a sweep; take it away, or name another folder") from None

    def of(self, case: SweepCase) -> Machine | None:
        """What computes in a case: on a virtual clock what its settings say, else this CPU, measured now if it was not
        (some seconds). None for GPUs, which nobody measures."""
        config = case.config
        if config.world != "processes":
            return virtual_device(config)
        if torch.cuda.is_available() and config.device != "cpu":
            return None
        # On a link, simulated or shaped, ranks send by rings.
        collectives = "ring" if config.link is not None or case.hosts else config.collective_impl
        places = config.places
        disk = places.folder if places.on_disk else None
        name = f"{config.ranks} ranks, {collectives}" + ("" if disk is None else f", {disk}")
        seconds = self._kept(name, lambda: measure_ranks(config.ranks, collectives, disk))
        if case.hosts:
            name = f"{name}, {case.hosts} hosts"
            seconds |= self._kept(name, lambda: carry_on_wires(case.hosts, config.ranks))
        return machine_from(seconds, config.ranks)

    def _kept(self, name: str, measure: Callable[[], Seconds]) -> Seconds:
        if name not in self.seconds:
            self.seconds[name] = measure()
            write_file(self.path, json.dumps({"machine": self.here, "seconds": self.seconds}, indent=1) + "\n")
        return dict(self.seconds[name])


def this_machine() -> dict[str, Any]:
    """What figures of time depend on besides the settings."""
    return {
        "zerolab": __version__,
        "torch": str(torch.__version__),
        "processor": platform.machine(),
        "cores": os.cpu_count(),
    }


def virtual_device(config: RunSpec) -> Machine:
    """A device whose speeds are settings."""
    return Machine(
        config.world, {("matmul", 4): constant_rate(config.gflop_per_s * 1e9)}, constant_rate(config.gbyte_per_s * 1e9)
    )
