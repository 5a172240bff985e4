"""In which order a model runs its units, and so which one to gather ahead."""

from __future__ import annotations

from zerolab.zero.units import Unit


class Route:
    """Runs of units. A forward is taken to go as the last one went; a backward, the way of its forwards back.

    last       the units of the last forward's runs, in order. Before the first forward it is a guess: each unit once,
               then, at the end, once more for each further module that it has
    running    the units of this forward's runs so far
    returning  those of this step's runs whose backward has not begun, the latest last
    """

    def __init__(self, units: list[Unit]) -> None:
        self.last = [*units, *(unit for unit in units for _ in unit.modules[1:])]
        self._is_guess = True
        self.running: list[Unit] = []
        self.returning: list[Unit] = []

    def begin_forward(self) -> None:
        self.running.clear()

    def end_forward(self) -> None:
        self.last, self._is_guess = list(self.running), False

    def next_in_forward(self, unit: Unit) -> list[Unit]:
        """`unit` runs. Returns the units that followed it at this point of the last forward; none if another unit ran
        there, and none in the first forward."""
        self.running.append(unit)
        return [] if self._is_guess else self._following()

    def until_reuse(self, unit: Unit) -> list[Unit] | None:
        """`unit` has run, and its backward will come. Returns the units that run until it is used again, by a later run
        or by its backward; None if that is not known."""
        if not self.running or self.last[len(self.running) - 1 : len(self.running)] != self.running[-1:]:
            return None
        following = self._following()
        coming = [*following, *reversed(following)]
        return coming[: coming.index(unit)] if unit in following else coming

    def next_in_backward(self, unit: Unit) -> list[Unit]:
        """The backward of one run of `unit` begins, the latest that had not begun. Returns the units of the runs before
        it, the nearest first."""
        while self.returning:
            if self.returning.pop() is unit:
                return self.returning[::-1]
        return []

    def _following(self) -> list[Unit]:
        at = len(self.running)
        return self.last[at:] if self.last[at - 1 : at] == self.running[-1:] else []

    def end_backward(self) -> None:
        self.returning.clear()
