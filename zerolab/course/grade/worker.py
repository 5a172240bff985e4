"""The process in which a learner's answer runs. It writes down what it saw, and judges nothing. A job is a notebook's
function, packed with its exercise and its cases, or the cells of a file, which run in a cage."""

from __future__ import annotations

import gc
import json
import linecache
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import Any

from zerolab.course.exercises import exercises_of
from zerolab.course.grade.cage import fence, limit, version
from zerolab.course.grade.forked import close_all_but, fork_server
from zerolab.course.grade.tamper import fingerprint, tampered
from zerolab.course.judge.bounds import watch_process
from zerolab.course.judge.case import MOST_BYTES, Case, Observation, Trouble, observation_to_json
from zerolab.course.judge.exercise import Exercise
from zerolab.course.judge.observe import observe_all, trouble_of, where
from zerolab.ranks.failure import traceback_text
from zerolab.ranks.forkserver import gather_descendants
from zerolab.ranks.pickling import loads

SEEN = "seen.json"
"""The file that a worker writes, in its folder: what it saw, or one trouble."""


@dataclass(frozen=True)
class Cells:
    """Cells of a lesson as (name, source, whether it is an answer): all are loaded, and the last is run on cases."""

    lesson: str
    cells: Sequence[tuple[str, str, bool]]
    seed: int
    memory_mb: int


Job = bytes | Cells


def main(job: Job, begun: Connection, folder: str, environment: Mapping[str, str]) -> None:
    """Do a job in a process that was forked for it; `begun` is closed when the answer begins."""
    settle(folder, environment, begun.fileno())
    # What is there is no answer's garbage: it is not searched when memory is judged.
    gc.freeze()
    if isinstance(job, bytes):
        fork_server()
        watch_process(strict=True)
        begun.close()
        fn, (exercise, cases), _ = loads(job)
        seen: list[Observation] | Trouble = run(exercise, {exercise.name: fn}, None, cases)
    else:
        if not fence(Path(folder)) and version() > 0:
            os._exit(1)
        limit(job.memory_mb)
        # Only now: the ranks of this process shall be fenced as it is, and start as quickly.
        fork_server()
        before = fingerprint()
        watch_process(strict=True)
        begun.close()
        seen = run_cells(job)
        if changed := tampered(before):
            said = f"it replaces {', '.join(changed[:3])}, which the check relies on: leave what is not yours as it is"
            seen = Trouble("Tampered", said)
    Path(folder, SEEN).write_text(written(seen))
    # A thread that an answer left behind may not keep this process alive.
    os._exit(0)


def settle(folder: str, environment: Mapping[str, str], keep: int) -> None:
    """Leave the server that forked this process behind: its session, its environment, its folder, and its pipes, into
    which a stranger could write."""
    os.setsid()
    gather_descendants()
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    # Two modules remember a folder for temporary files that is not for this process.
    tempfile.tempdir = None
    multiprocessing.current_process()._config.pop("tempdir", None)  # type: ignore[attr-defined]
    sys.dont_write_bytecode = True
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)
    close_all_but(0, 1, 2, keep)
    # Python's tracker of named memory is told of through one of those pipes; this process gets one of its own.
    resource_tracker._resource_tracker.__init__()  # type: ignore[misc]


def run_cells(job: Cells) -> list[Observation]:
    names: dict[str, Any] = {"__name__": "answers"}
    trouble = None
    for name, source, answer in job.cells:
        trouble = load(name, source, names, answer)
    exercise = exercises_of(job.lesson)[name]
    # Where an answer did not load, nothing more is done in its process than to say so.
    return run(exercise, names, trouble, [] if trouble else exercise.drawn(job.seed))


def load(name: str, source: str, names: dict[str, Any], answer: bool = True) -> Trouble | None:
    """Execute a cell in the namespace that all cells share; one that is no `answer` is the course's own."""
    file = f"<answer {name}>" if answer else f"<set-up {name}>"
    # So that tracebacks quote the line.
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    # A dataclass looks up the module that it is defined in.
    sys.modules.setdefault(names["__name__"], ModuleType(names["__name__"]))
    try:
        exec(compile(source, file, "exec"), names)
    except BaseException as error:  # also what is no error: it is this cell's end, not this process's
        trouble = trouble_of(error)
        return Trouble(trouble.kind, trouble.message, where(traceback_text(error)))
    return None


def run(exercise: Exercise, names: dict[str, Any], trouble: Trouble | None, cases: Sequence[Case]) -> list[Observation]:
    """What came of the cases, up to the first trouble. Nothing is judged here, where answers run."""
    if trouble:
        return [Observation(trouble=trouble)]
    fn = names.get(exercise.name)
    if not callable(fn):
        return [Observation(trouble=Trouble("Missing", f"the cell defines no function named {exercise.name}"))]
    return list(observe_all(exercise, fn, cases))


def written(seen: list[Observation] | Trouble) -> str:
    """What was seen, as JSON, or, where that is too much to be read, that it is."""
    text = json.dumps(vars(seen) if isinstance(seen, Trouble) else [observation_to_json(one) for one in seen])
    if len(text) <= MOST_BYTES:
        return text
    said = f"what it returns, prints and sends takes {len(text):,} characters: return what the text asks for"
    return written([Observation(trouble=Trouble("Refused", said))])
