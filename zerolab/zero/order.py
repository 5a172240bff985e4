"""In which order a model runs its units, and when one of them gets no more gradients."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from weakref import WeakSet

from zerolab.zero.units import Unit


class ExecutionOrder:
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
        return [] if self._is_guess else self.following()

    def next_in_backward(self, unit: Unit) -> list[Unit]:
        """The backward of one run of `unit` begins, the latest that had not begun. Returns the units of the runs before
        it, the nearest first."""
        while self.returning:
            if self.returning.pop() is unit:
                return self.returning[::-1]
        return []

    def end_backward(self) -> None:
        self.returning.clear()

    def following(self) -> list[Unit]:
        """The units that followed the one that runs, at this point of the last forward."""
        at = len(self.running)
        return self.last[at:] if self.last[at - 1 : at] == self.running[-1:] else []


class UnitRun:
    """One call of one of a unit's modules, on its way back through backward.

    entered, left   when its forward began and ended, counted over all runs
    missing         inputs whose gradients are not known yet
    """

    def __init__(self, unit: Unit, entered: int) -> None:
        self.unit = unit
        self.entered = self.left = entered
        self.missing = 0
        self.begun = False


class Runs:
    """When a unit gets no more gradients in a backward; `through` is told.

    Of the operations that autograd may compute next, it takes the one that the forward recorded last. So when backward
    comes to the outputs of one run, it has computed all that later runs recorded. A parameter that a later run had and
    that has no gradient by then was not used there, as in an expert to which no token came. It gets none in this
    backward, unless backward has yet to come to another run of its unit.
    """

    def __init__(self, through: Callable[[Unit], None]) -> None:
        self._through = through
        self._clock = 0
        # Runs to which backward may still come, as long as a graph holds them; and those to which it has come.
        self._ahead: defaultdict[Unit, WeakSet[UnitRun]] = defaultdict(WeakSet)
        self._begun: list[UnitRun] = []

    def enter(self, unit: Unit) -> UnitRun:
        """A forward of one of the unit's modules begins."""
        self._clock += 1
        return UnitRun(unit, self._clock)

    def leave(self, run: UnitRun, returns: bool) -> None:
        """It has ended; `returns`: backward may come to its outputs."""
        self._clock += 1
        run.left = self._clock
        if returns:
            self._ahead[run.unit].add(run)

    def begin(self, run: UnitRun) -> None:
        """Backward comes to the outputs of a run. Told before anything is gathered for it, so that all ranks start the
        same reductions before the same gathers, whichever gradients each of them got."""
        run.begun = True
        self._ahead[run.unit].discard(run)
        ended = [other.unit for other in self._begun if other.entered > run.left]
        self._begun = [other for other in self._begun if other.entered < run.left] + [run]
        for unit in dict.fromkeys(ended):
            to_come = any(other.entered < run.left for other in self._ahead[unit])
            if not to_come and all(other.unit is not unit for other in self._begun):
                self._through(unit)

    def end_backward(self) -> None:
        self._begun.clear()
