"""What a launch is, checked and resolved, before any rank starts; and what a rank reports when it has ended."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Job:
    """Everything that ranks of one launch need to know, apart from the function itself. Times are in seconds."""

    ranks: int
    timeout: float
    collectives: str
    devices: tuple[str, ...]  # by rank: "cpu", "cuda:0"
    backend: str  # torch's name, such as "gloo" or "cpu:gloo,cuda:nccl"
    threads: int
    max_result_bytes: int
    collective_timeout: float = math.inf
    only: tuple[int, ...] = ()  # of a virtual world, the ranks that are run
    link: Any = None
    trace: bool = False
    check: bool = False
    environment: dict[str, str] = field(default_factory=lambda: dict(os.environ))
    directory: Path = Path()  # the launch's own, private and temporary
    working_directory: str = ""
    sources: dict[str, Any] = field(default_factory=dict)  # code that has no file, for tracebacks: a notebook's cells

    @property
    def call_seconds(self) -> float:
        """Seconds that one call may take: as many as it was given, and never more than the launch has. A number that
        torch takes, too."""
        return min(self.timeout, self.collective_timeout, 1e7)

    @property
    def function_file(self) -> Path:
        return self.directory / "function"

    @property
    def board_file(self) -> Path:
        return self.directory / "board"

    @property
    def store_file(self) -> Path:
        return self.directory / "store"

    def outcome_file(self, rank: int) -> Path:
        return self.directory / f"outcome-{rank}"

    def printed_file(self, rank: int) -> Path:
        return self.directory / f"printed-{rank}"

    def noise_file(self, rank: int) -> Path:
        return self.directory / f"noise-{rank}"


@dataclass(frozen=True)
class Outcome:
    """How a rank ended. `result` is pickled; `error` is the name of an exception's type, empty when all went well.

    `when` is in seconds of the machine's monotonic clock, the same for all its processes. `secondary` marks a failure
    that only follows from another rank's, such as a lost connection."""

    result: bytes = b""
    error: str = ""
    message: str = ""
    traceback: str = ""
    when: float = 0.0
    secondary: bool = False
    events: Any = None
