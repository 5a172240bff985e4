"""One way to judge a mistake: a reference says what is right, and each mistake, under the words to say of it, what it
gives. The first that gives what the answer gave is named; the right value is never held to them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

from zerolab.course.judge.case import Case, Observation, once
from zerolab.course.judge.exercise import Test
from zerolab.course.judge.same import Tolerance, alike, difference, short

T = TypeVar("T")


def named(mistakes: Mapping[str, T], gives: Callable[[T], bool]) -> str:
    """What to say of the first mistake that gives what was seen, or ''."""
    return next((says for says, mistake in mistakes.items() if gives(mistake)), "")


# Of each rank.


@dataclass(frozen=True)
class Wanted:
    """What a case should give: rank r's value, and, by what to say of them, the ranks' values that give a mistake away;
    a function of no arguments makes these when an answer is wrong. `look` says where to look if the values are wrong in
    another way, and `dtype` if their dtype is; `did` is the verb, for what is not returned."""

    values: Sequence[Any]
    mistakes: Mapping[str, Sequence[Any]] | Callable[[], Mapping[str, Sequence[Any]]] = field(default_factory=dict)
    look: str = "print it on each rank, and compare with what you expect by hand"
    did: str = "returned"
    dtype: str = "keep the dtype"

    @cached_property
    def known(self) -> Mapping[str, Sequence[Any]]:
        """The mistakes, made once."""
        return self.mistakes() if callable(self.mistakes) else self.mistakes


def right(wanted: Callable[[Case], Wanted], tolerance: Tolerance = 1e-5) -> Test:
    """Every rank's value is the wanted one: numbers of tensors to `tolerance`, all else exactly."""
    wanted = once(wanted)
    return lambda case, seen: compared(wanted(case), seen, tolerance)


def compared(want: Wanted, seen: Observation, tolerance: Tolerance = 1e-5) -> str | None:
    """What to say of the ranks' values, if any is not the wanted one."""
    got = [record.value for record in seen.records]
    wrong = [rank for rank, value in enumerate(got) if not alike(value, want.values[rank], tolerance)]
    if not wrong:
        return None
    rank = wrong[0]
    who = "each rank" if len(wrong) == len(got) > 1 else f"rank {rank}"
    if says := named(want.known, lambda mistake: all(alike(got[r], mistake[r], tolerance) for r in wrong)):
        return f"{who} {want.did} {says}"
    if wrong == [0] and len(got) > 1:
        return "only rank 0 is wrong; does a condition such as `if comm.rank:` skip it?"
    if callable(tolerance) and all(alike(got[one], want.values[one], 1e-5) for one in wrong):
        return f"{who} {want.did} what is right to single precision only: what goes through float32?"
    said = difference(got[rank], want.values[rank], tolerance)
    look = want.dtype if re.search(r"torch\.\w+, not torch\.\w+$", said) else want.look
    return f"rank {rank} {want.did} {said}: {look}"


# Of a plain function.

Say = Callable[[tuple[Any, ...], Any, Any], str]
"""How a value differs: `say(args, got, want)`."""
Mistakes = Mapping[str, Callable[..., Any]]
"""What to say of a mistake, and the function that makes it."""
NEARLY = 1e-9
"""How near a float is to the right one, in relative terms."""


def both(args: tuple[Any, ...], got: Any, want: Any) -> str:
    returned, due = ("None" if value is None else short(value) for value in (got, want))
    return f"you return {returned}, and {due} is due"


def you_say(args: tuple[Any, ...], got: Any, want: Any) -> str:
    return f"you say {short(got)}, and it is {short(want)}"


def answers(reference: Callable[..., Any], mistakes: Mistakes, look: str = "", say: Say = both) -> Test:
    """A plain function returns what `reference` returns, floats nearly so. Of what `mistakes` return instead, it says
    so, and `look` of all else."""
    wanted = once(lambda case: [reference(*args) for args in case.args])

    def test(case: Case, seen: Observation) -> str | None:
        want, got = wanted(case), [record.value for record in seen.records]
        wrong = [rank for rank, value in enumerate(got) if not alike(value, want[rank], NEARLY)]
        if not wrong:
            return None

        def gives(mistake: Callable[..., Any]) -> bool:
            return all(alike(got[rank], mistake(*case.args[rank]), NEARLY) for rank in wrong)

        whose = f"for rank {wrong[0]} " if case.ranks > 1 else ""
        said = f"{whose}{say(case.args[wrong[0]], got[wrong[0]], want[wrong[0]])}"
        says = named(mistakes, gives) or look
        return f"{said}. {says}" if says else said

    return test


# Of a number.


def amount(
    got: Any,
    want: int,
    mistakes: Callable[[], Mapping[str, float | None]],
    unit: str = "bytes",
    counts: str = "and the meter counts",
) -> str | None:
    """What to say of a wrong number, "you say X bytes, and the meter counts Y", and why. A mistake is the number that
    it gives, or True if it was made; they are looked at where a number was returned."""
    if type(got) is int and got == want:
        return None
    said = f"you say {short(got)} {unit}, {counts} {want}"
    if isinstance(got, bool) or not isinstance(got, int | float):
        return f"{said}: return one whole number"
    if got == want:
        return f"{said}. The number is right, but {unit} are whole: divide with //"
    why = named(mistakes(), lambda gives: gives if isinstance(gives, bool) else got == gives)
    return f"{said}. {why}" if why else said
