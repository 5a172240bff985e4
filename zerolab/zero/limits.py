"""How much of a model stage 3 has whole at a time: what stays, what comes ahead, what is kept for its next use.

The engine and the ledgers ask the same functions. All is counted in elements of whole units, padding included;
parameters that stay on every rank do not count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from zerolab.flat.layout import check_count

if TYPE_CHECKING:
    from zerolab.zero.units import Unit

U = TypeVar("U")


@dataclass(frozen=True)
class Stage3Limits:
    """Limits of what is gathered at stage 3, in elements, with DeepSpeed's name for each.

    persistence_numel  stage3_param_persistence_threshold: a parameter of at most so many elements stays whole on every
                       rank, as at stage 2
    prefetch_numel     stage3_prefetch_bucket_size: gather as many coming units ahead as fit into so many elements;
                       None: exactly the next unit, whatever its size
    live_numel         stage3_max_live_parameters: units are gathered ahead and kept only while no more than so many
                       elements are here; None: no limit
    reuse_numel        stage3_max_reuse_distance: a unit that has run is not released if it is used again before units
                       of so many elements have run; None: 1 on a GPU, 0 elsewhere (`on`)

    Raises InputError for what is no whole number, or below 0.
    """

    persistence_numel: int = 0
    prefetch_numel: int | None = None
    live_numel: int | None = None
    reuse_numel: int | None = None

    def __post_init__(self) -> None:
        for what, numel in vars(self).items():
            if numel is not None or what == "persistence_numel":
                check_count(what, numel, least=0)

    def on(self, gpus: bool) -> Stage3Limits:
        """These limits with the default for ranks on GPUs, or not."""
        return replace(self, reuse_numel=1) if gpus and self.reuse_numel is None else self

    def has_room(self, live: int, more: int) -> bool:
        """Whether `more` elements may come beside the `live` ones without need."""
        return self.live_numel is None or live + more <= self.live_numel

    def live(self, units: Iterable[Unit]) -> int:
        """Elements that are here, or on their way; 0 if they are not limited."""
        if self.live_numel is None:
            return 0
        from zerolab.zero.units import Presence

        return sum(unit.numel for unit in units if unit.presence is not Presence.SHARDED)

    def ahead(self, coming: Iterable[tuple[int, bool]], live: int) -> int:
        """How many of the coming units to gather now: of each its elements, and whether they are here."""
        left, count = self.prefetch_numel, 0
        for numel, is_live in coming:
            fits = count == 0 if left is None else numel <= left
            more = 0 if is_live else numel
            if not fits or (more and not self.has_room(live, more)):
                break
            count, live, left = count + 1, live + more, None if left is None else left - numel
        return count

    def keeps(self, unit: U, following: Sequence[U], numel_of: Callable[[U], int]) -> bool:
        """Whether a unit stays until it is used again. `following` run after it, and then back in backward."""
        if not self.reuse_numel:
            return False
        between = [*following, *reversed(following)]
        between = between[: between.index(unit)] if unit in following else between
        if self.reuse_numel <= sum(map(numel_of, between)):
            return False
        return self.has_room(sum(map(numel_of, set(between))), numel_of(unit))


NO_LIMITS = Stage3Limits()
"""No parameter stays, the next unit is gathered ahead, none is kept."""
