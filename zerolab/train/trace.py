"""What the ranks of a run did when: for a viewer of traces, and as a table of times.

Recorded are a run's first steps: forward, backward and optimizer step of each rank, its collectives, how long it stood
still for them, transfers to and from a disk, and the course of memory while that is tracked. The viewer's format is
Chrome's ("Trace Event Format"), which https://ui.perfetto.dev opens, too.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from typing import Any

from zerolab.collectives import Collectives, Span
from zerolab.collectives.observe import merge, overlap_seconds
from zerolab.memory.timeline import Sample, by_time
from zerolab.zero import ZeroEngine

PARTS = ("forward", "backward", "optimizer step")
REST, WHOLE = "the rest", "whole step"
STEP = "step "

Interval = tuple[float, float]


@dataclass(frozen=True)
class RankTrace:
    """What one rank recorded: spans on the world's clock, and (seconds, bytes by kind) whenever memory changed."""

    spans: list[Span]
    memory: list[tuple[float, dict[str, int]]]

    @classmethod
    def of_record(cls, record: dict[str, Any]) -> RankTrace:
        """What `as_record` gave, after a way as JSON."""
        spans = [Span(*values, group=group) for *values, group in record["spans"]]
        return cls(spans, [(seconds, kinds) for seconds, kinds in record["memory"]])

    def as_record(self) -> dict[str, Any]:
        """Lists and dicts, which JSON can hold."""
        return {"spans": [list(asdict(span).values()) for span in self.spans], "memory": self.memory}


@dataclass(frozen=True)
class Time:
    """Milliseconds that something took in a step, and how many of them the rank computed meanwhile (None: it is
    computing itself, or waiting); `calls` of it in a step. Means over ranks and steps."""

    what: str
    milliseconds: float
    hidden: float | None = None
    calls: float | None = None


class Recorder:
    """Records this rank's first `steps` steps where the launch traces; else it costs nothing.

    Spans are of the training's own thread, so those of a step hold its parts, and those hold the waits.
    """

    def __init__(self, comm: Collectives, engine: ZeroEngine, steps: int) -> None:
        self.comm, self._left = comm, steps
        self._tracer = comm.tracer
        self.memory: list[Sample] = []
        if self._tracer is not None:
            self._tracer.record_waits = True
            self._tracer.spans.clear()
            for lane in (*engine.tier.lanes, *engine.optimizer_step.lanes):
                lane.watch = self._transferred

    @property
    def on(self) -> bool:
        return self._tracer is not None and self._tracer.recording

    def span(self, name: str) -> AbstractContextManager[None]:
        return nullcontext() if self._tracer is None or not self.on else self._tracer.span(name)

    def step(self, number: int) -> AbstractContextManager[None]:
        """A step of the run, counted from 1. Ends the recording when there were enough."""
        if self.on and not self._left:
            self.stop()
        self._left -= 1
        return self.span(f"{STEP}{number}")

    def stop(self) -> None:
        """Record no more."""
        if self._tracer is not None:
            self._tracer.recording = False

    def record(self) -> dict[str, Any] | None:
        """What was recorded, as a `RankTrace.as_record`; None if nothing was to be."""
        if self._tracer is None:
            return None
        self.stop()
        # In lockstep a transfer takes real time, which is not on the world's clock.
        course = [(sample.time, sample.bytes) for sample in by_time(self.memory)]
        return RankTrace(self._tracer.spans, course).as_record()

    def _transferred(self, kind: str, start: float, stop: float) -> None:
        # Called on the lane's threads, whose world has a real clock.
        if self._tracer is not None and self.comm.transport.real_clock:
            self._tracer.note("transfer", kind, start, stop)


def times_of(traces: Sequence[RankTrace], first: int) -> list[Time]:
    """The times of a step: of those from number `first` on (a tracker slows those before down), or of all recorded if
    there are none."""
    found: list[list[Time]] = []
    for trace in traces:
        steps = [span for span in trace.spans if span.name.startswith(STEP)]
        for step in [span for span in steps if number_of(span) >= first] or steps:
            found.append(times_of_step(step, [span for span in trace.spans if span is not step]))
    rows: dict[str, list[Time]] = {}
    for times in found:
        for time in times:
            rows.setdefault(time.what, []).append(time)
    last = {REST: 1, WHOLE: 2}
    return [mean_of(what, rows[what], len(found)) for what in sorted(rows, key=lambda what: last.get(what, 0))]


def number_of(step: Span) -> int:
    return int(step.name.removeprefix(STEP))


def times_of_step(step: Span, spans: Iterable[Span]) -> list[Time]:
    """What one rank's step consists of: computing without waits, the waits, and what ran beside both; what else is in
    it, such as getting the batch, is the rest. What began before the step, or ended after it, counts with its part."""
    inside: dict[tuple[str, str], list[Interval]] = {}
    for span in spans:
        start, stop = max(span.start, step.start), min(span.stop, step.stop)
        if stop > start:
            inside.setdefault((span.kind, span.name), []).append((start, stop))
    waits = merge(interval for (kind, _), those in inside.items() if kind == "wait" for interval in those)
    rows = []
    for part in PARTS:
        those = inside.get(("compute", part), [])
        rows.append(Time(part, 1e3 * (total(those) - overlap_seconds(those, waits))))
    parts = [interval for part in PARTS for interval in inside.get(("compute", part), [])]
    rows.append(Time("waiting", 1e3 * overlap_seconds(parts, waits)))
    for (kind, name), those in sorted(inside.items()):
        if kind in ("collective", "transfer"):
            hidden = total(those) - overlap_seconds(those, waits) if kind == "collective" else None
            what = name if kind == "collective" else f"{name} of the disk"
            rows.append(Time(what, 1e3 * total(those), None if hidden is None else 1e3 * hidden, len(those)))
    rows.append(Time(REST, 1e3 * (step.seconds - total(parts))))
    rows.append(Time(WHOLE, 1e3 * step.seconds))
    return rows


def total(intervals: Iterable[Interval]) -> float:
    """Seconds in which at least one of them was under way."""
    return sum(stop - start for start, stop in merge(intervals))


def mean_of(what: str, times: Sequence[Time], count: int) -> Time:
    """The mean of `times` over `count` steps, also those in which there was nothing of it."""

    def mean(values: list[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        return sum(known) / count if known else None

    milliseconds = sum(time.milliseconds for time in times) / count
    return Time(what, milliseconds, mean([time.hidden for time in times]), mean([time.calls for time in times]))


def chrome_json(traces: Sequence[RankTrace], about: str) -> str:
    """The text of a trace file: a process a rank, and in it a row for the rank's own line and rows for what runs beside
    it; times in microseconds since the first event; memory as a counter of bytes by kind."""
    begin = min((span.start for trace in traces for span in trace.spans), default=0.0)
    events: list[dict[str, Any]] = []
    for rank, trace in enumerate(traces):
        events.append(named("process_name", f"rank {rank}", rank))
        events.append({**named("process_sort_index", "", rank), "args": {"sort_index": rank}})
        for row, (name, spans) in enumerate(rows_of(trace.spans)):
            events.append(named("thread_name", name, rank, row))
            for span in spans:
                start, stop = microseconds(span.start - begin), microseconds(span.stop - begin)
                event = {"ph": "X", "pid": rank, "tid": row, "ts": start, "dur": round(stop - start, 3)}
                shown = f"wait for {span.name}" if span.kind == "wait" else span.name
                group = {"args": {"group": span.group}} if span.group else {}
                events.append({**event, "name": shown, "cat": span.kind, **group})
        for seconds, kinds in trace.memory:
            event = {"ph": "C", "pid": rank, "name": "memory", "ts": microseconds(seconds - begin)}
            events.append({**event, "args": {kind: nbytes for kind, nbytes in kinds.items()}})
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"run": about}}) + "\n"


def rows_of(spans: Iterable[Span]) -> list[tuple[str, list[Span]]]:
    """Spans by the row that shows them. Those of one row lie one after the other or one inside the other."""
    kinds: dict[str, list[Span]] = {"rank": [], "collectives": [], "read": [], "write": []}
    for span in sorted(spans, key=lambda span: (span.start, -span.stop)):
        row = "collectives" if span.kind == "collective" else span.name if span.kind == "transfer" else "rank"
        kinds[row].append(span)
    rows = [("computing and waiting", kinds.pop("rank"))]
    for name, those in kinds.items():
        lines: list[list[Span]] = []
        for span in those:
            free = next((line for line in lines if line[-1].stop <= span.start), None)
            if free is None:
                lines.append(free := [])
            free.append(span)
        shown = name if name == "collectives" else f"{name} of the disk"
        rows += [(shown, line) for line in lines]
    return rows


def named(what: str, name: str, rank: int, row: int = 0) -> dict[str, Any]:
    return {"ph": "M", "pid": rank, "tid": row, "name": what, "args": {"name": name}}


def microseconds(seconds: float) -> float:
    return round(1e6 * seconds, 3)
