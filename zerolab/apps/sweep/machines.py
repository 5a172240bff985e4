"""The machines that a sweep's predictions are of: each calibrated once and kept in the sweep's folder, `machine.json`.

A sweep that goes on predicts by the figures that it began with. On another machine, or with another torch, they are
taken anew.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from zerolab.apps.cost import Machine, calibrate
from zerolab.apps.cost.calibration import on_wires
from zerolab.apps.cost.machine import constant
from zerolab.apps.cost.record import machine_from_record, record_of
from zerolab.apps.sweep.cases import SweepCase
from zerolab.apps.sweep.measure import machine as this_machine
from zerolab.apps.sweep.rows import disk_errors
from zerolab.apps.sweep.shaped import ShapedHosts
from zerolab.errors import InputError
from zerolab.files import write_whole
from zerolab.ranks.folders import reason
from zerolab.run import RunSpec

MACHINE = "machine.json"


class Machines:
    """The devices of a sweep's cases, by how many ranks share one and by which collectives."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / MACHINE
        self.by_name: dict[str, Machine] = {}
        self.here = this_machine()
        read = read_json(self.path)
        if read.get("machine") == self.here:
            self.by_name = {name: machine_from_record(record) for name, record in read["calibrated"].items()}

    def of(self, case: SweepCase, hosts: ShapedHosts) -> Machine | None:
        """What computes in a case: in a world whose clock is virtual what its settings say, else the CPU as its ranks
        share it, measured now if it was not (some seconds); on shaped wires with what these make it do, measured on
        `hosts`. None for GPUs, which nobody measures."""
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
        machine = self._kept(name, lambda: calibrate(config.ranks, collectives, disk))
        if not case.hosts:
            return machine
        return self._kept(
            f"{name}, {case.hosts} hosts",
            lambda: on_wires(machine, hosts.carried(case.hosts, config.ranks), config.ranks),
        )

    def _kept(self, name: str, measure: Callable[[], Machine]) -> Machine:
        if name not in self.by_name:
            self.by_name[name] = measure()
            records = {name: record_of(found) for name, found in self.by_name.items()}
            with disk_errors(self.path):
                write_whole(self.path, json.dumps({"machine": self.here, "calibrated": records}, indent=1) + "\n")
        return self.by_name[name]


def virtual_device(config: RunSpec) -> Machine:
    """A device whose speeds are settings."""
    return Machine(
        config.world, {("matmul", 4): constant(config.gflop_per_s * 1e9)}, constant(config.gbyte_per_s * 1e9)
    )


def read_json(path: Path) -> dict[str, Any]:
    """What is in the file; nothing if it is not there. Raises an InputError for what is none of ours."""
    try:
        read = json.loads(path.read_text(encoding="utf-8"))
        read["machine"], read["calibrated"].items()
        return dict(read)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise InputError(f"{path} cannot be read ({reason(error)}); name another folder") from None
    except (ValueError, TypeError, KeyError, AttributeError):
        raise InputError(f"{path} holds no machine of a sweep; take it away, or name another folder") from None
