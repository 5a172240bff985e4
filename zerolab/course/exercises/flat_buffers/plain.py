"""How the plain functions of lesson 02 are judged."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from zerolab.course.judge.case import Case, Observation
from zerolab.course.judge.claims import alike, short
from zerolab.course.judge.exercise import Test

Answer = Callable[..., Any]


def answers(right: Answer, mistakes: Mapping[str, Answer], look: str) -> Test:
    """A plain function returns what `right` returns. `mistakes` are functions that people write instead, by what to
    say of them; `look` is said of all others."""

    def test(case: Case, seen: Observation) -> str | None:
        values = [record.value["first"] for record in seen.records]
        wrong = [i for i, value in enumerate(values) if not alike(value, right(*case.args[i]), 0.0)]
        if not wrong:
            return None
        args, got = case.args[wrong[0]], values[wrong[0]]
        whose = f"for rank {wrong[0]} " if case.ranks > 1 else ""
        said = f"{case.about}: {whose}you say {short(got)}, and it is {short(right(*args))}"
        for says, mistake in mistakes.items():
            if all(alike(values[i], mistake(*case.args[i]), 0.0) for i in wrong):
                return f"{said}. {says}"
        return f"{said}. {look}"

    return test
