"""A few runs in the place of all: what must occur in a run, such as each stage with each tier, occurs in one."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import combinations
from typing import TypeVar

import pytest

NIGHTLY = bool(os.environ.get("ZEROLAB_NIGHTLY"))
"""Whether all is run that a choice stands for elsewhere (`make nightly`)."""
EVERY_ANSWER = NIGHTLY or bool(os.environ.get("ZEROLAB_EVERY_ANSWER"))
"""Whether each wrong answer in the zoo is tried, as `make quick` does with those to an exercise that changed."""


def nightly(why: str) -> pytest.MarkDecorator:
    """A test that waits for the night, and why it may: what holds its claim by day, or what it takes."""
    return pytest.mark.skipif(not NIGHTLY, reason=f"{why}; nightly")


Run = TypeVar("Run", bound=Hashable)


def covering(
    runs: Sequence[Run], shows: Callable[[Run], Iterable[Hashable]], cost: Callable[[Run], float] = lambda run: 1.0
) -> list[Run]:
    """A cheap choice of `runs`, in their order, of which each thing that a run `shows` is shown by one; nightly all."""
    return list(runs) if NIGHTLY else chosen(runs, shows, cost)


def chosen(
    runs: Sequence[Run], shows: Callable[[Run], Iterable[Hashable]], cost: Callable[[Run], float] = lambda run: 1.0
) -> list[Run]:
    """The choice, by night as by day: greedy, the same every time, and not the least that there is."""
    shown = {run: set(shows(run)) for run in runs}
    missing: set[Hashable] = set().union(*shown.values())
    taken = set()
    while missing:
        best = max(shown, key=lambda run: len(shown[run] & missing) / cost(run))
        taken.add(best)
        missing -= shown[best]
    return [run for run in runs if run in taken]


def pairs(*values: Hashable) -> set[Hashable]:
    """Each two of the values that make a run, such as its stage and its tier, each with its place."""
    return set(combinations(enumerate(values), 2))
