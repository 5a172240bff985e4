"""Runs a submission in a process of its own, with limits, and judges here what it did there."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import Any

from zerolab.grading.case import Observation, Trouble, observation_from_json
from zerolab.grading.exercise import Exercise, Finding, judge
from zerolab.grading.lessons import exercises_of
from zerolab.grading.needs import mend_first, mentions, uses
from zerolab.grading.progress import Watch
from zerolab.grading.submission import Step, Submission

START_SECONDS = 120.0
"""A cold import of torch on a slow disk."""
WORKER = "import zerolab.preload; from zerolab.grading.worker import main; main()"
"""The imports that take longest come first, by the way that is quickest."""


@dataclass(frozen=True)
class Limits:
    """What an exercise may take: seconds of real time, and mebibytes above what an idle process takes."""

    seconds: float = 60.0
    memory_mb: int = 2048


@dataclass(frozen=True)
class Verdict:
    """What became of one exercise."""

    name: str
    points: float
    findings: tuple[Finding, ...]

    @property
    def passed(self) -> bool:
        return bool(self.findings) and all(finding.holds for finding in self.findings)

    @property
    def score(self) -> float:
        return self.points if self.passed else 0.0

    @property
    def hint(self) -> str:
        """What to mend first."""
        return next((finding.hint for finding in self.findings if finding.hint), "")


def grade(
    submission: Submission, seed: int, limits: Limits | None = None, watch: Watch = lambda name, done: None
) -> list[Verdict]:
    """A verdict for each exercise, in order. `watch` is told which one runs and how many are done."""
    exercises = exercises_of(submission.lesson)
    seen = observe_steps(submission, seed, limits or Limits(), watch)
    mentioned = mentions(step.source for step in submission.steps)
    verdicts: list[Verdict] = []
    for step in submission.steps:
        if step.graded:
            findings = judged(exercises[step.name], step, seen[step.name], seed)
            used = uses(step.name, mentioned)
            if causes := [earlier.name for earlier in verdicts if earlier.name in used and not earlier.passed]:
                findings = mend_first(findings, causes[0])
            verdicts.append(Verdict(step.name, step.points, tuple(findings)))
    return verdicts


def judged(exercise: Exercise, step: Step, seen: list[Observation], seed: int) -> list[Finding]:
    """The findings of one exercise; the cases are drawn again here, where no learner's code runs."""
    if step.refusal:
        seen = [Observation(trouble=Trouble("Shortcut", step.refusal))]
    return judge(exercise, exercise.cases(Random(seed)), seen)


def observe_steps(submission: Submission, seed: int, limits: Limits, watch: Watch) -> dict[str, list[Observation]]:
    """What each exercise was seen to do. A step that ends its process, or hangs, is left out of the next process, which
    goes on with the others."""
    seen: dict[str, list[Observation]] = {step.name: [] for step in submission.steps if step.graded}
    left_out = {step.name for step in submission.steps if step.refusal}
    done: set[str] = set()
    # Each process takes a step off the list, so that there are never more of them, whatever they say.
    for _ in submission.steps:
        if done | left_out >= seen.keys():
            break
        steps = [
            {"name": step.name, "source": step.source, "graded": step.graded and step.name not in done}
            for step in submission.steps
            if step.name not in left_out
        ]
        began, trouble = "", False
        for line in Worker(
            {"lesson": submission.lesson, "seed": seed, "memory_mb": limits.memory_mb, "steps": steps}, limits
        ):
            began = line.get("began", began)
            if "ended" in line and began in seen:
                seen[began] = line["seen"]
                done.add(began)
            trouble = "trouble" in line
            if trouble:
                left_out.add(began)
                if began in seen:
                    seen[began] = [Observation(trouble=Trouble(**line["trouble"]))]
                    done.add(began)
            if began in seen:
                watch(began, len(done | left_out & seen.keys()))
        if not (trouble and began):
            break
    return seen


class Worker:
    """A process that runs steps; iterating gives its lines, and a last one with "trouble" if it had to be ended."""

    def __init__(self, job: dict[str, Any], limits: Limits) -> None:
        self._job = job
        self._limits = limits

    def __iter__(self) -> Iterator[dict[str, Any]]:
        with tempfile.TemporaryDirectory(prefix="zerolab-grade-") as folder:
            process = subprocess.Popen(
                [sys.executable, "-P", "-c", WORKER],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                cwd=folder,
                # Answers are judged on the CPU, whatever the machine has.
                env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHONDONTWRITEBYTECODE": "1"},
                start_new_session=True,
            )
            try:
                yield from self._lines(process)
            finally:
                end(process)

    def _lines(self, process: subprocess.Popen[bytes]) -> Iterator[dict[str, Any]]:
        assert process.stdin is not None and process.stdout is not None
        with suppress(BrokenPipeError):
            process.stdin.write(json.dumps(self._job).encode())
            process.stdin.close()
        lines: queue.Queue[bytes] = queue.Queue()
        threading.Thread(target=_read_all, args=(process.stdout, lines), daemon=True).start()
        deadline = time.monotonic() + START_SECONDS
        # A step has two lines, and one ends them all.
        for _ in range(2 * len(self._job["steps"]) + 1):
            try:
                raw = lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                said = f"the ranks did not finish within {self._limits.seconds:g} s and would not stop"
                yield {"trouble": {"kind": "TimeOut", "message": said}}
                return
            if not raw:
                yield {"trouble": {"kind": "died", "message": "the process ended"}}
                return
            line = understood(raw)
            if "done" in line:
                return
            yield line
            if "trouble" in line:
                return
            deadline = time.monotonic() + self._limits.seconds
        yield FORGED


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


def _read_all(stream: Any, lines: queue.Queue[bytes]) -> None:
    with stream:
        for line in stream:
            lines.put(line)
    lines.put(b"")


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process and all that it started."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    # Its output is closed where it is read: a process that got away may hold it open.
    process.wait()
