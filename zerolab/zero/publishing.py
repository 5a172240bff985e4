"""What a step hands around, and who waits for it.

With `overlap_gather` a step returns before the new parameters have come. What runs through a unit's own modules is
awaited by their hooks (`residency.py`); whoever asks for a parameter elsewhere is heard by its class (`coming.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

from zerolab.collectives import Handle
from zerolab.zero.bucket import Bucket
from zerolab.zero.units import Unit
from zerolab.zero.wrapping import set_coming


class Publishing:
    """What one engine's step has published, by unit, until it has come."""

    def __init__(self, units: Sequence[Unit]) -> None:
        self.units = units
        self.coming: dict[Unit, list[tuple[Bucket, Handle]]] = {}

    def publish(self) -> None:
        """Begin to hand this rank's new parameters to the others, and to get theirs."""
        for unit in self.units:
            begun = [(bucket, bucket.publish()) for bucket in unit.trainable]
            if coming := [(bucket, handle) for bucket, handle in begun if handle is not None]:
                self.coming[unit] = coming

    def mark(self) -> None:
        """From here on, whoever asks for a parameter whose new values are on their way waits for them."""
        for unit, coming in list(self.coming.items()):
            # A parameter of a class of the user's own keeps it and cannot make anybody wait: its unit is awaited now.
            if not all([set_coming(bucket.parameters, True) for bucket, _ in coming]):
                self.settle(unit)

    def settle(self, unit: Unit) -> None:
        """Return once a unit's new parameters are here."""
        coming = self.coming.get(unit)
        if coming is None:
            return
        for _, handle in coming:
            handle.wait()
        # Only now: if a wait failed, the unit still counts as on its way.
        del self.coming[unit]
        for bucket, _ in coming:
            set_coming(bucket.parameters, False)

    def settle_all(self) -> None:
        # Wait for the last call first: calls run in order, so all those before it are done by then.
        for unit in reversed(list(self.coming)):
            self.settle(unit)
