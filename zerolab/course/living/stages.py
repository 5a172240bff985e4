"""The stages' scene: one step at stages 0 to 3 on four ranks, as it ran, slice by slice and message by message."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from zerolab.course.viz.looks import MEMORY
from zerolab.course.viz.slices import courses, flow_of, stop_text, stops
from zerolab.memory import KINDS, Sample
from zerolab.zero.table import STAGES


def micros(seconds: float) -> float:
    return round(1e6 * seconds, 2)


def record() -> dict[str, Any]:
    """By stage: each slice's states, each message, rank 0's memory over time, and the moments with what to say of them.
    Times are in microseconds, sizes in bytes."""
    return {
        "looks": looks(),
        "stages": [stage_record(stage) for stage in STAGES],
    }


def looks() -> dict[str, dict[str, str]]:
    """How each kind of memory is named and filled."""
    return {kind: {"name": look.name, "colour": look.colour, "hatch": look.hatch} for kind, look in MEMORY.items()}


def stage_record(stage: int) -> dict[str, Any]:
    flow = flow_of(stage)
    found = stops(flow)
    return {
        "seconds": micros(flow.seconds),
        "units": flow.units,
        "slices": [
            [one.band, one.rank, one.unit, one.chunk, [[micros(time), state, kind] for time, state, kind in one.states]]
            for one in courses(flow)
        ],
        "calls": [[call.name, call.unit, micros(call.start), micros(call.stop)] for call in flow.calls],
        "messages": [
            [one.call, one.src, one.dst, one.chunk, one.nbytes, micros(one.start), micros(one.stop)]
            for one in flow.messages
        ],
        "spans": [
            [span.name, micros(span.start), micros(span.stop)]
            for span in flow.ranks[0].spans
            if span.kind == "compute" and span.stop > span.start
        ],
        "course": changes(flow.ranks[0].course),
        "moments": [
            {
                "time": micros(stop.time),
                "does": stop.computing,
                **dict(zip(("verdict", "alt", "table"), said, strict=True)),
            }
            for stop, said in ((stop, stop_text(flow, number)) for number, stop in enumerate(found))
        ],
    }


def changes(course: Sequence[Sample]) -> dict[str, list[list[float]]]:
    """By kind, from each time on so many bytes; what does not change is not said again."""
    found: dict[str, list[list[float]]] = {}
    for kind in KINDS:
        steps: list[list[float]] = []
        for sample in course:
            nbytes = sample.bytes.get(kind, 0)
            if not steps or steps[-1][1] != nbytes:
                steps.append([micros(sample.time), nbytes])
        if any(nbytes for _, nbytes in steps):
            found[kind] = steps
    return found
