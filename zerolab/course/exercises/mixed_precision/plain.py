"""Functions and classes that know no ranks, but are called many times in a case."""

from __future__ import annotations

from collections.abc import Sequence

from zerolab.course.judge.case import Case, Observation
from zerolab.course.judge.model import Gives


class GivesAlone(Gives):
    """As the model answer; a hint speaks of no rank."""

    def hint(self, case: Case, seen: Observation, earlier: Sequence[Case] = ()) -> str | None:
        hint = super().hint(case, seen, earlier)
        return hint and hint.removeprefix("rank 0 ")
