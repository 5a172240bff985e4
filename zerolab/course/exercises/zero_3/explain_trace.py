"""The exercise of lesson 05 on a trace: what was here at once, never released, or used while away."""

from __future__ import annotations

from random import Random

from zerolab.course.judge.case import Case
from zerolab.course.judge.exercise import Claim, Exercise, alone
from zerolab.course.judge.model import Gives, Say
from zerolab.course.judge.same import short

TEXT = """
Read a trace

Somebody's stage 3 wrote down what it did, as a list of `(event, unit)`:

    [("gather", "a"), ("use", "a"), ("gather", "b"), ("use", "b"), ("release", "b"), ("use", "c")]

A unit is *here* from its gather to its release. To gather a unit that is here changes nothing, nor does it to release
one that is away. A unit may come and go several times. Return three things:

- the most units that were here at one moment,
- a list of the units that are still here at the end,
- a list of the units that were used at least once while away.

Leave the trace as it is. Lists are sorted, and name each unit once. In the example: `(2, ["a"], ["c"])`. The check
draws traces in which gathers and releases are missing or doubled. About eleven lines.
"""


def explain_trace(trace: list[tuple]) -> tuple[int, list[str], list[str]]:
    """(the most units here at once, those never released, those used while away)."""
    ### BEGIN SOLUTION
    here, away, most = set(), set(), 0
    for event, unit in trace:
        if event == "gather":
            here.add(unit)
        elif event == "release":
            here.discard(unit)
        elif unit not in here:
            away.add(unit)
        most = max(most, len(here))
    return most, sorted(here), sorted(away)
    ### END SOLUTION


MISTAKES = r"""
The last event counts, too: look after an event, not before it
    in trace: => in trace[:-1]:
You count at the end; the worst moment may lie before it
    return most => return len(here)
To use a unit brings it nowhere, only a gather does
    away.add(unit) => away.add(unit)\n            here.add(unit)
A unit is here or not, however often it was gathered, and only one that is here can be released
    away, most = set(), set(), 0 => away, count, most = set(), set(), 0, 0
    here.add(unit) => count += 1\n            here.add(unit)
    here.discard(unit) => count -= 1\n            here.discard(unit)
    len(here)) => count)
The worst moment need not be one in which something is used: look after each event
    most = max( => if event == "use":\n            most = max(
    return most => return max(most, len(here))
You count all units; some are gone before others come
    return most => return len({unit for _, unit in trace})
However often a unit was gathered, one release sends it away
    sorted(here) => sorted({u for _, u in trace if trace.count(("gather", u)) > trace.count(("release", u))})
A unit may be released and gathered once more: what counts is where it is at the end
    sorted(here) => sorted(unit for unit in here if ("release", unit) not in trace)
A unit that was gathered once may have been released since
    unit not in here => ("gather", unit) not in trace
"""
TRACES = (
    "+a .a -a +b .b -b",
    "+a .a +b",
    "+a .a -a .a +b .b -b",
    "+a .a -a +a .a",
    "+a +a -a -a +b +c .b .c -b -c",
    ".a +a .a -a -a +b -b",
    "+e +g +b +f +a +d .n .k .p .m .l .o",
    # The most are here where nothing is used.
    "+a +b -b .a -a .b",
    "+a",
    "",
)
"""Gathers (+), uses (.) and releases (-) of units."""
EVENTS = {"+": "gather", ".": "use", "-": "release"}


def trace_cases(rng: Random) -> list[Case]:
    drawn = [" ".join(rng.choice("+..-") + rng.choice("abc") for _ in range(rng.randint(5, 12))) for _ in range(12)]
    traces = [[(EVENTS[word[0]], word[1:]) for word in text.split()] for text in (*TRACES, *drawn)]
    return [Case([(trace,)], about=f"[{', '.join(map(' '.join, trace))}]") for trace in traces]


def were(what: str) -> Say:
    return lambda args, got, want: f"you say that {short(got)} were {what}, and it is {short(want)}"


EXERCISE = Exercise(
    "explain_trace",
    trace_cases,
    (
        Claim("it finds the most units that are here at once", Gives(lambda of: of.value[0], say=were("here at once"))),
        Claim("it finds what was never released", Gives(lambda of: of.value[1], say=were("never released"))),
        Claim("it finds what was used while away", Gives(lambda of: of.value[2], say=were("used while away"))),
    ),
    run=alone,
    hints=(
        "Walk through the trace once, with the set of units that are here.",
        "A second set takes the units that are used while they are not in the first.",
    ),
    mistakes=MISTAKES,
    text=TEXT,
    answer=(explain_trace,),
    points=1,
)
