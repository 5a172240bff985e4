"""What a step hands around, and who waits for it.

With `overlap_gather` a step returns before the new parameters have come. What runs through a unit's own modules is
awaited by their hooks (`schedule.py`); who asks for a parameter elsewhere is made to wait by a guard.
"""

from __future__ import annotations

from collections.abc import Sequence

from zerolab.collectives.handle import Handle
from zerolab.zero.bucket import Bucket
from zerolab.zero.guard import Guards
from zerolab.zero.units import Unit


class Publishing:
    """What one engine's step has published, by unit, until it has come."""

    def __init__(self, units: Sequence[Unit], guards: Guards) -> None:
        self.units, self.guards = units, guards
        self.coming: dict[Unit, list[tuple[Bucket, Handle]]] = {}

    def publish(self) -> None:
        """Begin to hand this rank's new parameters to the others, and to get theirs."""
        for unit in self.units:
            begun = [(bucket, bucket.publish()) for bucket in unit.trainable]
            if coming := [(bucket, handle) for bucket, handle in begun if handle is not None]:
                self.coming[unit] = coming

    def leave(self) -> None:
        """The step returns: from here on, whoever asks for a parameter that is on its way waits for it."""
        for unit, coming in list(self.coming.items()):
            self.guards.tell("published", unit, [bucket for bucket, _ in coming])

    def settle(self, unit: Unit) -> None:
        """Return once a unit's new parameters are here."""
        coming = self.coming.get(unit)
        if coming is None:
            return
        for _, handle in coming:
            handle.wait()
        # Only now: if a wait failed, the unit still counts as on its way.
        del self.coming[unit]
        self.guards.tell("arrived", [bucket for bucket, _ in coming])

    def settle_all(self) -> None:
        # Wait for the last call first: calls run in order, so all those before it are done by then.
        for unit in reversed(list(self.coming)):
            self.settle(unit)
