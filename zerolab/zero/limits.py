"""How much of a model stage 3 has whole at a time: what stays, what comes ahead, what is kept for its next use.

The engine asks these functions while it runs, and the ledgers ask the same ones beforehand, so that both say the same.
All is counted in elements of whole units, padding included; parameters that stay on every rank do not count.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from zerolab.errors import InputError
from zerolab.flat.layout import check_count
from zerolab.zero.schedule import GatherSchedule
from zerolab.zero.units import Presence, Unit


@dataclass(frozen=True)
class Stage3Limits:
    """Limits of what is gathered at stage 3, in elements, with DeepSpeed's name for each.

    persistence_numel  stage3_param_persistence_threshold: a parameter of at most so many elements stays whole on every
                       rank, as at stage 2: it is neither gathered nor released; its gradient and its optimizer states
                       are sharded. (All stages put such parameters in buckets of their own, so that one setting gives
                       one order of addition, and the same bits.)
    prefetch_numel     stage3_prefetch_bucket_size: gather as many coming units ahead as fit into so many elements; 0:
                       none. None: exactly the next unit, whatever its size
    live_numel         stage3_max_live_parameters: units are gathered ahead and kept only while no more than so many
                       elements are here. The unit that computes is gathered in any case. None: no limit
    reuse_numel        stage3_max_reuse_distance: a unit that has run is not released if it is used again before units
                       of so many elements have run; 1 keeps the last unit of the forward, which backward uses first.
                       None: 1 on a GPU, 0 elsewhere (`on`)

    Raises InputError for what is no whole number, or below 0.
    """

    persistence_numel: int = 0
    prefetch_numel: int | None = None
    live_numel: int | None = None
    reuse_numel: int | None = None

    def __post_init__(self) -> None:
        for what in ("persistence_numel", "prefetch_numel", "live_numel", "reuse_numel"):
            if getattr(self, what) is not None or what == "persistence_numel":
                check_count(what, getattr(self, what), least=0)

    def on(self, gpus: bool) -> Stage3Limits:
        """These limits with the default for ranks on GPUs, or not, filled in: where nobody gave `reuse_numel`, a GPU
        has 1. To release the last unit and gather it again at once would cost its wire, and keeping it costs little
        beside the activations."""
        return replace(self, reuse_numel=1) if gpus and self.reuse_numel is None else self

    def has_room(self, live: int, more: int) -> bool:
        """Whether `more` elements may come beside the `live` ones without need."""
        return self.live_numel is None or live + more <= self.live_numel

    def ahead(self, coming: Sequence[int], live: int, present: Collection[int] = ()) -> int:
        """How many of the `coming` units, whose elements these are, are to be gathered now, the nearest first.

        live     elements that are here, or on their way
        present  which of `coming` are among those, by their numbers
        """
        left = self.prefetch_numel
        for number, numel in enumerate(coming):
            if left is None and number:
                return number
            if left is not None and numel > left:
                return number
            if number not in present:
                if not self.has_room(live, numel):
                    return number
                live += numel
            left = None if left is None else left - numel
        return len(coming)

    def keeps(self, numel: int, between: Sequence[tuple[object, int]]) -> bool:
        """Whether a unit of `numel` elements that has run stays until it is used again; `between` are the units that
        run until then, one by one, with their elements."""
        if (self.reuse_numel or 0) <= sum(size for _, size in between):
            return False
        return self.has_room(sum(dict(between).values()), numel)


NO_LIMITS = Stage3Limits()
"""No parameter stays, the next unit is gathered ahead, none is kept."""


def check_limits(limits: Stage3Limits) -> Stage3Limits:
    if not isinstance(limits, Stage3Limits):
        raise InputError(f"limits is {limits!r}; give a Stage3Limits")
    return limits


class LimitedSchedule(GatherSchedule):
    """Gathers ahead, and keeps, within limits."""

    limits = NO_LIMITS

    def gather_ahead(self, coming: list[Unit]) -> None:
        if self.limits.prefetch_numel is None:
            # The next is gathered, and the one after it read, should it rest on a disk.
            coming = coming[:2]
        present = [number for number, unit in enumerate(coming) if unit.presence is not Presence.SHARDED]
        count = self.limits.ahead([unit.numel for unit in coming], self._live(), present)
        for unit in coming[:count]:
            unit.start_gather()
        for unit in coming[count : count + 1]:
            unit.prefetch()

    def keeps(self, unit: Unit) -> bool:
        running, last = self.order.running, self.order.last
        if not self.limits.reuse_numel or not running or last[len(running) - 1 : len(running)] != running[-1:]:
            # Not known when it is used again, or not asked.
            return False
        following = self.order.following()
        between = [*following, *reversed(following)]
        between = between[: between.index(unit)] if unit in following else between
        return self.limits.keeps(unit.numel, [(other, other.numel) for other in between])

    def make_room(self, unit: Unit) -> None:
        """Let go of what earlier units kept, if this one beside them is too much."""
        if unit.presence is Presence.SHARDED and not self.limits.has_room(self._live(), unit.numel):
            for other in self.units:
                if other.kept:
                    self.release(other)

    def _live(self) -> int:
        """Elements that are here, or on their way; 0 if they are not limited."""
        if self.limits.live_numel is None:
            return 0
        return sum(unit.numel for unit in self.units if unit.presence is not Presence.SHARDED)
