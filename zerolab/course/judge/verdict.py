"""The verdict on what was seen of an answer: a finding for each claim, and for each line of the scoreboard."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import zip_longest

from zerolab.course.judge.advice import hint_for
from zerolab.course.judge.case import Case, Observation, legible
from zerolab.course.judge.claims import ANEW, with_defaults
from zerolab.course.judge.exercise import Claim, Exercise, Score, alone
from zerolab.course.judge.model import does, read_mistakes
from zerolab.errors import RankError


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


def judge(exercise: Exercise, cases: Sequence[Case], seen: Sequence[Observation]) -> list[Finding]:
    """A finding for each claim, the first being that the function runs at all. Claims rest on those before them, so
    nothing is said of a claim after one that does not hold. What came of calls by themselves says more than what came
    of those after another, so all claims are held to the former first."""
    single = exercise.run is alone or all(case.ranks == 1 for case in cases)
    ends = Claim("it runs to the end" if single else "it runs to the end on every rank", partial(runs, exercise))
    claims = [ends, *with_defaults(exercise)]
    rest = len(by_themselves(cases))
    findings = held_to(claims, cases[:rest], seen[:rest])
    right = all(finding.holds for finding in findings)
    if rest < len(cases):
        later = held_to([*claims, ANEW], cases[rest:], seen[rest:]) if right else [Finding("", None)]
        worst = next((finding for finding in later if finding.hint), later[-1])
        findings.append(replace(worst, text=ANEW.text))
        right = worst.holds is True
    return [*findings, *(scored(exercise, score, cases, seen, right) for score in exercise.scores)]


def by_themselves(cases: Sequence[Case]) -> Sequence[Case]:
    """The cases that come after no other call; those that do are the last."""
    return cases[: sum(case.before is None for case in cases)]


def held_to(claims: Sequence[Claim], cases: Sequence[Case], seen: Sequence[Observation]) -> list[Finding]:
    """A finding for each claim; what comes after one that does not hold is not reached."""
    findings: list[Finding] = []
    for at, claim in enumerate(claims):
        hint, printed = first_hint(claim, cases, seen)
        findings.append(Finding(claim.text, not hint, hint, printed=printed))
        if hint:
            return [*findings, *(Finding(unreached.text, None) for unreached in claims[at + 1 :])]
    return findings


def scored(
    exercise: Exercise, score: Score, cases: Sequence[Case], seen: Sequence[Observation], right: bool
) -> Finding:
    """A line of the scoreboard. Speed and size mean nothing while values are wrong, so then it is not reached."""
    boards = [pair for pair in zip(cases, seen, strict=False) if pair[0].board and right]
    if not boards:
        return Finding(score.text, None)
    case, observation = boards[0]
    yours = score.measure(case, observation)
    target = score.target(case) if score.target else score.measure(case, does(exercise, case)) + score.slack
    bound, holds = ("exactly", yours == target) if score.exactly else ("at most", yours <= target)
    if holds:
        return Finding(score.text, True, "", yours, target)
    wastes = ((says, does(exercise, case, change)) for says, change in read_mistakes(score.wastes).items())
    same = (says for says, made in wastes if not made.trouble and score.measure(case, made) == yours)
    look = next(same, score.look if isinstance(score.look, str) else score.look(case, observation))
    hint = f"{case.about}: {score.text}: {yours:,}, and the target is {bound} {target:,}: {look}"
    return Finding(score.text, False, hint, yours, target, observation.printed)


def first_hint(claim: Claim, cases: Sequence[Case], seen: Sequence[Observation]) -> tuple[str, str]:
    for at, (case, observation) in enumerate(zip_longest(cases, seen, fillvalue=None)):
        if case is None or observation is None:
            return "it ended before every case had run: do not end the process or its threads", ""
        try:
            hint = claim.hint(case, observation, cases[:at])
        except RankError:  # the model answer's own: nobody's points are taken
            raise
        except Exception as error:  # whatever an answer may return, judging it goes on
            hint = f"what it returned cannot be judged ({type(error).__name__}: {error}): return what the text asks for"
        if hint:
            told = observation.trouble or hint.startswith(case.about)
            hint = hint if told else f"{case.about}: {hint}"
            late = observation.trouble and observation.trouble.kind == "TimeOut"
            return legible(f"{hint} {STAYS}" if case.before and not late else hint), observation.printed
    return "", ""


STAYS = "(by itself the same call is right: what stays from call to call?)"


def runs(exercise: Exercise, case: Case, seen: Observation) -> str | None:
    if trouble := seen.trouble:
        hint = hint_for(trouble, case)
        stuck = ((says, does(exercise, case, change).trouble) for says, change in read_mistakes(exercise.stuck).items())
        same = (f"{hint} {says}" for says, met in stuck if met and replace(met, where=trouble.where) == trouble)
        return next(same, hint)
    return None if len(seen.records) == case.ranks else f"{len(seen.records)} of {case.ranks} ranks came to their end"
