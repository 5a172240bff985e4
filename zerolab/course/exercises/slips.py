"""How a plain function's answer is judged: against the right one, and against those of known slips."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from zerolab.course.judge.case import Case, Observation
from zerolab.course.judge.claims import short
from zerolab.course.judge.exercise import Test

Slips = Mapping[str, Callable[..., Any]]
"""What to say of a mistake, and the function that makes it."""


Say = Callable[[tuple[Any, ...], Any, Any], str]
"""How a value differs: `say(args, got, want)`."""


def both(args: tuple[Any, ...], got: Any, want: Any) -> str:
    returned, due = ("None" if value is None else short(value) for value in (got, want))
    return f"you return {returned}, and {due} is due"


def answers(wanted: Callable[..., Any], slips: Slips, look: str = "", say: Say = both) -> Test:
    """The value is `wanted(*args)`. What a slip gives is answered with the slip's text, all else with `look`."""

    def test(case: Case, seen: Observation) -> str | None:
        args, got = case.args[0], seen.records[0].value
        want = wanted(*args)
        if same(got, want):
            return None
        said = f"{case.about}: {say(args, got, want)}"
        for text, slip in slips.items():
            if same(got, slip(*args)):
                return f"{said}. {text}"
        return f"{said}. {look}" if look else said

    return test


def same(value: Any, want: Any) -> bool:
    """Equal, floating point numbers nearly so; a list stands for a tuple, and nothing else for a whole number."""
    if isinstance(want, float):
        return isinstance(value, int | float) and math.isclose(value, want, rel_tol=1e-9)
    if isinstance(want, list | tuple):
        return isinstance(value, list | tuple) and len(value) == len(want) and all(map(same, value, want))
    if isinstance(want, dict):
        return isinstance(value, dict) and value.keys() == want.keys() and all(same(value[k], want[k]) for k in want)
    return type(value) is type(want) and bool(value == want)
