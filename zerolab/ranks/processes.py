"""The parent's side of a launch in processes: start the ranks, watch them, end them, whatever happens."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import re
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from multiprocessing import connection
from pathlib import Path
from typing import Any

from zerolab.errors import RankError
from zerolab.ranks import board, child
from zerolab.ranks.board import RankState
from zerolab.ranks.failure import RankFailure, died, rank_failure
from zerolab.ranks.folders import farewells, temporary_folder
from zerolab.ranks.forkserver import new_process, process_table, start
from zerolab.ranks.job import Job, Outcome
from zerolab.ranks.printing import Printer

POLL_SECONDS = 0.1
# How long after a failure to listen for other ranks' failures, of which it may be the consequence.
SETTLE_SECONDS = 0.25
# How long a rank may take to end by itself once it is told to.
LEAVE_SECONDS = 2.0
# How long a rank may take to say where it is.
ANSWER_SECONDS = 1.0


def run_processes(job: Job, function: bytes, prints: str) -> tuple[list[Outcome], list[str]]:
    """Run a job; the outcome and the printed text of each rank, in rank order. Raises a RankError if any rank failed.
    When this returns or raises, no process, pipe or file of the launch is left."""
    with temporary_folder("launch") as directory:
        job = replace(job, directory=directory)
        files = [job.file("printed", rank) for rank in range(job.ranks)]
        job.file("function").write_bytes(function)
        runner = ProcessGroupRunner(job, Printer(prints, job.ranks, lambda: read_files(files)))
        try:
            runner.start()
            runner.watch()
        except RankError as error:
            error.printed = read_files(files)
            raise
        finally:
            try:
                printed = runner.printer.finish()
            finally:
                runner.end()
        return [runner.outcomes[rank] for rank in range(job.ranks)], printed


class ProcessGroupRunner:
    """The rank processes of one launch."""

    def __init__(self, job: Job, printer: Printer) -> None:
        self.job = job
        self.printer = printer
        self.outcomes: dict[int, Outcome] = {}
        self._dead: dict[int, int] = {}
        self._board = board.Board(job.ranks, job.file("board"))
        self._lifeline, self._lifeline_end = multiprocessing.Pipe(duplex=False)
        pipes = [multiprocessing.Pipe(duplex=False) for _ in range(job.ranks)]
        self._reports = [ours for ours, _ in pipes]
        self._given = [self._lifeline, *(theirs for _, theirs in pipes)]
        self._hang_up = self._lifeline_end.close
        farewells.add(self._hang_up)
        self._processes = [
            new_process(child.main, (job, rank, self._lifeline, theirs), f"zerolab-rank-{rank}")
            for rank, (_, theirs) in enumerate(pipes)
        ]

    def start(self) -> None:
        for process in self._processes:
            try:
                start(process)
            except (EOFError, OSError) as error:
                raise RankError(
                    f"the process that ranks are forked from does not serve ({error}); see whether memory, open files "
                    "and processes are limited, and raise the limit"
                ) from error
        # Only ranks hold these ends now.
        for end in self._given:
            end.close()

    def watch(self) -> None:
        """Return when every rank has returned; raise as soon as that cannot happen any more."""
        deadline = time.monotonic() + self.job.timeout
        earlier: Sequence[RankState] | None = None
        hangs = board.Hangs(self.job.collective_timeout)
        while len(self.outcomes) < self.job.ranks:
            quiet = not self._listen(min(POLL_SECONDS, max(0.0, deadline - time.monotonic())))
            self.printer.follow()
            if self._failed():
                self._settle()
                raise self._failure()
            if time.monotonic() >= deadline:
                raise board.overdue(self._board.read_all(), set(self.outcomes), self._frames(), self.job.timeout)
            if quiet:
                # Nothing came for a whole poll: see whether anything still can.
                now = self._board.read_all()
                stuck = board.certain_failure(earlier, now, set(self.outcomes)) if earlier else None
                if stuck is not None and not self._listen(0.0):
                    raise stuck
                if hangs.found(now, time.monotonic()):
                    what = "a collective or a message did not end"
                    raise board.overdue(now, set(self.outcomes), self._frames(), hangs.seconds, what)
                earlier = now

    def end(self) -> None:
        """End every rank: ask, then kill. Not even a second Ctrl-C leaves one behind."""
        interrupt: KeyboardInterrupt | None = None
        deadline = time.monotonic() + (LEAVE_SECONDS if not self._failed() else 0.2)
        for end in (*self._given, self._lifeline_end):
            end.close()
        for process in self._processes:
            while process.pid is not None:
                try:
                    self._reap(process, deadline)
                    break
                except KeyboardInterrupt as again:
                    interrupt, deadline = again, 0.0
        for report in self._reports:
            report.close()
        if interrupt is not None:
            raise interrupt

    def _reap(self, process: Any, deadline: float) -> None:
        connection.wait([process.sentinel], max(0.0, deadline - time.monotonic()))
        with process_table:
            if process.exitcode is None:
                process.kill()
        if len(self.outcomes) < self.job.ranks or self._failed():
            # What the rank itself has started belongs to its process group.
            with suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
        connection.wait([process.sentinel])
        with process_table:
            process.join()
            process.close()

    def _running(self) -> list[int]:
        return [rank for rank in range(self.job.ranks) if rank not in self.outcomes and rank not in self._dead]

    def _listen(self, seconds: float) -> bool:
        """Wait for news from any rank; whether there was some."""
        running = self._running()
        sources: dict[Any, int] = {self._reports[rank]: rank for rank in running}
        sources |= {self._processes[rank].sentinel: rank for rank in running}
        ready = connection.wait([*sources], seconds)
        for rank in {sources[source] for source in ready}:
            # A rank reports before it ends. What it has forked may hold its pipe open longer.
            with suppress(EOFError):
                if self._reports[rank].poll():
                    self.outcomes[rank] = pickle.loads(self._reports[rank].recv_bytes())
                    continue
            with process_table:
                self._processes[rank].join(LEAVE_SECONDS)
                code = self._processes[rank].exitcode
            self._dead[rank] = 255 if code is None else code
        return bool(ready)

    def _failed(self) -> list[int]:
        return [*self._dead, *(rank for rank, outcome in self.outcomes.items() if outcome.error)]

    def _settle(self) -> None:
        """Listen a little longer: the failure that was heard first need not be the one that happened first."""
        deadline = time.monotonic() + SETTLE_SECONDS
        while (left := deadline - time.monotonic()) > 0:
            if len(self.outcomes) + len(self._dead) == self.job.ranks:
                return
            self._listen(left)

    def _failure(self) -> RankError:
        """The first failure that does not follow from another; the lowest rank's, where several failed alike."""
        raised = {rank: outcome for rank, outcome in self.outcomes.items() if outcome.error}
        own = {rank: outcome for rank, outcome in raised.items() if not outcome.secondary}
        if self._dead and not own:
            mismatch = board.different_calls(dict(enumerate(self._board.read_all())))
            rank = min(self._dead)
            return mismatch or died(rank, self._dead[rank], self._stderr(rank))
        candidates = own or raised
        first = min(candidates.values(), key=lambda outcome: outcome.when)
        rank = min(
            rank
            for rank, outcome in candidates.items()
            if (outcome.error, outcome.message) == (first.error, first.message)
        )
        failure = rank_failure(rank, candidates[rank])
        if isinstance(failure, RankFailure) and (stderr := self._stderr(rank)):
            failure.add_note(f"standard error of rank {rank}:\n{stderr}")
        return failure

    def _stderr(self, rank: int) -> str:
        """What a rank wrote to standard error, C++ included; the last part, if it is long."""
        try:
            return self.job.file("stderr", rank).read_text(errors="replace")[-4000:].strip()
        except OSError:
            return ""

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


def read_files(files: Sequence[Path]) -> list[str]:
    """The text of each file, empty where there is none yet."""
    return [file.read_text(encoding="utf-8", errors="replace") if file.exists() else "" for file in files]
