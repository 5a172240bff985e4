"""The process in which a learner's answers run. It is told what to run when it starts and says, a JSON line each, what
it began and what it saw; it judges nothing. A job has a notebook's function, or the steps of a file, which run in a
cage.
"""

from __future__ import annotations

import json
import linecache
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import Any

from zerolab.course.exercises import exercises_of
from zerolab.course.grade.cage import fence, limit
from zerolab.course.grade.forked import close_all_but, fork_server
from zerolab.course.grade.tamper import fingerprint, tampered
from zerolab.course.judge.bounds import watch_process
from zerolab.course.judge.case import MOST_BYTES, Case, Observation, Trouble, observation_to_json
from zerolab.course.judge.exercise import Exercise
from zerolab.course.judge.observe import observe_all, trouble_of, where
from zerolab.ranks.failure import traceback_text
from zerolab.ranks.forkserver import gather_descendants
from zerolab.ranks.pickling import loads


def main(job: Mapping[str, Any], reports: Connection, folder: str, environment: Mapping[str, str]) -> None:
    """Do a job in a process that was forked for it."""
    # An optimizer's first use imports it, and it puts wrappers around functions of torch: that must be done before the
    # fingerprint is taken, or an honest answer would seem to replace them. The server that forked this process has it;
    # the command that started that never needs it, and would wait for it.
    import torch._dynamo  # noqa: F401

    settle(folder, environment, reports.fileno())
    if "function" in job:
        fork_server()
        watch_process(strict=True)
        fn, (exercise, cases), _ = loads(job["function"])
        seen = run(exercise, {exercise.name: fn}, None, cases)
        _say(reports, {"ended": exercise.name, "seen": bounded([observation_to_json(item) for item in seen])})
    else:
        grade(job, reports, folder)
    _say(reports, {"done": True})
    # A thread that an answer left behind may not keep this process alive.
    os._exit(0)


def grade(job: Mapping[str, Any], reports: Connection, folder: str) -> None:
    """Run the steps of a job behind a fence and within limits."""
    exercises = exercises_of(job["lesson"])
    fence(Path(folder))
    limit(job["memory_mb"])
    # Before anything: the ranks of this process shall be fenced as it is, and start as quickly.
    fork_server()
    before = fingerprint()
    watch_process(strict=True)
    names: dict[str, Any] = {"__name__": "answers"}
    for step in job["steps"]:
        name, source = step["name"], step["source"]
        _say(reports, {"began": name})
        trouble = load(name, source, names, step["answer"])
        if name in exercises and step["graded"]:
            # Where an answer did not load, nothing more is done in its process than to say so.
            cases = [] if trouble else exercises[name].drawn(job["seed"])
            seen = run(exercises[name], names, trouble, cases)
            if changed := tampered(before):
                listed = ", ".join(changed[:3])
                said = f"it replaces {listed}, which the check relies on: leave what is not yours as it is"
                seen = [Observation(trouble=Trouble("Tampered", said))]
            _say(reports, {"ended": name, "seen": bounded([observation_to_json(item) for item in seen])})


def settle(folder: str, environment: Mapping[str, str], keep: int) -> None:
    """Leave the server that forked this process behind: its session, its environment, its folder, its streams, and all
    of its pipes, into which a stranger could write. One descriptor is kept."""
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


def bounded(seen: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What was seen, or, where that is too much to be read, that it is."""
    size = len(json.dumps(seen))
    if size <= MOST_BYTES:
        return seen
    said = f"what it returns, prints and sends takes {size:,} characters to write down: return what the text asks for"
    return [observation_to_json(Observation(trouble=Trouble("Refused", said)))]


def _say(reports: Connection, line: dict[str, Any]) -> None:
    reports.send_bytes(json.dumps(line).encode())
