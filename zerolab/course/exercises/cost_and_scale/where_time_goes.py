"""The exercise of lesson 09 on a trace: where a step's time goes, and what costs most of it.

Traces are those of steps that ranks really take in lockstep: layers that spend time, and collectives on a link."""

from __future__ import annotations

from random import Random
from typing import Any

import torch

from zerolab.collectives import Collectives, Handle, Link
from zerolab.collectives.cost import RINGS
from zerolab.course.judge.case import Case, Record
from zerolab.course.judge.exercise import Claim, Exercise, alone
from zerolab.course.judge.model import Gives, program, read_mistakes, you_say
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


MISTAKES = r"""
That is rank 0's time; the sum over all ranks is asked for
    zip(trace, calls, strict=True): => [(trace[0], calls[0])]:
That is the mean of the ranks; the sum is asked for
    return computing, hidden, exposed, waiting, max(
    => return *(t // len(trace) for t in (computing, hidden, exposed, waiting)), max(
Computing counts whole, what is hidden behind it, too
    costs = { => computing -= hidden\n    costs = {
A collective travels only when the last rank has reached it; until then the others wait
    middle in zip(mine, joined, strict=True) => middle in ((span, span[1]) for span in mine)
A collective travels from the latest start on all ranks on, not from the earliest
    max(start for => min(start for
A rank that computes meanwhile does not wait
    middle - start - before => middle - start
Where exposed and waiting are together less than a tenth of the three, nothing is worth mending
    if 10 * (exposed + waiting) < computing + exposed + waiting: => if False:
A tenth of the three is meant, of computing, exposed and waiting, and not of computing alone
    < computing + exposed + waiting => < computing
What is hidden costs nothing, and that is so of latency, too: take a share of what is exposed
    bare and bare * min(1, messages * latency / (stop - middle)) => min(stop - middle, messages * latency)
Latency costs a share of what is exposed, that of messages * latency in the time on the wire, and not all of it
    bare and bare * min(1, messages * latency / (stop - middle)) => min(bare, messages * latency)
What is hidden costs nothing: only the exposed part counts
    bare and bare * min(1, messages * latency / (stop - middle)) => min(stop - middle, messages * latency)
    exposed - late => exposed + hidden - late
Latency costs messages * latency of a collective's time on the wire: divide what is exposed by that share
    messages * latency => latency
"""
Trace = list[list[tuple[str, int, int, int]]]
NAMES = ("computing", "hidden", "exposed", "waiting")


def times(record: Record) -> list[int]:
    return [round(number) for number in record.value[:4]]


def times_said(args: tuple[Any, ...], got: list[int], want: list[int]) -> str:
    wrong = [at for at in range(4) if got[at] != want[at]]
    return "you say " + ", ".join(f"{NAMES[at]} {got[at]:,} ns, and it is {want[at]:,}" for at in wrong[:2])


# Traces of real steps.


def step(
    comm: Collectives, way: str, microseconds: list[list[int]], numels: list[int]
) -> list[tuple[str, int, int, int]]:
    """Take a step of layers, `microseconds[r]` of each on rank r, and of collectives of so many elements: gathers
    ahead, or reductions in turn, or reductions that are waited for after all layers. Its spans, by their start."""
    assert comm.tracer is not None

    def gather(number: int) -> Handle:
        numel = numels[number]
        return comm.all_gather_async(torch.zeros(numel).tensor_split(comm.size)[comm.rank], numel)

    coming = [gather(0)] if way == "ahead" else []
    for number, numel in enumerate(numels):
        if way == "ahead":
            coming.pop().wait()
            coming += [gather(number + 1)] if number + 1 < len(numels) else []
        with comm.tracer.span("layer"):
            spend(1e-6 * microseconds[comm.rank][number])
        if way == "in turn":
            comm.all_reduce(torch.zeros(numel))
        elif way == "after":
            coming.append(comm.all_reduce_async(torch.zeros(numel)))
    for handle in coming:
        handle.wait()
    comm.barrier()
    found = []
    for span in comm.tracer.spans:
        messages = RINGS[span.name] * (comm.size - 1) if span.kind == "collective" else 0
        found.append((span.kind, round(1e9 * span.start), round(1e9 * span.stop), messages))
    return sorted(found, key=lambda span: span[1])


def traced(way: str, microseconds: list[list[int]], numels: list[int], latency: int) -> tuple[Trace, int]:
    """The trace of such a step, and the link's latency in nanoseconds."""
    on: dict[str, Any] = {"world": "lockstep", "device": "cpu", "collectives": "ring", "trace": True}
    link = Link(gbit_per_s=1, latency_us=latency)
    ran = launch(step, way, microseconds, numels, ranks=len(microseconds), link=link, **on)
    return list(ran), 1000 * latency


EVEN = {"none": 900, "nearly": 900, "bandwidth": 60, "latency": 60, "straggler": 200}
SLOW = {"straggler": (2.0, 4.0), "behind": (1.3, 1.5)}


def drawn(rng: Random, cause: str, ranks: int, way: str) -> tuple[Trace, int]:
    """A step in which something probably costs most; "behind" has a straggler, and more behind computing; "early" hides
    its latencies, and has a large last collective."""
    layers = rng.randint(3, 5)
    factors = [rng.uniform(0.95, 1.05) for _ in range(ranks)]
    if cause in SLOW:
        factors[rng.randrange(ranks)] = rng.uniform(*SLOW[cause])
    even = EVEN.get(cause, 300)
    times = [[round(even * factor * rng.uniform(0.8, 1.2)) for _ in range(layers)] for factor in factors]
    large = cause in ("bandwidth", "behind")
    numels = [rng.randint(2000, 4000) if large else rng.randint(20, 200) for _ in range(layers)]
    latency = rng.randint(30, 60) if cause == "latency" else rng.randint(1, 4)
    if cause == "capped":
        numels, latency = [12 * rng.randint(100, 900) for _ in range(layers)], rng.randint(8, 32)
    if cause == "early":
        numels[-1], latency = 12 * rng.randint(1000, 1100), rng.randint(28, 32)
    return traced(way, times, numels, latency)


MARGIN = 1.05
"""How much more the cause of a drawn trace costs than anything else."""
COSTS = {"straggler": "waiting", "latency": "late", "bandwidth": "exposed - late"}
NEARLY = [
    program(where_time_goes, (f'"{name}": {cost}', f'"{name}": {MARGIN} * ({cost})')) for name, cost in COSTS.items()
]
KNOWN = list(read_mistakes(MISTAKES).values())
TRAPS = {"behind": ("straggler", KNOWN[10]), "early": ("bandwidth", KNOWN[8]), "capped": ("bandwidth", KNOWN[9]),
         "nearly": ("none", KNOWN[7])}  # fmt: skip
"""Traces of such a cause in which this mistake finds another one."""


def suits(cause: str, trace: Trace, latency: int) -> bool:
    """Whether the trace has this cause, and no rounding decides about it."""
    computing, _, exposed, waiting, found = where_time_goes(trace, latency)
    lost = exposed + waiting
    if not lost or abs(lost / (computing + lost) - 0.1) < 0.002:
        return False
    if any(one(trace, latency)[4] != found for one in NEARLY):
        return False
    due, mistake = TRAPS.get(cause, (cause, ""))
    return found == due and not (mistake and program(where_time_goes, mistake)(trace, latency)[4] == due)


def trace_cases(rng: Random) -> list[Case]:
    plans = [
        ("bandwidth", 2, "in turn"),
        ("straggler", 3, "in turn"),
        ("latency", 4, "in turn"),
        ("none", 2, "after"),
        ("nearly", 2, "in turn"),
        ("bandwidth", 4, "after"),
        ("latency", 3, "after"),
        ("behind", 2, "after"),
        ("behind", 2, "ahead"),
        ("early", 4, "after"),
        ("capped", 4, "after"),
        ("straggler", 2, "ahead"),
        ("none", 4, "ahead"),
    ]
    drawn_traces = []
    for cause, ranks, way in plans:
        for _ in range(200):
            one = drawn(rng, cause, ranks, way)
            if suits(cause, *one):
                break
        drawn_traces.append(one)
    # One rank, whose collectives take no time.
    drawn_traces.append(traced("in turn", [[rng.randint(50, 90) for _ in range(3)]], [100] * 3, 5))
    return [Case([one], about=f"a step of {len(one[0])} ranks, a latency of {one[1]} ns") for one in drawn_traces]


EXERCISE = Exercise(
    "where_time_goes",
    trace_cases,
    (
        Claim(
            "it finds where the time goes",
            Gives(times, "Take one rank and one collective, and put its intervals on paper", say=times_said),
        ),
        Claim("it finds what costs most", Gives(lambda record: record.value[4], say=you_say)),
    ),
    run=alone,
    hints=(
        "First, for the k-th collective, the latest start over all ranks. From there on it is on the wire.",
        "How long two intervals overlap: max(0, min(their stops) - max(their starts)). Add that up over all layers.",
        "exposed = on the wire - hidden; waiting = before the latest start, less what is computed meanwhile.",
    ),
    mistakes=MISTAKES,
    without=frozenset({"shape"}),
    text=TEXT,
    answer=(where_time_goes,),
    points=2,
)
