"""What to show of a step (`step.py`): slices of each unit's states, by rank, and the moments worth a stop.

Slice r is rank r's to keep and to update. What it is at a time follows from what was recorded.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import product
from operator import itemgetter
from typing import NamedTuple

from zerolab.course.viz.looks import named
from zerolab.course.viz.picture import text_table
from zerolab.course.viz.step import Change, Flow, StepRun, watch_flow
from zerolab.memory import KINDS, Sample
from zerolab.zero.start import check_stage

BANDS = ("parameters", "gradients", "optimizer_states")
AWAY, KEPT, HERE, NEW = range(4)
"""Of a slice: no memory; memory without values of this step; values; values as the step leaves them (the mean of the
gradients, parameters and states after the update)."""
APART = 30e-6
"""Two moments have so many seconds between them."""
BRIEF = 1.5e-6
"""What lasts less from a moment on is passed over."""


class Course(NamedTuple):
    """What becomes of a slice on a rank: from each time on, what it is (AWAY to NEW) and as which kind of memory."""

    band: str
    rank: int
    unit: str
    chunk: int
    states: list[tuple[float, int, str]]


class Act(NamedTuple):
    """A moment of a step: seconds from its start, and what is done and sent from then on."""

    time: float
    computing: str
    sending: str


def flow_of(stage: int) -> Flow:
    """The step of the course's small model at a stage, as `step_skyline` shows it."""
    check_stage(stage)
    return watch_flow(StepRun(stage))


@lru_cache(maxsize=8)
def courses(flow: Flow) -> list[Course]:
    """Of every slice on every rank."""
    places = product(BANDS, range(flow.run.ranks), flow.units, range(flow.run.ranks))
    return [Course(*place, sorted(states_of(flow, *place), key=itemgetter(0))) for place in places]


def states_of(flow: Flow, band: str, rank: int, unit: str, chunk: int) -> Iterator[tuple[float, int, str]]:
    stage, own = flow.run.stage, rank == chunk
    updated = next(span.stop for span in flow.ranks[rank].spans if span.name == "update")
    changes = [one for one in flow.changes if one.rank == rank and one.unit == unit]
    arrivals = [
        (flow.calls[one.call].name, one.stop)
        for one in flow.messages
        if one.dst == rank and one.chunk == chunk and flow.calls[one.call].unit == unit
    ]
    gathered = [stop for name, stop in arrivals if name == "all_gather"]
    if band == "optimizer_states":
        keeps = own or stage == 0
        yield 0.0, HERE if keeps else AWAY, band
        if keeps:
            yield updated, NEW, band
    elif band == "parameters" and (own or stage < 3):
        yield 0.0, HERE, band
        yield updated if own or stage == 0 else gathered[-1], NEW, band
    elif band == "parameters":
        yield 0.0, AWAY, "gathered_units"
        for one in changes:
            if one.what == "whole":
                yield one.time, KEPT if one.there else AWAY, "gathered_units"
        yield from ((stop, HERE, "gathered_units") for stop in gathered)
    else:
        yield from gradients_of(flow, changes, own)


def gradients_of(flow: Flow, changes: list[Change], own: bool) -> Iterator[tuple[float, int, str]]:
    stage = flow.run.stage
    keeps = own or stage < 2  # the memory of what is kept stays from step to step
    buffer = "gradients" if stage < 2 else "gradient_buffers"
    yield 0.0, KEPT if keeps else AWAY, "gradients"
    for time, _, _, what, there in changes:
        if what == "local":
            yield time, HERE if there else KEPT if keeps else AWAY, buffer if there else "gradients"
        elif what == "mean" and there and (own or stage == 0):
            yield time, NEW, "gradients"
        elif what == "mean" and keeps:
            yield time, KEPT, "gradients"


@lru_cache(maxsize=8)
def stops(flow: Flow) -> list[Act]:
    """The moments of a step at which something begins or ends on rank 0, some time apart; the last is its end."""
    spans = [span for span in flow.ranks[0].spans if span.stop > span.start]
    marks = sorted({0.0, *(time for span in spans for time in (span.start, span.stop))})
    times = [0.0]
    for mark in marks:
        if mark < APART or flow.seconds - mark < APART:
            continue
        if mark - times[-1] < APART and len(times) > 1:
            times.pop()  # of two that are close, what begins last goes on
        times.append(mark)
    return [*(Act(time, computing(flow, time), sending(flow, time)) for time in times), Act(flow.seconds, "", "")]


def nice(unit: str) -> str:
    """A unit as texts call it: "block 1", "the head"."""
    return unit.replace("blocks.", "block ") if unit.startswith("blocks") else f"the {unit}"


def computing(flow: Flow, time: float) -> str:
    """What rank 0 computes from this time on; the others do the same."""
    at = time + BRIEF
    name = next((s.name for s in flow.ranks[0].spans if s.kind == "compute" and s.start <= at < s.stop), "")
    if not name:
        return "no rank computes"
    if name == "update":
        return "each rank updates everything" if flow.run.stage == 0 else "owners update their shards"
    way, _, unit = name.partition(" ")
    return f"{way} of {nice(unit)}"


def sending(flow: Flow, time: float) -> str:
    """What is on the wire from this time on."""
    call = next((call for call in flow.calls if call.start <= time + BRIEF < call.stop), None)
    if call is None:
        return "nothing is sent"
    unit = nice(call.unit)
    if call.name == "all_gather" and flow.run.stage == 3:
        return f"parameters of {unit} are gathered"
    if call.name == "all_gather":
        return f"new parameters of {unit} return to all"
    to = "flow to their owners" if call.name == "reduce_scatter" else "are summed on all ranks"
    return f"gradients of {unit} {to}"


def held(flow: Flow, time: float) -> Sample:
    """Rank 0's memory at a time."""
    return [sample for sample in flow.ranks[0].course if sample.time <= time + 1e-12][-1]


def stop_text(flow: Flow, number: int) -> tuple[str, str, str]:
    """What a moment comes to, in a sentence; the same for who does not see it; and its numbers as a table."""
    stop, stage, last = stops(flow)[number], flow.run.stage, len(stops(flow)) - 1
    now, peak, sent = held(flow, stop.time), flow.ranks[0].peak, flow.sent(stop.time)
    all_sent = kb(sum(sent.values()))
    said = f"Stage {stage}, {1e6 * stop.time:,.0f} µs: "
    if number == last:
        said += f"the step is done. Rank 0 held at most {kb(peak.total)} kB and sent {all_sent} kB."
    else:
        said += f"{stop.computing}; {stop.sending}. Rank 0 holds {kb(now.total)} kB and has sent {all_sent} kB."
    kinds = ", ".join(f"{named(kind)} {kb(now.bytes[kind])} kB" for kind in KINDS if now.bytes.get(kind))
    return said, f"{said} Of its memory: {kinds}.", stop_table(flow, now, peak, sent)


def kb(nbytes: int) -> str:
    return f"{nbytes / 1e3:,.0f}"


def stop_table(flow: Flow, now: Sample, peak: Sample, sent: dict[str, int]) -> str:
    kinds = [kind for kind in KINDS if any(sample.bytes.get(kind) for sample in flow.ranks[0].course)]
    rows = [[named(kind), f"{now.bytes.get(kind, 0):,}", f"{peak.bytes.get(kind, 0):,}"] for kind in kinds]
    rows.append(["together", f"{now.total:,}", f"{peak.total:,}"])
    of_step = flow.sent(flow.seconds)
    wires = [[f"sent by {name}", f"{sent[name]:,}", f"{nbytes:,}"] for name, nbytes in of_step.items()]
    memory = text_table(["bytes on rank 0", "now", "at the step's peak"], rows)
    return f"{memory}\n\n{text_table(['bytes sent by rank 0', 'until now', 'in the step'], wires)}"
