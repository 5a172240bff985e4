"""Runs answers in a process of their own (`worker`), and reads what it wrote down. The process is forked from the
server that has torch imported, so that a class of hundreds waits for their answers only."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from collections.abc import Callable, Sequence
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from typing import Any

from zerolab.course.grade import cage, worker
from zerolab.course.judge.case import MOST_BYTES, Case, Observation, Trouble, observation_from_json
from zerolab.course.judge.exercise import Exercise
from zerolab.course.judge.observe import CASE_SECONDS
from zerolab.errors import InputError, RankError
from zerolab.ranks.folders import temporary_folder
from zerolab.ranks.forkserver import process_table, start_process
from zerolab.ranks.pickling import pack_function
from zerolab.system import has

START_SECONDS = 120.0
"""A cold import of torch on a slow disk."""
FORGED = Trouble("Tampered", "it writes where the check reports: leave files and pipes alone")


def observe_function(exercise: Exercise, fn: Callable[..., Any], cases: Sequence[Case]) -> list[Observation]:
    try:
        packed = pack_function(fn, (exercise, list(cases)), {})
    except InputError as error:
        return [Observation(trouble=Trouble("InputError", str(error)))]
    seen = observe_apart(packed, 4 * CASE_SECONDS * len(cases))
    return [Observation(trouble=seen)] if isinstance(seen, Trouble) else seen


def observe_apart(job: worker.Job, seconds: float) -> list[Observation] | Trouble:
    """What was seen in a process that did a job; or why it did not come to its end in time, or is spoilt."""
    with temporary_folder("grade") as folder:
        begun, theirs = multiprocessing.Pipe(duplex=False)
        with begun:
            with theirs:
                given = (job, theirs, str(folder), surroundings(str(folder)))
                try:
                    process = start_process(worker.main, given, "zerolab-grade")
                except (EOFError, OSError) as error:
                    said = f"the process that answers run in could not be started ({error})"
                    raise RankError(f"{said}; see whether memory, open files and processes are limited") from error
            in_time, code = False, None
            try:
                # It ends where the answer begins.
                connection.wait([begun, process.sentinel], START_SECONDS)
                in_time = bool(connection.wait([process.sentinel], seconds))
            finally:
                code = end(process, str(folder))
        if not in_time:
            return Trouble("TimeOut", f"the process that ran your code did not finish within {seconds:g} s")
        if code and code < 0:
            # Some signals have no name.
            name = next((known.name for known in signal.Signals if known == -code), f"SIG{-code}")
            return Trouble(name, f"the process that ran your code was ended by {name}")
        written = folder / worker.SEEN
        # An answer can have put anything there.
        if code or not written.is_file() or written.is_symlink():
            return Trouble("died", "the process ended")
        return understood(written.read_bytes()) if written.stat().st_size <= MOST_BYTES else FORGED


def understood(written: bytes) -> list[Observation] | Trouble:
    """What a worker wrote down, or FORGED where a worker does not write such a thing."""
    try:
        found = json.loads(written)
        return Trouble(**found) if isinstance(found, dict) else [observation_from_json(one) for one in found]
    except Exception:  # an answer can write anything there
        return FORGED


def surroundings(folder: str) -> dict[str, str]:
    """Environment of a worker: answers are judged on the CPU, whatever the machine has, and leave nothing behind."""
    own = {"CUDA_VISIBLE_DEVICES": "", **({"TMPDIR": folder} if has("proc") else {})}
    return {**os.environ, **own}


def end(process: BaseProcess, folder: str) -> int | None:
    """End a process and all that it started, wherever that is; its status, if it has ended by itself."""
    with process_table:
        code = process.exitcode
    cage.end_all(process.pid if code is None else None, folder)
    with process_table:
        process.kill()
    connection.wait([process.sentinel])
    with process_table:
        process.join()
        process.close()
    return code
