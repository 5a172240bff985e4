"""The exercise of lesson 05 on a trace: what was here at once, never released, or used while away."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from zerolab.collectives import Collectives
from zerolab.course.judge.case import Case, Observation
from zerolab.course.judge.claims import untouched
from zerolab.course.judge.exercise import Claim, Exercise
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


Event = tuple[str, str]


def drawn_trace(rng: Random) -> list[Event]:
    """Gather, use and release units a few times, with some events left out or doubled."""
    trace: list[Event] = []
    for unit in [*rng.sample("abc", 3), *rng.sample("abc", rng.randint(0, 1))]:
        events = [(event, unit) for event in ("gather", "use", "release")]
        fault = rng.choice(["", "gather", "release", "twice"])
        events = [event for event in events if event[0] != fault]
        if fault == "twice":
            events.insert(1, events[0])
        # Ahead of what the unit before still does, as prefetching has it.
        at = max(0, len(trace) - rng.randint(0, 1))
        trace = [*trace[:at], events[0], *trace[at:], *events[1:]]
    return trace


def in_short(trace: Sequence[Event]) -> str:
    return ", ".join(f"{event} {unit}" for event, unit in trace)


TRACES: list[list[Event]] = [
    [("gather", "a"), ("use", "a"), ("release", "a"), ("gather", "b"), ("use", "b"), ("release", "b")],
    [("gather", "a"), ("use", "a"), ("gather", "b"), ("use", "b"), ("release", "b")],
    [("gather", "a"), ("use", "a"), ("release", "a"), ("use", "a"), ("gather", "b"), ("use", "b"), ("release", "b")],
    [("gather", "a"), ("use", "a"), ("release", "a"), ("gather", "a"), ("use", "a")],
    [
        *(("gather", "a"), ("gather", "a"), ("release", "a"), ("release", "a")),
        *(("gather", "b"), ("gather", "c"), ("use", "b"), ("use", "c"), ("release", "b"), ("release", "c")),
    ],
    [("gather", "a"), ("gather", "a"), ("use", "a"), ("release", "a")],
    [("gather", "b"), ("gather", "a"), ("use", "b"), ("use", "c"), ("use", "c"), ("release", "d")],
    [
        ("use", "a"),
        ("gather", "a"),
        ("use", "a"),
        ("release", "a"),
        ("release", "a"),
        ("gather", "b"),
        ("release", "b"),
    ],
    [*(("gather", unit) for unit in "egbfad"), *(("use", unit) for unit in "nkpmlo")],
    # The most are here where nothing is used.
    [("gather", "a"), ("gather", "b"), ("release", "b"), ("use", "a"), ("release", "a"), ("use", "b")],
    [("gather", "a")],
    [],
]


def trace_cases(rng: Random) -> list[Case]:
    traces = [*TRACES, *(drawn_trace(rng) for _ in range(12))]
    return [Case([([list(event) for event in trace],)], about=f"[{in_short(trace)}]") for trace in traces]


def explained(trace: Sequence[Sequence[str]], use_gathers: bool = False) -> list[Any]:
    """[the most units here at once, those here at the end, those used while away]. With `use_gathers`, wrongly, a use
    brings a unit."""
    here: set[str] = set()
    away: set[str] = set()
    most = 0
    for event, unit in trace:
        if event == "gather":
            here.add(unit)
        elif event == "release":
            here.discard(unit)
        elif unit not in here:
            away.add(unit)
            here |= {unit} if use_gathers else set()
        most = max(most, len(here))
    return [most, sorted(here), sorted(away)]


EARLIER = [("use", "z"), ("gather", "y")]


def run_after(fn: Callable[..., Any], comm: Collectives, trace: list[Any]) -> Any:
    """The answer's second call, after one with another trace."""
    fn([list(event) for event in EARLIER])
    return fn(trace)


def each_anew(case: Case, seen: Observation) -> str | None:
    _, kept, away = seen.records[0].value
    if not {"y", "z"} & set(kept + away):
        return None
    said = f"you return {short(seen.records[0].value)}, with a unit of the trace of an earlier call"
    return f"{said}: what stays from call to call, a default argument, a global?"


def is_a_triple(case: Case, seen: Observation) -> str | None:
    value = seen.records[0].value
    if isinstance(value, list) and len(value) == 3 and isinstance(value[1], list) and isinstance(value[2], list):
        return None
    return f"you return {short(value)}: return a number and two lists, (most, kept, away)"


def most_right(case: Case, seen: Observation) -> str | None:
    trace = case.args[0][0]
    got, want = seen.records[0].value[0], explained(trace)[0]
    if type(got) is int and got == want:
        return None
    said = f"you say that {short(got)} were here at once, and it was {want}"
    if got == explained(trace[:-1])[0]:
        return f"{said}. The last event counts, too: look after an event, not before it"
    if got == most_events(trace, True):
        return f"{said}. To release a unit that is away changes nothing, so nothing is subtracted for it"
    if got == len(explained(trace)[1]):
        return f"{said}. You count at the end; the worst moment may lie before it"
    if got == explained(trace, use_gathers=True)[0]:
        return f"{said}. To use a unit brings it nowhere, only a gather does"
    if not trace:
        return f"{said}. Before the first event nothing is here: begin at 0"
    if got == most_events(trace):
        reason = "A unit is here or not, however often it was gathered, and only one that is here can be released"
        return f"{said}. {reason}"
    if got == most_gathers(trace):
        return f"{said}. To gather a unit that is here changes nothing, so nothing is added for it"
    if got == most_used(trace):
        return f"{said}. The worst moment need not be one in which something is used: look after each event"
    if got == len({unit for _, unit in trace}):
        return f"{said}. You count all units; some are gone before others come"
    return said


def most_events(trace: Sequence[Sequence[str]], releases: bool = False) -> int:
    """The most, if events are counted and not units; or `releases` alone, and a gather counts where it brings one."""
    count = most = 0
    here: set[str] = set()
    for event, unit in trace:
        count += (event == "gather" and not (releases and unit in here)) - (event == "release")
        here = here | {unit} if event == "gather" else here - {unit} if event == "release" else here
        most = max(most, count)
    return most


def most_gathers(trace: Sequence[Sequence[str]]) -> int:
    """The most, if each gather counts, and a release where it sends a unit away."""
    here: set[str] = set()
    count = most = 0
    for event, unit in trace:
        count += (event == "gather") - (event == "release" and unit in here)
        here = here | {unit} if event == "gather" else here - {unit} if event == "release" else here
        most = max(most, count)
    return most


def most_used(trace: Sequence[Sequence[str]]) -> int:
    """The most, if only uses and the end are looked at."""
    places = [at for at, (event, _) in enumerate(trace, 1) if event == "use"]
    return max(len(explained(trace[:at])[1]) for at in [*places, len(trace)])


def more_gathered(trace: Sequence[Sequence[str]]) -> list[str]:
    """The units with more gathers than releases."""
    events = [tuple(event) for event in trace]
    units = {unit for _, unit in trace}
    return sorted(unit for unit in units if events.count(("gather", unit)) > events.count(("release", unit)))


def kept_right(case: Case, seen: Observation) -> str | None:
    trace = case.args[0][0]
    got, want = seen.records[0].value[1], explained(trace)[1]
    if got == want:
        return None
    said = f"you say that {got} were never released, and it is {want}"
    if sorted(set(got)) == want:
        return f"{said}. Name each once, in the order of the alphabet"
    if sorted(got) == more_gathered(trace):
        return f"{said}. However often a unit was gathered, one release sends it away"
    if sorted(got) == sorted({unit for event, unit in trace if event == "gather"} - released(trace)):
        return f"{said}. A unit may be released and gathered once more: what counts is where it is at the end"
    if set(got) > set(want):
        return f"{said}. What was never gathered cannot be left over"
    return said


def released(trace: Sequence[Sequence[str]]) -> set[str]:
    return {unit for event, unit in trace if event == "release"}


def away_right(case: Case, seen: Observation) -> str | None:
    trace = case.args[0][0]
    got, want = seen.records[0].value[2], explained(trace)[2]
    if got == want:
        return None
    said = f"you say that {got} were used while away, and it is {want}"
    if sorted(set(got)) == want:
        return f"{said}. Each unit once, in the order of the alphabet, however often it was used"
    gathered: set[str] = set()
    never: set[str] = set()
    for event, unit in trace:
        if event == "gather":
            gathered.add(unit)
        elif event == "use" and unit not in gathered:
            never.add(unit)
    if set(got) == never:
        return f"{said}. A unit that was gathered once may have been released since"
    return said


EXERCISE = Exercise(
    "explain_trace",
    trace_cases,
    (
        Claim("it returns a number and two lists", is_a_triple),
        Claim("each call begins anew", each_anew),
        Claim("it finds the most units that are here at once", most_right),
        Claim("it finds what was never released", kept_right),
        Claim("it finds what was used while away", away_right),
        Claim("its trace stays as it was", untouched(0)),
    ),
    run=run_after,
    hints=(
        "Walk through the trace once, with the set of units that are here.",
        "A second set takes the units that are used while they are not in the first.",
    ),
    text=TEXT,
    answer=(explain_trace,),
    points=1,
)
