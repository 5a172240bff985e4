"""A plain function of lesson 02, called a second time: it may remember nothing, and leaves its arguments alone."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

from zerolab.grading.case import Case, Observation, decode, encode
from zerolab.grading.claims import alike, short, untouched
from zerolab.grading.exercise import Claim


def twice(fn: Callable[..., Any], comm: Any, *args: Any) -> dict[str, Any]:
    """What it returns, and what it returns for the same arguments when it is called again."""
    given = deepcopy(args)
    # As plain data at once, since a list may be the function's own, and grow.
    first = decode(encode(fn(*args)))
    return {"first": first, "again": fn(*given)}


def remembers_nothing(case: Case, seen: Observation) -> str | None:
    for record in seen.records:
        first, again = record.value["first"], record.value["again"]
        if not alike(again, first, 0.0):
            said = f"a second call with the same arguments gives {short(again)}, and the first gave {short(first)}"
            return f"{case.about}: {said}: what outlives a call, such as a list that is a default argument?"
    return None


REMEMBERS = Claim("a second call gives the same", remembers_nothing)
LEAVES_ITS_INPUT = Claim("its arguments stay as they were", untouched())
