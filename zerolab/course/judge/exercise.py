"""What an exercise is: the cases that a function is run on, and the claims that what it did is held to."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from random import Random
from typing import Any

import torch

from zerolab.course.judge.case import Case, Observation, plural

Test = Callable[[Case, Observation], str | None]
"""Or an object whose `bound` is told the exercise, and whose `hint` the cases before, too, such as a `Gives`."""
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
    where to look; the judge puts the case in front. Its own `hints` are given before the exercise's."""

    text: str
    test: Test | Any
    hints: tuple[str, ...] = ()

    def hint(self, case: Case, seen: Observation, earlier: Sequence[Case] = ()) -> str | None:
        return self.test.hint(case, seen, earlier) if hasattr(self.test, "hint") else self.test(case, seen)


@dataclass(frozen=True)
class Score:
    """A line of the scoreboard: `measure` of the case with `board`, which may be `target` at most, or, with `exactly`,
    neither more nor less. Without a target it is what the model answer takes, and `slack`. `look` says where the rest
    may be lost, if need be from what was seen; `wastes` are mistakes that lose it, by what to say of them."""

    text: str
    measure: Callable[[Case, Observation], int]
    target: Callable[[Case], int] | None
    look: str | Callable[[Case, Observation], str]
    exactly: bool = False
    slack: int = 0
    wastes: str = ""


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
    mistakes: str = ""
    """What to say of each mistake that learners make, and the program, as `read_mistakes` takes them."""
    stuck: str = ""
    """Such mistakes that do not come to their end; they run only where an answer did not, either."""
    without: frozenset[str] = frozenset()
    """Which of the defaults it is not held to: shape, inputs, dtype, left, late."""

    def __post_init__(self) -> None:
        bound = [replace(one, test=one.test.bound(self)) if hasattr(one.test, "bound") else one for one in self.claims]
        object.__setattr__(self, "claims", tuple(bound))

    def drawn(self, seed: int) -> list[Case]:
        """The cases of this seed: by themselves, and at the end those in lockstep once more, each after the other."""
        cases = [case if case.about else replace(case, about=call_of(self, case)) for case in self.cases(Random(seed))]
        assert not self.scores or any(case.board for case in cases), f"{self.name} needs a case with board=True"
        return [*cases, *one_after_another(cases, self.run is alone)]


def call_of(exercise: Exercise, case: Case) -> str:
    """Which case it is: the call itself, or, of ranks, what rank 0 is given."""
    called = exercise.answer[0] if exercise.run in (with_comm, alone) else exercise.run
    names = [name for name in inspect.signature(called).parameters if name not in ("self", "fn", "comm")]
    told = (f"{name}={described(value)}" for name, value in zip(names, case.args[0], strict=False))
    given = few(", ".join(told), 200)
    if exercise.run is alone and case.ranks == 1:
        return f"{exercise.name}({given})"
    where = " (real processes)" if case.world == "processes" else ""
    return f"on {plural(case.ranks, 'rank')}{where}, {given}"


def described(value: Any) -> str:
    """An argument in few words: plain data as Python has it, of tensors the shape, and the dtype if it is not fp32."""
    if isinstance(value, torch.Tensor):
        kind = "" if value.dtype is torch.float32 else f" {str(value.dtype).removeprefix('torch.')}"
        return f"<{'x'.join(map(str, value.shape)) or 'scalar'}{kind}>"
    if isinstance(value, list | tuple) and (has_tensors(value) or not value):
        told = [described(one) for one in value]
        return f"[{told[0]}] * {len(told)}" if len(told) > 2 and len(set(told)) == 1 else f"[{', '.join(told)}]"
    if isinstance(value, dict) and has_tensors([*value.values()]):
        return "{" + ", ".join(f"{key!r}: {described(one)}" for key, one in value.items()) + "}"
    return few(repr(value))


def few(words: str, most: int = 60) -> str:
    return words if len(words) <= most else f"{words[: most - 3]}..."


def has_tensors(values: Sequence[Any]) -> bool:
    return any(isinstance(one, torch.Tensor) or (isinstance(one, list | tuple) and has_tensors(one)) for one in values)


def one_after_another(cases: Sequence[Case], plain: bool) -> list[Case]:
    """Cases that come after another one, so that what an answer keeps from call to call shows: for each number of ranks
    all that do not fill the scoreboard, in their order; of a `plain` function all together."""
    alike: dict[Any, list[Case]] = {}
    for case in cases:
        if case.world == "lockstep" and not case.board:
            alike.setdefault(None if plain else (case.ranks, case.link), []).append(case)
    return [
        replace(case, before=before, itself=case, about=f"{case.about}, after another call ({few(before.about)})")
        for group in alike.values()
        for before, case in pairwise(group)
    ]
