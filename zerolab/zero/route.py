"""In which order a model runs its units, and so which one to gather ahead."""

from __future__ import annotations

from zerolab.zero.units import Unit

AHEAD = 2
"""So many units are told of: the next one is gathered, the one after it is read, should it rest on a disk."""


class Route:
    """Runs of units. A forward is taken to go as the last one went; a backward, the way of its forwards back.

    last       the runs of the last forward, in order
    running    those of this forward so far
    returning  those of this step's forwards whose backward has not begun, the latest last
    """

    def __init__(self) -> None:
        self.last: list[Unit] = []
        self.running: list[Unit] = []
        self.returning: list[Unit] = []

    def begin_forward(self) -> None:
        self.running.clear()

    def end_forward(self) -> None:
        self.last = list(self.running)

    def next_in_forward(self, unit: Unit) -> list[Unit]:
        """`unit` runs. What followed it at this point of the last forward; nothing if another one ran there."""
        self.running.append(unit)
        at = len(self.running)
        alike = at < len(self.last) and self.last[at - 1] is unit
        return self.last[at : at + AHEAD] if alike else []

    def next_in_backward(self, unit: Unit) -> list[Unit]:
        """The backward of `unit` begins. What ran before its last run whose backward had not begun."""
        while self.returning:
            if self.returning.pop() is unit:
                return self.returning[: -AHEAD - 1 : -1]
        return []

    def end_backward(self) -> None:
        self.returning.clear()
