"""Runs answers in a process of their own: those of a notebook that is checked, or, in a cage, those that are graded."""

from __future__ import annotations

import json
import multiprocessing
import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import connection
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from zerolab.course.grade import cage, worker
from zerolab.course.judge.case import MOST_BYTES, Case, Observation, Trouble, observation_from_json
from zerolab.course.judge.exercise import Exercise
from zerolab.course.judge.observe import CASE_SECONDS
from zerolab.errors import InputError
from zerolab.ranks.folders import temporary_folder
from zerolab.ranks.forkserver import process_table, start_process
from zerolab.ranks.pickling import pack_function
from zerolab.system import has

START_SECONDS = 120.0
"""A cold import of torch on a slow disk."""
MOST_LINE = 2 * MOST_BYTES


def observe_function(exercise: Exercise, fn: Callable[..., Any], cases: Sequence[Case]) -> list[Observation]:
    """What came of a notebook's function in the cases, up to the first trouble."""
    try:
        packed = pack_function(fn, (exercise, list(cases)), {})
    except InputError as error:
        return [Observation(trouble=Trouble("InputError", str(error)))]
    seen: list[Observation] = []
    for line in Runner({"function": packed}, 4 * CASE_SECONDS * len(cases)):
        seen = line.get("seen", seen)
        if "trouble" in line:
            seen = [Observation(trouble=Trouble(**line["trouble"]))]
    return seen


class Runner:
    """A process that runs what a job says (`worker`), so many seconds each; iterating gives its lines, and a last one
    with "trouble" if it had to be ended. It is forked from the server that has torch imported, so that a class of
    hundreds waits for their answers only."""

    def __init__(self, job: dict[str, Any], seconds: float) -> None:
        self._job, self._seconds = job, seconds

    def __iter__(self) -> Iterator[dict[str, Any]]:
        with temporary_folder("grade") as path:
            folder = str(path)
            reports, theirs = multiprocessing.Pipe(duplex=False)
            process = start_process(worker.main, (self._job, theirs, folder, surroundings(folder)), "zerolab-grade")
            theirs.close()
            try:
                yield from self._lines(process, reports)
            finally:
                end(process, folder)

    def _lines(self, process: BaseProcess, reports: Connection) -> Iterator[dict[str, Any]]:
        lines: queue.Queue[bytes] = queue.Queue()
        # A step has two lines, and one ends them all.
        most = 2 * len(self._job.get("steps", [0])) + 1
        threading.Thread(target=_read, args=(reports, lines, most), daemon=True).start()
        deadline = time.monotonic() + START_SECONDS
        for _ in range(most):
            try:
                raw = lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                said = f"the ranks did not finish within {self._seconds:g} s and would not stop"
                yield {"trouble": {"kind": "TimeOut", "message": said}}
                return
            if not raw:
                yield {"trouble": how_it_ended(process)}
                return
            line = understood(raw)
            if "done" in line:
                return
            yield line
            if "trouble" in line:
                return
            deadline = time.monotonic() + self._seconds
        yield FORGED


def how_it_ended(process: BaseProcess) -> dict[str, str]:
    """The trouble of a process that ended without a word."""
    connection.wait([process.sentinel], 1.0)
    with process_table:
        code = process.exitcode
    if code is not None and code < 0:
        name = signal.Signals(-code).name
        return {"kind": name, "message": f"the process that ran your code was ended by {name}"}
    return {"kind": "died", "message": "the process ended"}


FORGED = {"trouble": {"kind": "Tampered", "message": "it writes where the check reports: leave files and pipes alone"}}


def understood(raw: bytes) -> dict[str, Any]:
    """A worker's line, or FORGED where a worker does not write such a line."""
    try:
        line = json.loads(raw)
        if "ended" in line:
            return {"ended": str(line["ended"]), "seen": [observation_from_json(item) for item in line["seen"]]}
        return {"began": str(line["began"])} if "began" in line else {"done": line["done"]}
    except Exception:  # an answer can write anything there
        return FORGED


def _read(reports: Connection, lines: queue.Queue[bytes], most: int) -> None:
    """Read a stranger's lines: so many at most, and none longer than a worker's can be."""
    with reports:
        for _ in range(most):
            try:
                lines.put(reports.recv_bytes(MOST_LINE))
            except EOFError:
                break
            except (OSError, ValueError, MemoryError):
                lines.put(b"what no worker writes")
                break
    lines.put(b"")


def surroundings(folder: str) -> dict[str, str]:
    """Environment of a worker: answers are judged on the CPU, whatever the machine has, and leave nothing behind."""
    own = {"CUDA_VISIBLE_DEVICES": "", **({"TMPDIR": folder} if has("proc") else {})}
    return {**os.environ, **own}


def end(process: BaseProcess, folder: str) -> None:
    """End a process and all that it started, whatever these have done to get away."""
    assert process.pid is not None
    cage.end_all(process.pid, folder)
    with process_table:
        process.kill()
    # Its pipe is closed where it is read: a process that got away may hold the other end open.
    connection.wait([process.sentinel])
    with process_table:
        process.join()
        process.close()
