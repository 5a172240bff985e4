"""An exercise: the cases that a function is run on, and the claims that what it did is held to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from random import Random
from typing import Any

import torch

from zerolab.course.judge.advice import hint_for
from zerolab.course.judge.case import Case, Observation, legible

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
    """Something that must hold in every case. `test` returns a hint where it does not: what was tried, what came out,
    what was expected. Its own `hints`, if it has some, are given in the place of the exercise's."""

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


@dataclass(frozen=True)
class Finding:
    """What became of one claim: True, False with a hint, or None where it was not reached; a score's has numbers. Where
    it does not hold, `printed` is what the answer printed in that case."""

    text: str
    holds: bool | None
    hint: str = ""
    yours: int | None = None
    target: int | None = None
    printed: str = ""


RUNS, RUNS_ALONE = "it runs to the end on every rank", "it runs to the end"


def judge(exercise: Exercise, cases: Sequence[Case], seen: Sequence[Observation]) -> list[Finding]:
    """A finding for each claim, the first being that the function runs at all. Claims rest on those before them, so
    nothing is said of a claim after one that does not hold. What came of calls by themselves says more than what came
    of those after another, so all claims are held to the former first."""
    single = exercise.run is alone or all(case.ranks == 1 for case in cases)
    claims = [Claim(RUNS_ALONE if single else RUNS, runs), *exercise.claims]
    first = by_themselves(cases)
    findings = held_to(claims, first, seen[: len(first)])
    if all(finding.holds for finding in findings):
        rest = len(first)
        findings = held_to(claims, cases[rest:], seen[rest:])
    right = all(finding.holds for finding in findings)
    return [*findings, *(scored(score, cases, seen, right) for score in exercise.scores)]


def by_themselves(cases: Sequence[Case]) -> Sequence[Case]:
    """The cases that come after no other call; those that do are the last."""
    return cases[: sum(case.before is None for case in cases)]


def held_to(claims: Sequence[Claim], cases: Sequence[Case], seen: Sequence[Observation]) -> list[Finding]:
    """A finding for each claim; what comes after one that does not hold is not reached."""
    findings: list[Finding] = []
    hint = ""
    for claim in claims:
        if hint:
            findings.append(Finding(claim.text, None))
            continue
        hint, printed = first_hint(claim, cases, seen)
        findings.append(Finding(claim.text, not hint, hint, printed=printed))
    return findings


def scored(score: Score, cases: Sequence[Case], seen: Sequence[Observation], right: bool) -> Finding:
    """A line of the scoreboard. Speed and size mean nothing while values are wrong, so then it is not reached."""
    case, observation = next((pair for pair in zip(cases, seen, strict=False) if pair[0].board), (None, None))
    if not right or case is None or observation is None:
        return Finding(score.text, None)
    yours, target = score.measure(case, observation), score.target(case)
    holds = yours == target if score.exactly else yours <= target
    bound = "exactly" if score.exactly else "at most"
    if holds:
        return Finding(score.text, True, "", yours, target)
    look = score.look if isinstance(score.look, str) else score.look(case, observation)
    hint = f"{case.about}: {score.text}: {yours:,}, and the target is {bound} {target:,}: {look}"
    return Finding(score.text, False, hint, yours, target, observation.printed)


def first_hint(claim: Claim, cases: Sequence[Case], seen: Sequence[Observation]) -> tuple[str, str]:
    """The hint of the first case in which a claim does not hold, or '', and what was printed in that case."""
    for case, observation in zip_longest(cases, seen, fillvalue=None):
        if case is None or observation is None:
            return "it ended before every case had run: do not end the process or its threads", ""
        try:
            hint = claim.test(case, observation)
        except Exception as error:  # whatever an answer may return, judging it goes on
            hint = f"what it returned cannot be judged ({type(error).__name__}: {error}): return what the text asks for"
        if hint:
            return legible(f"{hint} {STAYS}" if case.before else hint), observation.printed
    return "", ""


STAYS = "(by itself the same call is right: what stays from call to call?)"


def runs(case: Case, seen: Observation) -> str | None:
    """A hint unless every rank has come to its end."""
    if seen.trouble:
        return hint_for(seen.trouble, case)
    return None if len(seen.records) == case.ranks else f"{len(seen.records)} of {case.ranks} ranks came to their end"
