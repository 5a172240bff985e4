"""How much of a model stage 3 has whole at a time: what stays, what comes ahead, what is kept for its next use.

The engine asks these functions while it runs, and the ledgers ask the same ones beforehand, so that both say the same.
All is counted in elements of whole units, padding included; parameters that stay on every rank do not count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, TypeVar

from zerolab.zero.schedule import GatherSchedule
from zerolab.zero.units import Presence, Unit

U = TypeVar("U")


@dataclass(frozen=True)
class Stage3Limits:
    """Limits of what is gathered at stage 3, in elements, with DeepSpeed's name for each.

    persistence_numel  stage3_param_persistence_threshold: a parameter of at most so many elements stays whole on every
                       rank, as at stage 2. (All stages put those in buckets of their own, so that one setting gives
                       the same bits.)
    prefetch_numel     stage3_prefetch_bucket_size: gather as many coming units ahead as fit into so many elements;
                       None: exactly the next unit, whatever its size
    live_numel         stage3_max_live_parameters: units are gathered ahead and kept only while no more than so many
                       elements are here; None: no limit
    reuse_numel        stage3_max_reuse_distance: a unit that has run is not released if it is used again before units
                       of so many elements have run; 1 keeps the last unit of the forward, which backward uses first.
                       None: 1 on a GPU, 0 elsewhere (`on`)
    """

    persistence_numel: int = 0
    prefetch_numel: int | None = None
    live_numel: int | None = None
    reuse_numel: int | None = None

    def on(self, gpus: bool) -> Stage3Limits:
        """These limits with the default for ranks on GPUs, or not, filled in. To release the last unit and gather it
        again at once would cost its wire, and keeping it costs little beside the activations."""
        return replace(self, reuse_numel=1) if gpus and self.reuse_numel is None else self

    def has_room(self, live: int, more: int) -> bool:
        """Whether `more` elements may come beside the `live` ones without need."""
        return self.live_numel is None or live + more <= self.live_numel

    def ahead(self, coming: Iterable[tuple[int, bool]], live: int) -> int:
        """How many of the coming units are to be gathered now, the nearest first: of each its elements, and whether
        they are among the `live` ones, which are here or on their way."""
        left, count = self.prefetch_numel, 0
        for numel, is_live in coming:
            fits = count == 0 if left is None else numel <= left
            more = 0 if is_live else numel
            if not fits or (more and not self.has_room(live, more)):
                break
            count, live, left = count + 1, live + more, None if left is None else left - numel
        return count

    def keeps(self, unit: U, following: Sequence[U], numel_of: Callable[[U], int]) -> bool:
        """Whether a unit that has run stays until it is used again. `following` run after it in this forward, and then
        the other way round in its backward."""
        if not self.reuse_numel:
            return False
        between = [*following, *reversed(following)]
        between = between[: between.index(unit)] if unit in following else between
        if self.reuse_numel <= sum(map(numel_of, between)):
            return False
        return self.has_room(sum(map(numel_of, set(between))), numel_of(unit))


NO_LIMITS = Stage3Limits()
"""No parameter stays, the next unit is gathered ahead, none is kept."""


class LimitedSchedule(GatherSchedule):
    def __init__(self, limits: Stage3Limits, *settings: Any) -> None:
        super().__init__(*settings)
        self.limits = limits

    def gather_ahead(self, coming: list[Unit]) -> None:
        sizes = ((unit.numel, unit.presence is not Presence.SHARDED) for unit in coming)
        count = self.limits.ahead(sizes, self._live())
        for unit in coming[:count]:
            unit.start_gather()
        # Should it rest on a disk.
        for unit in coming[count : count + 1]:
            unit.prefetch()

    def keeps(self, unit: Unit) -> bool:
        order, at = self.order, len(self.order.running)
        # Where another unit ran the last time it is not known when this one is used again.
        is_known = order.last[at - 1 : at] == order.running[-1:]
        return is_known and self.limits.keeps(unit, order.following(), attrgetter("numel"))

    def make_room(self, unit: Unit) -> None:
        """Let go of what earlier units kept, if this one beside them is too much."""
        if unit.presence is Presence.SHARDED and not self.limits.has_room(self._live(), unit.numel):
            for other in self.units:
                if other.kept:
                    self.release(other)

    def _live(self) -> int:
        if self.limits.live_numel is None:
            return 0
        return sum(unit.numel for unit in self.units if unit.presence is not Presence.SHARDED)
