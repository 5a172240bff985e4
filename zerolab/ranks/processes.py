"""The parent's side of a launch in processes: start the ranks, watch them, end them, whatever happens."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import re
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from typing import Any

from zerolab.errors import RankError
from zerolab.ranks import board, child
from zerolab.ranks.board import RankNotes
from zerolab.ranks.failure import RankFailure, describe_death, make_failure
from zerolab.ranks.folders import farewells, temporary_folder
from zerolab.ranks.forkserver import process_table, start_process
from zerolab.ranks.job import DIED, Job, Outcome, Results
from zerolab.ranks.printing import Printer

POLL_SECONDS = 0.1
# How long after a failure to listen for other ranks' failures, of which it may be the consequence.
SETTLE_SECONDS = 0.25
# How long a rank may take to end by itself once it is told to.
LEAVE_SECONDS = 2.0
# How long a rank may take to say where it is.
ANSWER_SECONDS = 1.0


def run_processes(job: Job, function: bytes) -> Results:
    """Run a job, and leave no process, pipe or file of it. Raises a RankError if any rank failed."""
    with temporary_folder("launch") as directory:
        job = replace(job, directory=directory, working_directory=os.getcwd())
        job.file("function").write_bytes(function)
        runner = ProcessGroupRunner(job)
        try:
            with runner.printer.showing():
                runner.start()
                runner.watch()
        finally:
            runner.end()
    outcomes = [runner.outcomes[rank] for rank in range(job.ranks)]
    values = [pickle.loads(outcome.result) for outcome in outcomes]
    return Results(job, values, runner.printer.texts, [outcome.events for outcome in outcomes])


class ProcessGroupRunner:
    """The rank processes of one launch."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.printer = Printer(job, lambda: [read_text(job, "printed", rank) for rank in range(job.ranks)])
        self.outcomes: dict[int, Outcome] = {}
        self._board = board.Board(job.ranks, job.file("board"))
        pipes = [multiprocessing.Pipe() for _ in range(job.ranks)]
        self._pipes, self._given = [ours for ours, _ in pipes], [theirs for _, theirs in pipes]
        # No cycles: what a failed launch holds goes with its error.
        self._hang_up: Callable[[], object] = partial(list, map(connection.Connection.close, self._pipes))
        farewells.add(self._hang_up)
        self._processes: list[BaseProcess] = []

    def start(self) -> None:
        for rank, theirs in enumerate(self._given):
            try:
                self._processes.append(start_process(child.main, (self.job, rank, theirs), f"zerolab-rank-{rank}"))
            except (EOFError, OSError) as error:
                raise RankError(
                    f"the process that ranks are forked from does not serve ({error}); see whether memory, open files "
                    "and processes are limited, and raise the limit"
                ) from error
            # Only the rank holds this end now.
            theirs.close()

    def watch(self) -> None:
        """Return when every rank has returned; raise as soon as that cannot happen any more."""
        deadline = time.monotonic() + self.job.timeout
        earlier: Sequence[RankNotes] | None = None
        hangs = board.Hangs(self.job.collective_timeout)
        while len(self.outcomes) < self.job.ranks:
            quiet = not self._listen(min(POLL_SECONDS, max(0.0, deadline - time.monotonic())))
            self.printer.follow()
            if self._failed():
                self._settle()
                raise self._failure()
            if time.monotonic() >= deadline:
                raise board.report_overdue(self._board.read_all(), set(self.outcomes), self._frames(), self.job.timeout)
            if quiet:
                # Nothing came for a whole poll: see whether anything still can.
                now = self._board.read_all()
                stuck = board.find_failure(earlier, now, set(self.outcomes)) if earlier else None
                if stuck is not None and not self._listen(0.0):
                    raise stuck
                if hangs.find(now, time.monotonic()):
                    what = "a collective or a message did not end"
                    raise board.report_overdue(now, set(self.outcomes), self._frames(), hangs.seconds, what)
                earlier = now

    def end(self) -> None:
        """End every rank: ask, then kill, and at once where Ctrl-C comes meanwhile."""
        deadline = time.monotonic() + (0.2 if self._failed() else LEAVE_SECONDS)
        for pipe in (*self._given, *self._pipes):
            pipe.close()
        try:
            for process in self._processes:
                connection.wait([process.sentinel], max(0.0, deadline - time.monotonic()))
        finally:
            for process in self._processes:
                self._kill(process)

    def _kill(self, process: BaseProcess) -> None:
        with process_table:
            if process.exitcode is None:
                process.kill()
        if len(self.outcomes) < self.job.ranks or self._failed():
            # What the rank itself has started belongs to its process group.
            with suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)  # type: ignore[arg-type]
        connection.wait([process.sentinel])
        with process_table:
            process.join()
            process.close()

    def _running(self) -> list[int]:
        return [rank for rank in range(self.job.ranks) if rank not in self.outcomes]

    def _listen(self, seconds: float) -> bool:
        """Wait for news from any rank; whether there was some."""
        sources: dict[Any, int] = {self._pipes[rank]: rank for rank in self._running()}
        sources |= {self._processes[rank].sentinel: rank for rank in self._running()}
        ready = connection.wait([*sources], seconds)
        for rank in {sources[source] for source in ready}:
            # A rank reports before it ends. What it has forked may hold its pipe open longer.
            with suppress(EOFError):
                if self._pipes[rank].poll():
                    self.outcomes[rank] = pickle.loads(self._pipes[rank].recv_bytes())
                    continue
            with process_table:
                self._processes[rank].join(LEAVE_SECONDS)
                code = self._processes[rank].exitcode
            self.outcomes[rank] = Outcome(error="died", message=str(255 if code is None else code), blame=DIED)
        return bool(ready)

    def _failed(self) -> dict[int, Outcome]:
        return {rank: outcome for rank, outcome in self.outcomes.items() if outcome.error}

    def _settle(self) -> None:
        """Listen a little longer: the failure that was heard first need not be the one that happened first."""
        deadline = time.monotonic() + SETTLE_SECONDS
        while self._running() and (left := deadline - time.monotonic()) > 0:
            self._listen(left)

    def _failure(self) -> RankError:
        """The first failure that does not follow from another; the lowest rank's, where several failed alike."""
        blame = min(outcome.blame for outcome in self._failed().values())
        blamed = {rank: outcome for rank, outcome in self._failed().items() if outcome.blame == blame}
        first = min(blamed.values(), key=lambda outcome: outcome.when)
        alike = [rank for rank, it in blamed.items() if (it.error, it.message) == (first.error, first.message)]
        if blame == DIED:
            mismatch = board.find_mismatch(dict(enumerate(self._board.read_all())))
            return mismatch or describe_death(min(blamed), int(blamed[min(blamed)].message), self._stderr(min(blamed)))
        failure = make_failure(min(alike), blamed[min(alike)])
        if isinstance(failure, RankFailure) and (stderr := self._stderr(failure.rank)):
            failure.add_note(f"standard error of rank {failure.rank}:\n{stderr}")
        return failure

    def _stderr(self, rank: int) -> str:
        """The last part of a rank's standard error."""
        return read_text(self.job, "stderr", rank)[-4000:].strip()

    def _frames(self) -> dict[int, str]:
        """Where ranks that wait for nobody are computing, as "computes in train, line 12"."""
        asked = self._running()
        for rank in asked:
            with suppress(ProcessLookupError):
                os.kill(self._processes[rank].pid, signal.SIGUSR1)  # type: ignore[arg-type]
        found: dict[int, str] = {}
        deadline = time.monotonic() + ANSWER_SECONDS
        while len(found) < len(asked) and time.monotonic() < deadline:
            time.sleep(0.1)
            for rank in asked:
                frames = re.findall(r'File "(.*)", line (\d+) in (.+)', self._stderr(rank))
                own = [frame for frame in frames if "/zerolab/ranks/child.py" not in frame[0]]
                if own:
                    found[rank] = f"computes in {own[0][2]}, line {own[0][1]}"
        return found


def read_text(job: Job, what: str, rank: int) -> str:
    """What a rank has "printed" or written to "stderr", C++ included; nothing if it has not begun."""
    file = job.file(what, rank)
    return file.read_text(encoding="utf-8", errors="replace") if file.exists() else ""
