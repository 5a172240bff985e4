"""What an exercise of lesson 07 is given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from zerolab.collectives import Collectives


class DiskStep:
    """What a step from a disk is given."""

    def __init__(self, comm: Collectives, disk: Any, buffers: list[Any], update: Callable[..., Any]) -> None:
        self.comm, self.disk, self.buffers, self.update = comm, disk, buffers, update
        self.notes: set[Any] = set()
