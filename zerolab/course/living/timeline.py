"""The timeline's scene: one step of the course's small model at each setting, as it ran: what rank 0 computed and
sent, and its memory beneath."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from zerolab.course.living.stages import changes, looks, micros
from zerolab.course.viz.flow import Flow, watch_flow
from zerolab.course.viz.picture import text_table
from zerolab.course.viz.skyline import peak_name
from zerolab.course.viz.slices import kb, nice
from zerolab.course.viz.step import StepRun
from zerolab.zero.table import STAGES

PLAIN = StepRun(stage=0)
"""What every setting is compared with."""


def settings() -> Iterator[StepRun]:
    """Those that differ: only stage 3 gathers ahead, and stage 0 keeps its optimizer whole, on the device."""
    for stage in STAGES:
        for overlap in (True, False):
            for prefetch in (True, False) if stage == 3 else (True,):
                for offload in (False, True) if stage else (False,):
                    yield StepRun(stage=stage, overlap=overlap, prefetch=prefetch, offload=offload)


def key(run: StepRun) -> str:
    """Such as "3 overlap prefetch"; the same words name a setting in the browser."""
    said = {"overlap": run.overlap, "prefetch": run.prefetch and run.stage == 3, "offload": run.offload}
    return " ".join([str(run.stage), *(word for word, is_so in said.items() if is_so)])


def record() -> dict[str, Any]:
    """Each setting's step by its key. Times are in microseconds, sizes in bytes."""
    runs = {key(run): watch_flow(run) for run in settings()}
    return {
        "looks": looks(),
        "most": {
            "micros": max(micros(flow.seconds) for flow in runs.values()),
            "bytes": max(flow.ranks[0].peak.total for flow in runs.values()),
        },
        "runs": {name: step_record(flow) for name, flow in runs.items()},
    }


def step_record(flow: Flow) -> dict[str, Any]:
    rank, plain = flow.ranks[0], watch_flow(PLAIN)
    said = headline(flow)
    of_step = f"{said} Beside it stage 0: {1e6 * plain.seconds:,.0f} µs and {kb(plain.ranks[0].peak.total)} kB."
    return {
        "seconds": micros(flow.seconds),
        "compute": [[span.name, micros(span.start), micros(span.stop)] for span in computed(flow)],
        "wire": [[call.name, call.unit, micros(call.start), micros(call.stop)] for call in flow.calls],
        "peak": [micros(rank.peak.time), rank.peak.total],
        "course": changes(rank.course),
        "verdict": said,
        "alt": of_step,
        "table": f"{compared(flow, plain)}\n\n{boxes(flow)}",
    }


def computed(flow: Flow) -> list[Any]:
    spans = [span for span in flow.ranks[0].spans if span.kind == "compute" and span.stop - span.start > 0.5e-6]
    return sorted(spans, key=lambda span: span.start)


def headline(flow: Flow) -> str:
    run, rank = flow.run, flow.ranks[0]
    words = ["with overlap" if run.overlap else "without overlap"]
    if run.stage == 3:
        words.append("with prefetch" if run.prefetch else "without prefetch")
    if run.offload:
        words.append("optimizer on the host")
    said = f"Stage {run.stage}, {', '.join(words)}: {1e6 * flow.seconds:,.0f} µs; {nice_peak(rank)}."
    host = sum(nbytes for kind, nbytes in rank.course[-1].bytes.items() if kind.startswith("host:"))
    return f"{said} {kb(host)} kB rest on the host." if host else said


def nice_peak(rank: Any) -> str:
    return peak_name(rank).replace("blocks.", "block ")


def compared(flow: Flow, plain: Flow) -> str:
    """Rank 0 of this step beside stage 0's."""
    ranks = [plain.ranks[0], flow.ranks[0]]
    rows = [
        ["step, µs", *(f"{1e6 * rank.seconds:,.0f}" for rank in ranks)],
        ["computing, µs", *(f"{1e6 * rank.busy_seconds('compute'):,.0f}" for rank in ranks)],
        ["in collectives, µs", *(f"{1e6 * rank.busy_seconds('collective'):,.0f}" for rank in ranks)],
        ["both at once, µs", *(f"{1e6 * rank.overlapped:,.0f}" for rank in ranks)],
        ["peak, bytes", *(f"{rank.peak.total:,}" for rank in ranks)],
        ["sent, bytes", *(f"{sum(one.sent(one.seconds).values()):,}" for one in (plain, flow))],
    ]
    return text_table(["rank 0", "stage 0", "as set"], rows)


def boxes(flow: Flow) -> str:
    """What the two rows of the picture show, in order of time."""
    rows = [(span.start, span.stop, "compute", span.name.replace("blocks.", "block ")) for span in computed(flow)]
    rows += [(call.start, call.stop, "wire", f"{call.name} of {nice(call.unit)}") for call in flow.calls]
    shown = [[what, row, f"{1e6 * start:,.0f}", f"{1e6 * stop:,.0f}"] for start, stop, row, what in sorted(rows)]
    return text_table(["what", "row", "from, µs", "to, µs"], shown)
