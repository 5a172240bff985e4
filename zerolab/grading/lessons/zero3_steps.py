"""Exercises of lesson 05 on a step as a whole: what it sends, and what its trace gives away."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from zerolab.collectives import Collectives, wire_bytes
from zerolab.grading.case import Case, Observation, plural
from zerolab.grading.claims import short, untouched
from zerolab.grading.exercise import Claim, Exercise, alone

# 5. What a step costs.


Units = Sequence[tuple[int, bool]]


def cost_cases(rng: Random) -> list[Case]:
    patterns = [[True, True], [True, False, True], [False, False, True, True], [False, True, False], [False, False]]
    cases = []
    for ranks in (2, 3, 4, 1, 8):
        for pattern in patterns:
            units = [(ranks * rng.randint(1, 500), trains) for trains in pattern]
            cases.append(cost_case(units, ranks, rng.randint(1, 4), rng.random() < 0.5))
    # On 2 ranks a forgotten (N-1)/N doubles the number, as do micro-batches; on 3 it does not.
    first = [cost_case([(240, True)] * 3, 3, 1, checkpointing) for checkpointing in (False, True)]
    # Here all that one can forget or do too often gives a number of its own.
    first.append(cost_case([(120, False), (240, True), (480, False), (960, True)], 3, 2, False))
    # 24 times an odd number near 2**56 is no float.
    many = cost_case([(3 * rng.randrange(2**56 + 1, 2**57, 2), True)], 3, 1, False)
    return [*first, *cases, many]


def cost_case(units: Units, ranks: int, micro_batches: int, checkpointing: bool) -> Case:
    words = ", ".join(f"{numel}{'' if trains else ' frozen'}" for numel, trains in units)
    said = f"units [{words}], {plural(ranks, 'rank')}, micro_batches={micro_batches}, checkpointing={checkpointing}"
    return Case([(list(units), ranks, micro_batches, checkpointing)], about=said)


def stage3_bytes(
    units: Units,
    ranks: int,
    micro_batches: int = 1,
    forward: int = 1,
    skips_frozen_start: bool = True,
    backward: int = 1,
    reduces_frozen: bool = False,
    gathers_frozen: bool = True,
) -> int:
    """Bytes of a step at stage 3. The last arguments make what is right wrong, to know mistakes by their number."""
    first = next((index for index, (_, trains) in enumerate(units) if trains), len(units))
    gathered = [(numel, index) for index, (numel, trains) in enumerate(units) if trains or gathers_frozen]
    forth = sum(numel for numel, _ in gathered)
    back = sum(numel for numel, index in gathered if index >= first or not skips_frozen_start)
    reduced = sum(numel for numel, trains in units if trains or reduces_frozen)
    # Every unit's length divides, so that a half ring of all is the sum of theirs.
    return micro_batches * wire_bytes("all_gather", forward * forth + backward * back + reduced, 4, ranks, 0)


def cost_right(case: Case, seen: Observation) -> str | None:
    units, ranks, micro_batches, checkpointing = case.args[0]
    want = stage3_bytes(units, ranks, micro_batches)
    got = seen.records[0].value
    if got == want and isinstance(got, int) and not isinstance(got, bool):
        return None
    said = f"{case.about}: you say {short(got)} bytes, and the meter counts {want}"
    if got == want:
        return f"{said}. The number is right, but bytes are whole: divide with //"
    if isinstance(got, int | float) and abs(got - want) * 10**12 < want:
        return f"{said}. Nearly: a fraction in between is rounded, so stay with whole numbers, and divide with //"
    trained = sum(numel for numel, trains in units if trains)
    first = next((index for index, (_, trains) in enumerate(units) if trains), len(units))
    forth, back = sum(numel for numel, _ in units), sum(numel for numel, _ in units[first:])

    def without(numel: int) -> int:
        return want - (micro_batches - 1) * wire_bytes("all_gather", numel, 4, ranks, 0)

    mistakes = {
        "No unit trains: there is no backward, and so nothing to gather for it": (
            0 if trained else stage3_bytes(units, ranks, micro_batches, skips_frozen_start=False)
        ),
        "You reduce once a step; here each micro-batch reduces its gradients": without(trained),
        "You gather once a step for forward; each micro-batch has a forward, and units are released after it": (
            without(forth)
        ),
        "You gather once a step for backward; each micro-batch has a backward, and units are released after it": (
            without(back)
        ),
        "In backward a frozen unit between two that train is needed, too: the gradient passes through it": (
            want - micro_batches * wire_bytes("all_gather", back - trained, 4, ranks, 0)
        ),
        "You gather once; backward needs each unit again": stage3_bytes(units, ranks, micro_batches, backward=0),
        "You gather for recomputing, too; that forward runs inside backward, where the unit is here": (
            stage3_bytes(units, ranks, micro_batches, forward=1 + checkpointing)
        ),
        "In backward you gather units that no gradient passes through: those before the first that trains": (
            stage3_bytes(units, ranks, micro_batches, skips_frozen_start=False)
        ),
        "A frozen unit has no gradient to reduce": stage3_bytes(units, ranks, micro_batches, reduces_frozen=True),
        "A frozen unit has no gradient to reduce, also between two that train": (
            want + micro_batches * wire_bytes("all_gather", back - trained, 4, ranks, 0)
        ),
        "In a frozen unit nothing changes, but its parameters are cut, too, and needed": (
            stage3_bytes(units, ranks, micro_batches, gathers_frozen=False)
        ),
        "That is one micro-batch; each one gathers and reduces anew": stage3_bytes(units, ranks),
        "You counted elements; in fp32 each has 4 bytes": want // 4,
        "You counted 2 bytes each; in fp32 an element has 4": want // 2,
        "A ring of N ranks sends (N-1)/N of a tensor, not all of it": want * ranks // max(ranks - 1, 1),
        "You reduce for everybody: an all_reduce is two half rings, and stage 3 needs the first one only": want
        + micro_batches * wire_bytes("all_gather", trained, 4, ranks, 0),
        **{
            f"So much would {count} micro-batches send": stage3_bytes(units, ranks, count)
            for count in (2, 3, 4)
            if count != micro_batches
        },
    }
    reason = next((says for says, number in mistakes.items() if got == number), "")
    return f"{said}. {reason}" if reason else said


COST = Exercise(
    "step_bytes",
    cost_cases,
    (
        Claim("its list of units stays as it was", untouched(0)),
        Claim("what you predict is what the meter counts", cost_right),
    ),
    run=alone,
    hints=(
        "For each unit: how often is it gathered, how often is its gradient reduced?",
        "A gradient flows back from the loss to the first unit that trains, and through all units between.",
        "All-gather and reduce-scatter cost the same: (N-1)/N of the tensor.",
    ),
)


# 6. A trace.

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
    return f"{case.about}: {said}: what stays from call to call, a default argument, a global?"


def is_a_triple(case: Case, seen: Observation) -> str | None:
    value = seen.records[0].value
    if isinstance(value, list) and len(value) == 3 and isinstance(value[1], list) and isinstance(value[2], list):
        return None
    return f"{case.about}: you return {short(value)}: return a number and two lists, (most, kept, away)"


def most_right(case: Case, seen: Observation) -> str | None:
    trace = case.args[0][0]
    got, want = seen.records[0].value[0], explained(trace)[0]
    if type(got) is int and got == want:
        return None
    said = f"{case.about}: you say that {short(got)} were here at once, and it was {want}"
    if got == explained(trace[:-1])[0]:
        return f"{said}. The last event counts, too: look after an event, not before it"
    if got == most_events(trace, True):
        return f"{said}. To release a unit that is away changes nothing, so nothing is subtracted for it"
    if got == len(explained(trace)[1]):
        return f"{said}. You count at the end; the worst moment may lie before it"
    if got == explained(trace, use_gathers=True)[0]:
        return f"{said}. To use a unit brings it nowhere, only a gather does"
    if got == most_events(trace):
        reason = "A unit is here or not, however often it was gathered, and only one that is here can be released"
        return f"{said}. {reason}"
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
    said = f"{case.about}: you say that {got} were never released, and it is {want}"
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
    said = f"{case.about}: you say that {got} were used while away, and it is {want}"
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


TRACE = Exercise(
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
)
