"""The process in which a learner's answers run. It is told what to run on standard input and says, a JSON line each,
what it began and what it saw; it judges nothing. Only `zerolab grade` starts it.
"""

from __future__ import annotations

import json
import linecache
import os
import sys
from random import Random
from types import ModuleType
from typing import Any, TextIO

# An optimizer's first use imports it, and it puts wrappers around functions of torch: that must be done before the
# fingerprint is taken, or an honest answer would seem to replace them.
import torch._dynamo  # noqa: F401

from zerolab.grading.case import Observation, Trouble, observation_to_json
from zerolab.grading.exercise import Exercise
from zerolab.grading.lessons import exercises_of
from zerolab.grading.observe import observe_all, trouble_of, where
from zerolab.grading.tamper import fingerprint, tampered
from zerolab.ranks.failure import traceback_text


def main() -> None:
    """Load cells and run exercises, in the order of the job on standard input."""
    job = json.loads(sys.stdin.read())
    reports = _keep_output_to_ourselves()
    exercises = exercises_of(job["lesson"])
    limit_memory(job["memory_mb"])
    before = fingerprint()
    names: dict[str, Any] = {"__name__": "answers"}
    for step in job["steps"]:
        name, source = step["name"], step["source"]
        _say(reports, {"began": name})
        trouble = load(name, source, names)
        if name in exercises and step["graded"]:
            seen = run(exercises[name], names, trouble, job["seed"])
            if changed := tampered(before):
                listed = ", ".join(changed[:3])
                said = f"it replaces {listed}, which the check relies on: leave what is not yours as it is"
                seen = [Observation(trouble=Trouble("Tampered", said))]
            _say(reports, {"ended": name, "seen": [observation_to_json(item) for item in seen]})
    _say(reports, {"done": True})
    # A thread that an answer left behind may not keep this process alive.
    os._exit(0)


def load(name: str, source: str, names: dict[str, Any]) -> Trouble | None:
    """Execute a cell in the namespace that all cells share."""
    file = f"<answer {name}>"
    # So that tracebacks quote the line.
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    # A dataclass looks up the module that it is defined in.
    sys.modules.setdefault(names["__name__"], ModuleType(names["__name__"]))
    try:
        exec(compile(source, file, "exec"), names)
    except (Exception, SystemExit) as error:
        trouble = trouble_of(error)
        return Trouble(trouble.kind, trouble.message, where(traceback_text(error)))
    return None


def run(exercise: Exercise, names: dict[str, Any], trouble: Trouble | None, seed: int) -> list[Observation]:
    """What came of the exercise's cases, up to the first trouble."""
    if trouble:
        return [Observation(trouble=trouble)]
    fn = names.get(exercise.name)
    if not callable(fn):
        return [Observation(trouble=Trouble("Missing", f"the cell defines no function named {exercise.name}"))]
    return observe_all(exercise, fn, exercise.cases(Random(seed)))


def limit_memory(megabytes: int) -> None:
    """Refuse this process, and each it starts, more than `megabytes` above what it takes now (Linux)."""
    if sys.platform != "linux":
        return
    import resource

    with open("/proc/self/statm") as statm:
        pages = int(statm.read().split()[0])
    limit = pages * os.sysconf("SC_PAGE_SIZE") + megabytes * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _keep_output_to_ourselves() -> TextIO:
    """Standard output becomes a channel of our own; what answers print goes nowhere."""
    reports = os.fdopen(os.dup(1), "w", encoding="utf-8")
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)
    return reports


def _say(reports: TextIO, line: dict[str, Any]) -> None:
    reports.write(json.dumps(line) + "\n")
    reports.flush()
