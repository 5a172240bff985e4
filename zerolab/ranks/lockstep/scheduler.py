"""A scheduler that runs ranks one at a time: each until it waits, then whoever has been ready for longest.

A task is a rank's main line or one of its communication lanes, each in a thread. Only the thread that holds the baton
runs; the others sleep on a lock of their own. So the order of events is the same every time, a deadlock is plain to see
and time can be virtual. The task that runs is known by the baton, so that a rank may also wait from another thread.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from zerolab.collectives.call import Call
from zerolab.errors import DeadlockError, RankError
from zerolab.ranks.board import LANE, Note
from zerolab.system import has

# How long the thread of a rank that is stopped may take to unwind.
UNWIND_SECONDS = 1.0
# How long to wait for the end of threads that the system does not show.
UNSEEN_SECONDS = 0.05


class Stopped(BaseException):
    """Raised in a waiting rank to unwind its thread, once the launch has failed; `except Exception` lets it pass."""


class Task:
    """A rank's main line (lane 0) or one of its lanes (1, 2, ...)."""

    def __init__(self, rank: int, lane: int) -> None:
        self.rank = rank
        self.lane = lane
        self.clock = 0.0
        self.calls: list[Call] = []
        self.note = Note()
        self.done = False
        # Open once the task is given the baton. A plain lock: Python's semaphore wakes a thread more than once.
        self.baton = threading.Lock()
        self.baton.acquire()
        self.thread: threading.Thread

    @property
    def idle(self) -> bool:
        """A lane without a call to run waits for no other rank."""
        return self.lane > 0 and not self.calls and not self.note.kind

    def give(self) -> None:
        """Hand it the baton. Where a launch fails it may have been given, and not yet taken, already."""
        with suppress(RuntimeError):
            self.baton.release()

    def __str__(self) -> str:
        if self.done:
            return f"rank {self.rank} has returned"
        self.note.enter(self.calls[-1] if self.calls and self.note.kind != LANE else None)
        return f"rank {self.rank} {str(self.note) or 'waits for its turn'}"


class Scheduler:
    """Runs tasks in turn. `switched(rank)` is called before a rank goes on after another one."""

    def __init__(self, switched: Callable[[int], None]) -> None:
        self.tasks: list[Task] = []
        self.current: Task | None = None
        self.ended = threading.Event()
        self.error: RankError | None = None
        self.stopping = False
        self._switched = switched
        self._last_rank: int | None = None
        self._ready: deque[Task] = deque()

    def add(self, task: Task, body: Callable[[], None], ready: bool = True) -> None:
        """Give a task its thread; it runs when its turn comes, or once woken if not `ready`."""
        self.tasks.append(task)
        name = f"zerolab-lockstep-{task.rank}.{task.lane}"
        task.thread = threading.Thread(target=self._live, args=(task, body), name=name, daemon=True)
        if ready:
            self._ready.append(task)
        task.thread.start()

    def running(self) -> Task:
        """The task that holds the baton; raises where the launch has already failed."""
        if self.stopping or self.current is None:
            raise Stopped
        return self.current

    def wait(self, kind: int = 0, peer: int = -1, nbytes: int = 0) -> None:
        """Let others run until the running task is woken. `kind` and the rest say what it waits for."""
        task = self.running()
        task.note.wait(kind, peer, nbytes)
        self.hand_over()
        if not self.stopping:
            task.baton.acquire()
        if self.stopping:
            raise Stopped

    def wake(self, task: Task) -> None:
        task.note.kind = 0
        self._ready.append(task)

    def fail(self, error: RankError) -> None:
        """End the launch with an error; the first one counts."""
        if self.error is None:
            self.error = error
        self.stopping = True
        self.ended.set()

    def stop(self) -> list[int]:
        """Unwind every thread that is left. Returns the ranks that could not be stopped."""
        self.stopping = True
        for task in self.tasks:
            task.give()
            task.thread.join(UNWIND_SECONDS / 5 if not task.done else 0.0)
            if not task.done:
                # In a loop that never waits: an exception from outside is all that Python offers.
                ident = ctypes.c_ulong(task.thread.ident or 0)
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, ctypes.py_object(Stopped))
                task.thread.join(UNWIND_SECONDS)
        if self.error is not None:
            wait_until_gone([task.thread for task in self.tasks if task.done])
        return sorted({task.rank for task in self.tasks if not task.done})

    def _live(self, task: Task, body: Callable[[], None]) -> None:
        task.baton.acquire()
        try:
            if not self.stopping:
                body()
        except Stopped:
            pass
        finally:
            task.done = True
            if not self.stopping:
                self.hand_over()

    def hand_over(self) -> None:
        """Pass the baton to the task that has been ready for longest. `ended` is set when all main lines have ended, or
        at the first failure."""
        if all(task.done for task in self.tasks if task.lane == 0):
            self.ended.set()
            return
        if not self._ready:
            tasks = sorted(self.tasks, key=lambda task: (task.rank, task.lane))
            report = "; ".join(str(task) for task in tasks if not task.idle)
            needs = "each send needs a receive that is posted, and the other way round"
            self.fail(DeadlockError(f"the ranks wait for each other: {report}; {needs}"))
            return
        self.current = task = self._ready.popleft()
        if task.rank != self._last_rank:
            self._switched(task.rank)
            self._last_rank = task.rank
        task.give()


def locate(task: Task) -> str:
    """Where the thread of a task is, as "computes in train, line 12"."""
    frame = sys._current_frames().get(task.thread.ident or 0)
    if frame is None or frame.f_globals.get("__name__", "").startswith("zerolab.ranks."):
        return "computes"
    return f"computes in {frame.f_code.co_name}, line {frame.f_lineno}"


def wait_until_gone(threads: list[threading.Thread]) -> None:
    """Wait until these threads, which are done, have ended for the system (Linux): Python lets one go before it frees
    the graph of a backward that failed, and an interpreter that ends meanwhile aborts."""
    until = time.monotonic() + UNWIND_SECONDS
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
        own = f"/proc/self/task/{thread.native_id}"
        while has("proc") and os.path.exists(own) and time.monotonic() < until:
            time.sleep(1e-3)
    if not has("proc"):
        # Nothing tells; what is left to do takes less.
        time.sleep(UNSEEN_SECONDS)
