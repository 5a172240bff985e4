"""Collectives that a GPU was given and has not ended.

NCCL's return to the host when they are queued, so that a rank whose collective hangs seems to compute, or to wait for a
number. Here the oldest one that does not end is noted on the board, as the host's own are.
"""

from __future__ import annotations

import threading
from collections import deque

import torch

from zerolab.collectives.call import Call
from zerolab.gpu import door
from zerolab.ranks.board import BoardPen

LOOK_SECONDS = 1.0
"""How often the oldest call is looked at; one that two looks find is noted."""


class Unfinished:
    """The calls on a rank's GPU, oldest first, and a thread that notes on the board the one that does not end."""

    def __init__(self, pen: BoardPen) -> None:
        self._pen = pen
        self._calls: deque[tuple[Call, torch.cuda.Event]] = deque()
        self._seen: Call | None = None
        self._noted = False
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, call: Call, done: torch.cuda.Event) -> None:
        """A call was queued, which has ended when `done` has happened."""
        self._calls.append((call, done))
        if self._thread is None:
            self._thread = threading.Thread(target=self._watch, name="zerolab-unfinished", daemon=True)
            self._thread.start()

    def look(self) -> None:
        """Forget what has ended; note the oldest call if it is that of the look before."""
        while self._calls and door.happened(self._calls[0][1]):
            self._calls.popleft()
        oldest = self._calls[0][0] if self._calls else None
        if self._noted and oldest is not self._seen:
            self._pen.left()
            self._noted = False
        elif oldest is not None and oldest is self._seen and not self._noted:
            self._pen.entered(oldest)
            self._noted = True
        self._seen = oldest

    def close(self) -> None:
        """End the thread."""
        self._closed.set()
        if self._thread is not None:
            self._thread.join()

    def _watch(self) -> None:
        while not self._closed.wait(LOOK_SECONDS):
            self.look()
