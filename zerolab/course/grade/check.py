"""The learner's own check, in the notebook: quick, on fresh data, one line a claim."""

from __future__ import annotations

import inspect
import secrets
import textwrap
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from zerolab.course.exercises import exercises_of
from zerolab.course.grade.needs import globals_by_name, mend_first, sources_beside, uses
from zerolab.course.grade.runner import observe_function
from zerolab.course.judge.bounds import offence
from zerolab.course.judge.case import Observation, plural
from zerolab.course.judge.exercise import Exercise
from zerolab.course.judge.verdict import Finding, judge
from zerolab.errors import InputError, RankError, ZerolabError
from zerolab.ranks.forkserver import start_server

MARKS = {True: "ok", False: "NO", None: "--"}


class CheckFailed(ZerolabError):  # noqa: N818 (it reads as a sentence in the cell)
    """An answer does not hold yet. A notebook shows the sentence, without a traceback."""

    def _render_traceback_(self) -> list[str]:
        return [str(self)]


class Checks:
    """`checks("01_ring_collectives").ring_all_gather(fn)` runs fn on ranks and prints what holds."""

    def __init__(self, lesson: str) -> None:
        self._exercises = exercises_of(lesson)
        self._failed: dict[str, Failed] = {}

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name.startswith("_") or name not in self._exercises:
            raise AttributeError(f"there is no exercise {name!r}; choose one of {', '.join(self._exercises)}")
        names = list(self._exercises)
        earlier = [self._exercises[other] for other in names[: names.index(name)]]
        return partial(run_check, self._exercises[name], earlier=earlier, failed=self._failed)

    def __dir__(self) -> list[str]:
        return list(self._exercises)


def checks(lesson: str) -> Checks:
    """The checks of a lesson, one for each of its exercises. While one reads the first of them, the server from which
    checks fork their processes imports what they need."""
    made = Checks(lesson)
    start_server()
    return made


def run_check(
    exercise: Exercise, fn: Callable[..., Any], *, earlier: Sequence[Exercise], failed: dict[str, Failed]
) -> None:
    """Print a finding for each claim, and at the end that all hold, with the points that this brings; raise
    CheckFailed, with a hint, unless they do. The hint sends to one of the `earlier` exercises if `fn` uses an answer to
    it that does not hold. With each time that a claim fails again, of which `failed` knows, comes one more hint."""
    if not callable(fn):
        raise InputError(f"{exercise.name} is {fn!r}; pass your function itself, without calling it")
    seed = secrets.randbelow(2**32)
    findings = examine(exercise, fn, seed)
    print(report(exercise.name, findings))
    if printed := next((finding.printed for finding in findings if finding.printed), ""):
        print(f"      what it printed in the case that does not hold\n{textwrap.indent(printed, '      ')}")
    if all(finding.holds for finding in findings):
        worth = f": {exercise.points} of {plural(exercise.points, 'point')}" if exercise.points else ""
        print(f"{exercise.name} holds{worth}.")
        return
    if cause := first_fault(exercise.name, fn, earlier, seed):
        findings = mend_first(findings, [cause])
    first = next(finding for finding in findings if finding.hint)
    began = not cause and not first.hint.startswith("not written yet")
    further = next_hint(exercise, first.text, failed) if began else ""
    raise CheckFailed(f"{exercise.name} does not hold yet: {first.hint}{further}") from None


@dataclass
class Failed:
    """Which claim of an exercise failed last, and how many have been given of each set of hints."""

    claim: str = ""
    given: Counter[tuple[str, ...]] = field(default_factory=Counter)


def next_hint(exercise: Exercise, claim: str, failed: dict[str, Failed]) -> str:
    """One more of the claim's own hints, and then of the exercise's others, if the claim that failed is the one that
    failed last; after the last hint, that one again."""
    memory = failed.setdefault(exercise.name, Failed())
    again, memory.claim = claim == memory.claim, claim
    own = (hint for one in exercise.claims if one.text == claim for hint in one.hints)
    hints = tuple(dict.fromkeys((*own, *exercise.hints)))
    if not again or not hints:
        return ""
    given = memory.given[hints] = min(memory.given[hints] + 1, len(hints))
    return f"\nHint {given} of {len(hints)}: {hints[given - 1]}"


def first_fault(name: str, fn: Callable[..., Any], earlier: Sequence[Exercise], seed: int) -> str | None:
    used = uses(name, globals_by_name(sources_beside(fn)))
    names = getattr(fn, "__globals__", {})
    for exercise in earlier:
        answer = names.get(exercise.name) if exercise.name in used else None
        if answer and not all(finding.holds for finding in examine(exercise, answer, seed)):
            return exercise.name
    return None


def examine(exercise: Exercise, fn: Callable[..., Any], seed: int) -> list[Finding]:
    """Run `fn` on cases of this seed, in a process of its own, and judge here what it did there."""
    cases, found = exercise.drawn(seed), None
    with suppress(OSError, TypeError):
        found = offence(textwrap.dedent(inspect.getsource(fn)), getattr(fn, "__name__", ""))
    # Python has read it: of a lambda, a part of a line may be cut out that is none by itself.
    runs = found is None or found.kind == "SyntaxError"
    try:
        return judge(exercise, cases, observe_function(exercise, fn, cases) if runs else [Observation(trouble=found)])
    except RankError as error:
        raise CheckFailed(f"{exercise.name} could not be checked: {error}") from None


def report(name: str, findings: Sequence[Finding]) -> str:
    """The findings as text, the same for every seed while all claims hold; the scoreboard as a table below."""
    lines = [f"  {MARKS[finding.holds]}  {finding.text}" for finding in findings if finding.target is None]
    board = [finding for finding in findings if finding.target is not None]
    if board:
        width = max(len(finding.text) for finding in board)
        lines.append(f"      {'scoreboard':{width}}  {'yours':>12}  {'target':>12}")
        for finding in board:
            numbers = f"{finding.yours:12,}  {finding.target:12,}"
            lines.append(f"  {MARKS[finding.holds]}  {finding.text:{width}}  {numbers}")
    return "\n".join([name, *lines])
