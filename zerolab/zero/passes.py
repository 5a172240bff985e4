"""Runs of units on their way back through backward, and when a unit gets no more gradients.

A run is one call of one of a unit's modules. Of the operations that autograd may compute next, it takes the one that
the forward recorded last. So when backward comes to the outputs of one run, it has computed all that later runs
recorded. A parameter that a later run had and that has no gradient by then was not used there, as in an expert to which
no token came. It gets none in this backward, unless backward has yet to come to another run of its unit.

A reentrant checkpoint records no graph in the forward. When backward comes to it, it runs its modules again, records
them, and has a backward of its own inside the outer one. As soon as the outer one goes on, the inner one has ended.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING
from weakref import WeakSet

from torch._C import _current_graph_task_id as current_backward

if TYPE_CHECKING:
    from zerolab.zero.units import Unit


class Pass:
    """One run of a unit's module, on its way back through backward.

    entered, left   when its forward began and ended, counted over all runs
    missing         inputs whose gradients are not known yet
    """

    def __init__(self, unit: Unit, entered: int) -> None:
        self.unit = unit
        self.entered = self.left = entered
        self.missing = 0
        self.begun = False


class Passes:
    """`through` is told of a unit that gets no more gradients in this backward."""

    def __init__(self, through: Callable[[Unit], None]) -> None:
        self._through = through
        self._clock = 0
        # Runs to which backward may still come, as long as a graph holds them; and those to which it has come.
        self._ahead: defaultdict[Unit, WeakSet[Pass]] = defaultdict(WeakSet)
        self._begun: list[Pass] = []
        # Units that a checkpoint has run again, with the number that torch gives the backward in which it did; a
        # backward inside another has a greater one. And the number of the backward of the last gradient since.
        self._again: list[tuple[int, Unit]] = []
        self._latest = -1

    def enter(self, unit: Unit) -> Pass:
        """A forward of one of the unit's modules begins."""
        self._clock += 1
        return Pass(unit, self._clock)

    def leave(self, run: Pass, returns: bool) -> None:
        """It has ended; `returns`: backward may come to its outputs."""
        self._clock += 1
        run.left = self._clock
        if returns:
            self._ahead[run.unit].add(run)

    def begin(self, run: Pass) -> None:
        """Backward comes to the outputs of a run. Told before anything is gathered for it, so that all ranks start the
        same reductions before the same gathers, whichever gradients each of them got."""
        run.begun = True
        self._ahead[run.unit].discard(run)
        ended = [other for other in self._begun if other.entered > run.left]
        self._begun = [other for other in self._begun if other.entered < run.left] + [run]
        self._tell([*self._end_inner(), *(other.unit for other in ended)], run.left)

    def again(self, unit: Unit) -> None:
        """In backward a checkpoint runs a unit again. Told before it is gathered, as `begin` is."""
        self._tell(self._end_inner(), self._clock + 1)
        if len(unit.modules) == 1:
            # Of several, each may be in a checkpoint of its own.
            self._again.append((current_backward(), unit))
        self._latest = -1

    def gradient(self) -> None:
        """A parameter got its gradient."""
        self._latest = max(self._latest, current_backward())

    def end_backward(self) -> None:
        self._begun.clear()
        self._again.clear()

    def _end_inner(self) -> list[Unit]:
        """Units that reentrant checkpoints have run again, whose own backward has ended."""
        here = current_backward()
        ended = [unit for number, unit in self._again if number > here or number == here < self._latest]
        self._again = [(number, unit) for number, unit in self._again if unit not in ended]
        return ended

    def _tell(self, units: list[Unit], now: int) -> None:
        for unit in dict.fromkeys(units):
            to_come = any(other.entered < now for other in self._ahead[unit])
            if not to_come and all(other.unit is not unit for other in self._begun):
                self._through(unit)
