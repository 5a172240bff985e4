"""A launch in lockstep: the ranks of `scheduler.py`, each with what a process of its own would give it.

A rank gets its own copy of the function and its arguments, its own random numbers, printed text and threads, so that a
function computes as in processes. What belongs to the whole process (module globals, the current directory) is shared.
"""

from __future__ import annotations

import io
import math
import os
import pickle
import sys
import threading
import time
from contextlib import ExitStack, redirect_stdout, suppress
from functools import partial
from typing import Any
from unittest.mock import patch

import torch

from zerolab.errors import InputError, RankError
from zerolab.ranks.child import run
from zerolab.ranks.failure import RankFailure, make_failure, make_outcome
from zerolab.ranks.job import MAX_RANKS, Job, Outcome, Results
from zerolab.ranks.lockstep.scheduler import Scheduler, Stopped, Task, locate
from zerolab.ranks.lockstep.transport import LockstepTransport, LockstepWorld
from zerolab.ranks.printing import Printer
from zerolab.ranks.seeds import RandomTurns

# Random numbers, standard output and torch's threads belong to the process: one lockstep world at a time.
_one_world = threading.Lock()
_active: Scheduler | None = None


def spend(seconds: float) -> None:
    """Stand for `seconds` of computing: in lockstep the rank's virtual clock moves on, elsewhere the rank sleeps."""
    if not 0 <= seconds < math.inf:
        raise InputError(f"spend({seconds}): time goes forward; give a number of seconds that is not negative")
    if _active is not None:
        _active.running().clock += seconds
    else:
        time.sleep(seconds)


class Launch:
    """One launch of ranks that take turns: of all of a job's, or of the first so many (`virtual.py`)."""

    most = MAX_RANKS

    def __init__(self, job: Job, function: bytes) -> None:
        self.job = job
        self.function = function
        self.mains = [Task(rank, 0) for rank in range(min(job.ranks, self.most))]
        self.results: dict[int, Any] = {}
        self.output = _RankOutput(len(self.mains))
        self.printer = Printer(job, self.output.texts)
        self.random = RandomTurns()
        self.world = LockstepWorld(self.random.switch, job.ranks, job.link)

    def run(self) -> Results:
        """Run while no other one of its kind runs in this process. Raises a RankError."""
        global _active
        if _active is not None and threading.current_thread() in {task.thread for task in _active.tasks}:
            raise InputError(
                'a rank of a lockstep or virtual world cannot start another of the two; use world="processes" in one'
            )
        stuck: list[int] = []
        with _one_world, self.printer.showing(), ExitStack() as stack:
            # The caller's own are the same afterwards.
            stack.callback(torch.set_num_threads, torch.get_num_threads())
            stack.callback(self.random.switch, None)
            stack.enter_context(patch.dict(os.environ, self.job.environment))
            stack.enter_context(redirect_stdout(self.output))  # type: ignore[type-var]
            _active = self.world
            try:
                self._watch()
            finally:
                stuck = self.world.stop()
                _active = None
            if self.world.error is not None:
                if stuck:
                    ranks = ", ".join(map(str, stuck))
                    self.world.error.add_note(f"rank {ranks} could not be stopped; its thread goes on")
                raise self.world.error
        seconds = max(task.clock for task in self.mains)
        values = [pickle.loads(self.results[task.rank]) for task in self.mains]
        return Results(self.job, values, self.printer.texts, self.world.events, seconds)

    def _watch(self) -> None:
        for task in self.mains:
            self.world.add(task, partial(self._begin, task))
        deadline = time.monotonic() + self.job.timeout
        self.world.hand_over()
        # Again and again, so that an interrupt of another thread is heard.
        while not self.world.ended.wait(0.1):
            if time.monotonic() >= deadline:
                self.world.fail(self._overdue())
            self.printer.follow()

    def _begin(self, task: Task) -> None:
        torch.set_num_threads(self.job.threads)
        # Hooks of a backward pass then run in this thread, which holds the baton.
        torch.autograd.set_multithreading_enabled(False)
        try:
            self.results[task.rank] = self.live(task.rank).result
        except Stopped:
            raise
        except BaseException as error:
            # Also if no more can be said of it: a launch that is not told would take its end for a good one.
            failure: RankError = RankFailure(f"rank {task.rank} raised {type(error).__name__}", task.rank)
            try:
                failure = make_failure(task.rank, make_outcome(error))
            finally:
                self.world.fail(failure)

    def live(self, rank: int) -> Outcome:
        """Be a rank, from begin to end."""
        return run(self.job, LockstepTransport(self.world, rank), self.function)

    def _overdue(self) -> RankError:
        busy = self.world.current
        lines = [f"rank {it.rank} {locate(it)}" if it is busy and not it.done else str(it) for it in self.mains]
        return RankError(f"the ranks did not finish within {self.job.timeout:g} s: {'; '.join(lines)}")


class _RankOutput(io.TextIOBase):
    """Standard output while ranks run: theirs is kept, what other threads write passes."""

    def __init__(self, ranks: int) -> None:
        self._texts: list[list[str]] = [[] for _ in range(ranks)]
        self._passed_to: Any = sys.stdout

    def write(self, text: str) -> int:
        name = threading.current_thread().name
        if name.startswith("zerolab-lockstep-"):
            rank = int(name.rpartition("-")[2].partition(".")[0])
            self._texts[rank].append(text)
            return len(text)
        return int(self._passed_to.write(text))

    def flush(self) -> None:
        # Also called when this object is thrown away, long after the other was closed.
        with suppress(ValueError):
            self._passed_to.flush()

    def texts(self) -> list[str]:
        return ["".join(text) for text in self._texts]
