"""The exercise of lesson 09 on a trace: where a step's time goes, and what costs most of it.

Traces are those of steps that ranks really take in lockstep: layers that spend time, and collectives on a link."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import torch

from zerolab.collectives import Collectives, Handle, Link
from zerolab.collectives.cost import RINGS
from zerolab.collectives.observe import merge
from zerolab.course.judge.case import Case, Observation, plural
from zerolab.course.judge.claims import untouched
from zerolab.course.judge.exercise import Claim, Exercise, alone
from zerolab.course.judge.mistakes import named
from zerolab.course.judge.same import short
from zerolab.ranks import launch, spend

TEXT = """
Where does the time go?

A step is slower than it should be. Its trace says why: is one rank late, does the wire carry too much, are there too
many messages, or is nothing wrong?

`trace[r]` has rank r's spans, `(kind, start, stop, messages)`, sorted by their start, in whole nanoseconds since the
step's beginning. `kind` is `"compute"` or `"collective"`. No two computations of a rank overlap, and no two of its
collectives; a computation and a collective may. All ranks make the same collectives in the same order, so the k-th of
one rank is the k-th of all. `messages` is how many messages a rank sends in it, one after the other, each with a
`latency` in nanoseconds; of a computation it is 0.

A collective can travel only when the last rank has reached it. So on each rank it *waits*, from its start there to
the latest of its starts on all ranks; from then to its stop it is *on the wire*. Return
`(computing, hidden, exposed, waiting, cause)`: four times, each in nanoseconds and **summed over all ranks**, and a
word.

| | time in which, on that rank |
| --- | --- |
| computing | a computation runs |
| hidden | a collective is on the wire, and a computation runs (so this is a part of computing, too) |
| exposed | a collective is on the wire, and no computation runs |
| waiting | a collective waits, and no computation runs |

The cause is `"none"` if exposed + waiting is less than a tenth of computing + exposed + waiting. Otherwise it is the
one that costs most:

- `"straggler"` costs waiting.
- `"latency"` costs a share of what is exposed. For each collective on each rank, the share is messages * latency /
  (its time on the wire), but 1 at most. A rank alone sends no message: its collectives take no time, and cost
  nothing.
- `"bandwidth"` costs the rest of what is exposed.

By hand, a trace of one collective on two ranks, with a latency of 2 ns:

```{code-cell}
:name: shown_trace

small = [
    [("compute", 0, 10, 0), ("collective", 10, 40, 2), ("compute", 10, 16, 0)],
    [("compute", 0, 20, 0), ("collective", 20, 40, 2), ("compute", 20, 35, 0)],
]
small_answer = (16 + 35, 0 + 15, 20 + 5, 4 + 0, "bandwidth")
small_answer
```

The collective is on the wire from 20 to 40. Rank 0 computes until 16 and waits until 20; then 20 ns are exposed. Rank
1 computes until 35, so 15 of its 20 ns are hidden, 5 exposed. Two messages have 4 ns of latency in 20 ns on the wire,
a fifth. So of the 25 ns exposed, latency costs 5 and bandwidth 20, the straggler costs 4, and 29 is more than a tenth
of 80.

The check takes traces of steps that really run in lockstep: 1 to 4 ranks, gathers ahead, reductions beside the
backward, and all in turn. No two causes cost nearly the same. About eighteen lines.
"""


def where_time_goes(trace: list[list[tuple[str, int, int, int]]], latency: int) -> tuple[int, int, int, int, str]:
    """(computing, hidden, exposed, waiting) in nanoseconds of all ranks together, and what costs most."""
    ### BEGIN SOLUTION
    calls = [[span for span in spans if span[0] == "collective"] for spans in trace]
    joined = [max(start for _, start, _, _ in call) for call in zip(*calls, strict=True)]
    computing = hidden = exposed = waiting = late = 0
    for spans, mine in zip(trace, calls, strict=True):
        layers = [(start, stop) for kind, start, stop, _ in spans if kind == "compute"]
        computing += sum(stop - start for start, stop in layers)
        for (_, start, stop, messages), middle in zip(mine, joined, strict=True):
            before = sum(max(0, min(middle, b) - max(start, a)) for a, b in layers)
            behind = sum(max(0, min(stop, b) - max(middle, a)) for a, b in layers)
            bare = stop - middle - behind
            waiting, hidden, exposed = waiting + middle - start - before, hidden + behind, exposed + bare
            late += bare and bare * min(1, messages * latency / (stop - middle))
    if 10 * (exposed + waiting) < computing + exposed + waiting:
        return computing, hidden, exposed, waiting, "none"
    costs = {"straggler": waiting, "latency": late, "bandwidth": exposed - late}
    return computing, hidden, exposed, waiting, max(costs, key=costs.get)
    ### END SOLUTION


Span = tuple[str, int, int, int]
"""Kind, start, stop, messages; times in whole nanoseconds."""
Trace = list[list[Span]]
Interval = tuple[int, int]
NAMES = ("computing", "hidden", "exposed", "waiting")
CLEAR = 1.05
"""How much more the cause of a drawn trace costs than anything else."""


# What is right.


def total(intervals: Sequence[Interval]) -> int:
    """Time in which at least one of them runs."""
    return sum(int(stop - start) for start, stop in merge(intervals))


def beside(one: Sequence[Interval], other: Sequence[Interval]) -> int:
    """Time in which both run."""
    return total(one) + total(other) - total([*one, *other])


def times_of(trace: Trace, latency: int, slip: str = "") -> list[int]:
    """Nanoseconds of all ranks together: computing, hidden, exposed, waiting; open to slips."""
    found = [0, 0, 0, 0]
    for computing, joined in both_of(trace, slip)[: 1 if slip == "one rank" else None]:
        found[0] += total(computing)
        for start, middle, stop, _ in joined:
            hidden = beside(computing, [(middle, stop)])
            found[1] += hidden
            found[2] += stop - middle - hidden
            meanwhile = beside(computing, [(start, middle)]) if start < middle else 0
            found[3] += middle - start - (0 if slip == "waits while computing" else meanwhile)
    if slip == "hidden apart":
        found[0] -= found[1]
    if slip == "mean":
        return [part // len(trace) for part in found]
    return found


Joined = tuple[int, int, int, int]
"""Of a collective on a rank: start, when all had reached it, stop; messages."""


def both_of(trace: Trace, slip: str = "") -> list[tuple[list[Interval], list[Joined]]]:
    """Of each rank: when it computes, and its collectives."""
    calls = [[span for span in spans if span[0] == "collective"] for spans in trace]
    latest = [max(span[1] for span in those) for those in zip(*calls, strict=True)]
    if slip == "first":
        latest = [min(span[1] for span in those) for those in zip(*calls, strict=True)]
    found = []
    for spans, mine in zip(trace, calls, strict=True):
        computing = [(start, stop) for kind, start, stop, _ in spans if kind == "compute"]
        own = [(start, start if slip == "no waits" else middle, stop, messages)
               for (_, start, stop, messages), middle in zip(mine, latest, strict=True)]  # fmt: skip
        found.append((computing, own))
    return found


def costs_of(trace: Trace, latency: int, slip: str = "") -> dict[str, float]:
    """What each cause costs."""
    costs = {"straggler": 0.0, "latency": 0.0, "bandwidth": 0.0}
    for computing, joined in both_of(trace):
        for _, middle, stop, messages in joined:
            wire = stop - middle
            exposed = wire if slip == "hidden, too" else wire - beside(computing, [(middle, stop)])
            share = min(1.0, messages * latency / wire) if wire else 0.0
            if slip == "once":
                share = min(1.0, latency / wire) if wire else 0.0
            late = wire * share if slip == "whole latencies" else exposed * share
            costs["latency"] += late
            costs["bandwidth"] += exposed - late
    costs["straggler"] = times_of(trace, latency)[3]
    return costs


def cause_of(trace: Trace, latency: int, slip: str = "") -> str:
    costs = costs_of(trace, latency, slip)
    computing, _, exposed, waiting = times_of(trace, latency)
    if 10 * (exposed + waiting) < computing + exposed + waiting and slip != "never none":
        return "none"
    if slip == "exposed whole":
        costs = {"straggler": waiting, "bandwidth": exposed}
    return max(costs, key=lambda cause: costs[cause])


# What to say.

SLIPS = {
    "one rank": "That is rank 0's time; the sum over all ranks is asked for",
    "mean": "That is the mean of the ranks; the sum is asked for",
    "hidden apart": "Computing counts whole, what is hidden behind it, too",
    "no waits": "A collective travels only when the last rank has reached it; until then the others wait",
    "first": "A collective travels from the latest start on all ranks on, not from the earliest",
    "waits while computing": "A rank that computes meanwhile does not wait",
}
CAUSES = {
    "never none": "Where exposed and waiting are together less than a tenth of the three, nothing is worth mending",
    "whole latencies": "What is hidden costs nothing, and that is so of latency, too: take a share of what is exposed",
    "hidden, too": "What is hidden costs nothing: only the exposed part counts",
    "once": "Latency costs messages * latency of a collective's time on the wire: divide what is exposed by that share",
    "exposed whole": "Divide what is exposed into latency, messages * latency, and bandwidth, and compare the three",
}


def judged(case: Case, seen: Observation) -> str | None:
    trace, latency = case.args[0]
    got, want = seen.records[0].value, [*times_of(trace, latency), cause_of(trace, latency)]
    if not isinstance(got, list | tuple) or len(got) != 5 or not all(map(is_number, got[:4])):
        return (
            f"you return {short(got)}: four numbers and a cause are due, (computing, hidden, exposed, waiting, cause)"
        )
    wrong = [at for at in range(4) if abs(got[at] - want[at]) > 0.5]
    if wrong:
        said = ", ".join(f"{NAMES[at]} {got[at]:,.0f} ns, and it is {want[at]:,}" for at in wrong[:2])

        def gives(slip: str) -> bool:
            other = times_of(trace, latency, slip)
            return all(abs(got[at] - other[at]) <= 0.5 for at in range(4))

        why = next((text for slip, text in SLIPS.items() if gives(slip)), "")
        return f"you say {said}. {why or 'Take one rank and one collective, and put its intervals on paper'}"
    if got[4] == want[4]:
        return None
    costs = ", ".join(f"{name} {cost / 1000:,.1f}" for name, cost in costs_of(trace, latency).items())
    said = f"you name {short(got[4])!s}, and it is {want[4]} (microseconds: {costs})"
    why = named({text: slip for slip, text in CAUSES.items()}, lambda slip: cause_of(trace, latency, slip) == got[4])
    return f"{said}. {why}" if why else said


def is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


# Traces of real steps.


@dataclass(frozen=True)
class Plan:
    """A step: `microseconds[r]` of each layer on rank r, elements of its collective, and how they go together."""

    way: str
    microseconds: list[list[int]]
    numels: list[int]


def step(comm: Collectives, plan: Plan) -> list[list[Any]]:
    """Take the step; its spans."""
    assert comm.tracer is not None

    def layer(number: int) -> None:
        with comm.tracer.span("layer"):  # type: ignore[union-attr]
            spend(1e-6 * plan.microseconds[comm.rank][number])

    def gather(number: int) -> Handle:
        numel = plan.numels[number]
        return comm.all_gather_async(torch.zeros(numel).tensor_split(comm.size)[comm.rank], numel)

    count = len(plan.numels)
    if plan.way == "ahead":
        coming = gather(0)
        for number in range(count):
            coming.wait()
            coming = gather(number + 1) if number + 1 < count else coming
            layer(number)
    elif plan.way == "in turn":
        for number in range(count):
            layer(number)
            comm.all_reduce(torch.zeros(plan.numels[number]))
    else:
        reducing = []
        for number in range(count):
            layer(number)
            reducing.append(comm.all_reduce_async(torch.zeros(plan.numels[number])))
        for handle in reducing:
            handle.wait()
    comm.barrier()
    return [[span.kind, span.name, span.start, span.stop] for span in comm.tracer.spans]


def traced(plan: Plan, link: Link) -> Trace:
    """The spans of a lockstep run in whole nanoseconds, by their start."""
    ranks = len(plan.microseconds)
    ran = launch(step, plan, ranks=ranks, world="lockstep", device="cpu", collectives="ring", link=link, trace=True)
    found: Trace = []
    for spans in ran:
        mine = []
        for kind, name, start, stop in spans:
            messages = RINGS[name] * (ranks - 1) if kind == "collective" else 0
            mine.append((kind, round(1e9 * start), round(1e9 * stop), messages))
        found.append(sorted(mine, key=lambda span: span[1]))
    return found


def drawn(rng: Random, cause: str, ranks: int, way: str) -> tuple[Trace, int]:
    """The trace of a step in which something probably costs most, and the link's latency in nanoseconds; "behind" has a
    straggler, and more behind computing; "early" hides its latencies, and has a large last collective."""
    layers = rng.randint(3, 5)
    even = {"none": 900, "bandwidth": 60, "latency": 60, "straggler": 200, "behind": 300, "early": 300}[cause]
    factors = [rng.uniform(0.95, 1.05) for _ in range(ranks)]
    if cause == "straggler":
        factors[rng.randrange(ranks)] = rng.uniform(2.0, 4.0)
    if cause == "behind":
        factors[rng.randrange(ranks)] = rng.uniform(1.3, 1.5)
    times = [[round(even * factor * rng.uniform(0.8, 1.2)) for _ in range(layers)] for factor in factors]
    large = cause in ("bandwidth", "behind")
    numels = [rng.randint(2000, 4000) if large else rng.randint(20, 200) for _ in range(layers)]
    latency = rng.randint(30, 60) if cause == "latency" else rng.randint(1, 4)
    if cause == "early":
        numels[-1], latency = 12 * rng.randint(1000, 1100), rng.randint(28, 32)
    return traced(Plan(way, times, numels), Link(gbit_per_s=1, latency_us=latency)), 1000 * latency


def clear(trace: Trace, latency: int) -> bool:
    """Whether no rounding decides about the cause."""
    computing, _, exposed, waiting = times_of(trace, latency)
    lost, most = exposed + waiting, computing + exposed + waiting
    if not lost or 0.09 < lost / most < 0.11:
        return False
    first, second = sorted(costs_of(trace, latency).values())[-1:-3:-1]
    return first > CLEAR * second


def trace_cases(rng: Random) -> list[Case]:
    plans = [
        ("bandwidth", 2, "in turn"),
        ("straggler", 3, "in turn"),
        ("latency", 4, "in turn"),
        ("none", 2, "after"),
        ("bandwidth", 4, "after"),
        ("straggler", 4, "after"),
        ("latency", 3, "after"),
        ("behind", 2, "after"),
        ("behind", 2, "ahead"),
        ("early", 4, "after"),
        ("straggler", 2, "ahead"),
        ("bandwidth", 3, "ahead"),
        ("latency", 2, "ahead"),
        ("none", 4, "ahead"),
    ]
    cases = [trace_case(rng, *plan) for plan in plans]
    return [*cases, alone_case(rng)]


def trace_case(rng: Random, cause: str, ranks: int, way: str) -> Case:
    for _ in range(50):
        trace, latency = drawn(rng, cause, ranks, way)
        found = cause_of(trace, latency)
        if cause == "behind" and found == "straggler" and cause_of(trace, latency, "hidden, too") != found:
            found = cause
        if cause == "early" and found == "bandwidth" and cause_of(trace, latency, "whole latencies") != found:
            found = cause
        if clear(trace, latency) and found == cause:
            break
    count = sum(span[0] == "collective" for span in trace[0])
    what = {"ahead": "gathers ahead", "after": "reductions beside", "in turn": "one thing after the other"}[way]
    return Case([(trace, latency)], about=f"a step of {plural(ranks, 'rank')}, {count} collectives ({what})")


def alone_case(rng: Random) -> Case:
    """One rank, whose collectives take no time."""
    trace = traced(Plan("in turn", [[rng.randint(50, 90) for _ in range(3)]], [100] * 3), Link(1, 5))
    return Case([(trace, 5000)], about="a step of 1 rank, 4 collectives")


EXERCISE = Exercise(
    "where_time_goes",
    trace_cases,
    (
        Claim("it finds where the time goes, and what costs most", judged),
        Claim("the trace stays as it was", untouched(0)),
    ),
    run=alone,
    hints=(
        "First, for the k-th collective, the latest start over all ranks. From there on it is on the wire.",
        "How long two intervals overlap: max(0, min(their stops) - max(their starts)). Add that up over all layers.",
        "exposed = on the wire - hidden; waiting = before the latest start, less what is computed meanwhile.",
    ),
    text=TEXT,
    answer=(where_time_goes,),
    points=2,
)
