"""Runs of units on their way back through backward, and when a unit gets no more gradients.

Of what it can compute next, autograd takes what the forward made last. So when it comes to the outputs of one run, it
is through with all that later runs made. A parameter of those that has no gradient by then was not used, like an expert
to which no token came, and has none in this backward; unless its unit has another run ahead.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING
from weakref import WeakSet

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
        # Those to which backward may come, as long as a graph has them; and those to which it has come.
        self._ahead: defaultdict[Unit, WeakSet[Pass]] = defaultdict(WeakSet)
        self._begun: list[Pass] = []

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
        for unit in dict.fromkeys(other.unit for other in ended):
            to_come = any(other.entered < run.left for other in self._ahead[unit])
            if not to_come and all(other.unit is not unit for other in self._begun):
                self._through(unit)

    def end_backward(self) -> None:
        self._begun.clear()
