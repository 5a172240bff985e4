"""How slow this machine is at present, and how long tests wait by that: a limit is for what hangs, not for what others
do on the same cores."""

from __future__ import annotations

import os
import subprocess
import time
from dataclasses import replace
from functools import cache
from importlib import import_module
from typing import Any

import pytest
import torch

QUIET_SECONDS = 0.1
"""What `piece_of_work` takes on a quiet machine of 2026 with two cores."""
MOST = 20.0
LEAST_NET = 20.0
"""Seconds. Who waits less for ranks or a process tests just that, and waits no longer."""


def piece_of_work() -> float:
    """Seconds of real time that a fixed piece of Python and torch takes: on a slow machine or a busy one, more."""
    begin = time.perf_counter()
    some = torch.ones(64, 64)
    for _ in range(3_000):
        some = torch.tanh(some @ some)
        sum(range(500))
    return time.perf_counter() - begin


@cache
def speed_at_start() -> float:
    """How many times slower than a quiet machine this one was when it was first asked."""
    return piece_of_work() / QUIET_SECONDS


def factor() -> float:
    """How many times as long as on a quiet machine something may take now: by the speed at the start, and by how many
    want each core in these minutes."""
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    load = os.getloadavg()[0] / cores if hasattr(os, "getloadavg") else 1.0
    return min(MOST, max(1.0, speed_at_start(), load))


def seconds(quiet: float) -> float:
    """The limit of what may take so many seconds on a quiet machine."""
    return quiet * factor()


def limit_of(item: pytest.Item) -> float:
    """Seconds that a test may take on a quiet machine: its own mark, or what holds for all; 0 is without end."""
    mark = item.get_closest_marker("timeout")
    if mark is not None:
        return float(mark.args[0] if mark.args else mark.kwargs["timeout"])
    asked = item.config.getoption("timeout", None)
    return float(item.config.getini("timeout") or 0) if asked is None else float(asked)


def stretched(quiet: float) -> float:
    return seconds(quiet) if quiet >= LEAST_NET else quiet


def stretch() -> None:
    """From now on what this process launches and starts has time by the machine's speed, too."""
    module: Any = import_module("zerolab.ranks.launch")
    job = module.Job

    def with_time(**settings: Any) -> Any:
        made = job(**settings)
        return replace(made, timeout=stretched(made.timeout))

    module.Job = with_time
    subprocess.Popen.communicate = communicate  # type: ignore[method-assign]


_communicate = subprocess.Popen.communicate


def communicate(process: Any, input: Any = None, timeout: float | None = None) -> Any:
    """What waits for a command in `subprocess.run`."""
    return _communicate(process, input, timeout if timeout is None else stretched(timeout))
