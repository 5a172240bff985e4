"""A claim of lesson 08 about a run that takes no other rank."""

from __future__ import annotations

from collections.abc import Sequence

from zerolab.course.judge.case import Case, Observation
from zerolab.course.judge.model import Gives


class Single(Gives):
    """Its hints say whose run it was themselves: it is always rank 0's that is seen."""

    def hint(self, case: Case, seen: Observation, earlier: Sequence[Case] = ()) -> str | None:
        said = super().hint(case, seen, earlier)
        return said and said.removeprefix("rank 0 ")
