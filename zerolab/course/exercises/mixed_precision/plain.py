"""Functions and classes that know no ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from zerolab.course.judge.case import Case, Observation
from zerolab.course.judge.model import Gives


@dataclass(frozen=True)
class GivesAlone(Gives):
    """As the model answer; a hint speaks of no rank, or of what stands in the place of ranks."""

    each: str = ""

    def hint(self, case: Case, seen: Observation, earlier: Sequence[Case] = ()) -> str | None:
        hint = super().hint(case, seen, earlier)
        return hint and hint.removeprefix("rank 0 ").replace("for rank", self.each, 1)
