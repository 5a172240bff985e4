"""What a launch is, checked and resolved; what a rank reports when it has ended; and what the caller gets."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
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

    def file(self, what: str, rank: int | None = None) -> Path:
        """A file of the launch: "function", "board" or "store"; or a rank's: "outcome", "printed" or "noise"."""
        return self.directory / (what if rank is None else f"{what}-{rank}")


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


class Results(list[Any]):
    """The ranks' return values, in rank order: a list, with what else is known of the launch.

    `printed`  what each rank printed, a text by rank
    `seconds`  how long the launch took: virtual seconds in lockstep, else real ones
    `trace`    with trace=True: in lockstep a list of `Event`, else each rank's list of `Span`
    """

    def __init__(
        self, values: Iterable[Any], printed: list[str], seconds: float, trace: list[Any] | None = None
    ) -> None:
        super().__init__(values)
        self.printed = printed
        self.seconds = seconds
        self.trace = trace
