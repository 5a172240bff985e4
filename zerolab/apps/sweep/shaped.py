"""Cases on wires that the kernel shapes: the side of a sweep. `hosts.py` is the other."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from zerolab.apps.sweep.cases import SweepCase
from zerolab.apps.sweep.measure import Figures
from zerolab.collectives import Link
from zerolab.errors import InputError, RankError
from zerolab.ranks.folders import temporary_folder
from zerolab.system import has

WIRE = Link(1.0, 0.0)
"""That on which it is measured what a processor has to do for messages on shaped wires."""
LINK_SETTINGS = ("gbit_per_s", "latency_us")


class ShapedHosts:
    """Runs cases on hosts of their own; its process is started when the first comes, and ends with this object, or
    with this process, however that ends."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> ShapedHosts:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is None:
            return
        assert self._process.stdin is not None and self._process.stdout is not None
        # The end of its input is its end, and that of all that it has started.
        with suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def check(self, link: Link | None) -> None:
        """Raise an InputError that says why, if hosts with such a link cannot be made here."""
        try:
            self._ask(2, 2, link, None)
        except InputError as error:
            raise InputError(f"no wire can be shaped on this machine: {error}; or take wire simulated") from None

    def carried(self, hosts: int, ranks: int) -> dict[str, list[float]]:
        """Seconds of a processor that each rank's collectives take on such wires."""
        return dict(self._ask(hosts, ranks, WIRE, None, carries=True))

    def run(self, case: SweepCase, trace: Path | None = None) -> Figures:
        """The figures of a case; its trace goes to `trace`. Raises the InputError or RankError of the rank that failed
        first."""
        settings = {name: value for name, value in case.config.model_dump(mode="json", exclude_defaults=True).items()}
        settings = {name: value for name, value in settings.items() if name not in LINK_SETTINGS}
        # As on a simulated link, where "auto" is the ring: what shared memory moves goes over no wire.
        settings = {"device": "cpu", "collective_impl": "ring", **settings}
        return self._ask(case.hosts, case.config.ranks, case.config.link, settings, trace)

    def _ask(
        self,
        hosts: int,
        ranks: int,
        link: Link | None,
        settings: dict[str, Any] | None,
        trace: Path | None = None,
        carries: bool = False,
    ) -> Any:
        process = self._started()
        assert process.stdin is not None
        with temporary_folder("launch") as folder:
            wire = None if link is None else [link.gbit_per_s, link.latency_us]
            job = {"hosts": hosts, "ranks": ranks, "link": wire, "settings": settings, "folder": str(folder)}
            job["carries"] = carries
            job["trace"] = None if trace is None else str(trace.absolute())
            process.stdin.write(json.dumps(job) + "\n")
            process.stdin.flush()
            answer = self._heard(process)
        if "error" in answer:
            raise (InputError if answer.get("kind") == InputError.__name__ else RankError)(answer["error"])
        return answer["value"]

    def _started(self) -> subprocess.Popen[str]:
        if self._process is None:
            if not has("namespaces"):
                raise InputError("this system has no network namespaces, which Linux has")
            command = [sys.executable, "-m", "zerolab.apps.sweep.hosts"]
            pipe = subprocess.PIPE
            # Ctrl-C is for this process: that one ends by the end of its input.
            self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, start_new_session=True)
            if "error" in (said := self._heard(self._process)):
                raise InputError(said["error"])
        return self._process

    def _heard(self, process: subprocess.Popen[str]) -> dict[str, Any]:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise RankError(f"the process that makes hosts ended with status {process.wait()}")
        return dict(json.loads(line))
