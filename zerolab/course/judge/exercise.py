"""What an exercise is: the cases that a function is run on, and the claims that what it did is held to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from random import Random
from typing import Any

import torch

from zerolab.course.judge.case import Case, Observation

Test = Callable[[Case, Observation], str | None]
Run = Callable[..., Any]
"""How a learner's function is called on a rank: `run(fn, comm, *args)`."""


def with_comm(fn: Callable[..., Any], comm: Any, *args: Any) -> Any:
    """Call it as a rank function."""
    return fn(comm, *args)


def alone(fn: Callable[..., Any], comm: Any, *args: Any) -> Any:
    """Call it as a plain function, on each rank."""
    return fn(*args)


@dataclass(frozen=True)
class Claim:
    """Something that must hold in every case. `test` returns a hint where it does not: what came out, what was due,
    where to look; the judge puts the case in front. Its own `hints`, if it has some, are given in the place of the
    exercise's."""

    text: str
    test: Test
    hints: tuple[str, ...] = ()


@dataclass(frozen=True)
class Score:
    """A line of the scoreboard: `measure` of the case with `board`, which may be `target` at most, or, with `exactly`,
    neither more nor less. `look` says where the rest may be lost, if need be from what was seen."""

    text: str
    measure: Callable[[Case, Observation], int]
    target: Callable[[Case], int]
    look: str | Callable[[Case, Observation], str]
    exactly: bool = False


@dataclass(frozen=True)
class Exercise:
    """`cases` draws new data for each generator it is given; `claims` come in the order in which to mend them, and
    after them the `scores`. Whoever fails the same claim again is shown one more of the `hints`."""

    name: str
    cases: Callable[[Random], list[Case]]
    claims: tuple[Claim, ...]
    run: Run = with_comm
    scores: tuple[Score, ...] = ()
    hints: tuple[str, ...] = ()
    memory: bool = False
    """Whether `Record.peak` is measured, which slows the answer down."""
    text: str = ""
    """Its title, and below it what learners read, in MyST markdown."""
    answer: tuple[Any, ...] = ()
    """The model answer: a function or a class of the exercise's name, and what else stands in its cell."""
    points: int = 0

    def drawn(self, seed: int) -> list[Case]:
        """The cases of this seed: by themselves, and at the end some that come after another call."""
        cases = self.cases(Random(seed))
        return cases if self.run is alone else [*cases, *after_another(cases, Random(seed))]


def after_another(cases: Sequence[Case], rng: Random) -> list[Case]:
    """Cases that come after another one, so that what an answer keeps from call to call shows: for each number of ranks
    one after the case that is most different from it, and for each way of its switches one after a case that takes the
    same way."""
    quick = [case for case in cases if case.world == "lockstep" and not case.board and not case.before]
    pairs = []
    for ranks in sorted({case.ranks for case in quick}):
        several = [case for case in quick if case.ranks == ranks]
        case = rng.choice(several)
        pairs.append((case, max(rng.sample(several, len(several)), key=lambda other: different(case, other))))
        for way in dict.fromkeys(map(switches, several)):
            alike = [case for case in several if switches(case) == way]
            case = rng.choice(alike)
            others = [other for other in rng.sample(alike, len(alike)) if different(case, other)]
            pairs.append((case, min(others, key=lambda other: different(case, other), default=case)))
    about = "{}, after another call ({})"
    return [
        replace(case, before=other, about=about.format(case.about, other.about))
        for case, other in pairs
        if different(case, other)
    ]


def switches(case: Case) -> tuple[bool, ...]:
    """The arguments of rank 0 that switch something on or off."""
    return tuple(value for value in case.args[0] if isinstance(value, bool))


def different(case: Case, other: Case) -> int:
    """In how many arguments of rank 0 the kinds of two cases differ."""
    return sum(one != two for one, two in zip_longest(map(kind_of, case.args[0]), map(kind_of, other.args[0])))


def kind_of(value: Any) -> Any:
    """What there is to tell of an argument beside its tensors' numbers."""
    if isinstance(value, torch.Tensor):
        return value.dtype, value.shape, value.requires_grad
    if isinstance(value, dict):
        value = list(value.items())
    if isinstance(value, list | tuple):
        return list(map(kind_of, value))
    return value if value is None or isinstance(value, bool | int | float | str) else type(value)
