"""One training step on rank 0, as it ran: what it computes above what it sends, and beneath it its memory, on one time
axis that stays put, so that settings can be compared."""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from typing import Any

from zerolab.course.viz.drawing import Drawing, Frame, Style, filled, words
from zerolab.course.viz.looks import COMPUTING, MEMORY, TRAVELLING, named
from zerolab.course.viz.picture import Picture, text_table
from zerolab.course.viz.slices import kb, nice
from zerolab.course.viz.stages import AXIS, END, LETTERS, SMALL, START, draw_areas
from zerolab.course.viz.step import Flow, StepOfRank, StepRun, watch_flow
from zerolab.memory import KINDS

WIDE, HIGH, LEFT, RIGHT, TOP, BOTTOM = 400, 334, 30, 394, 132, 240
ROWS = {"compute": 34, "wire": 84}
BOX = 20
MOST_SECONDS, MOST_BYTES = 2.8e-3, 4e6
"""At least so much is on the axes: what four ranks take on a link of 10 Gbit/s and 5 µs, at any stage."""
SHORT = 5e-6
"""Seconds: shorter pieces of backward are not drawn."""


def step_skyline(run: StepRun | None = None) -> Picture:
    """A step of a small model with these settings (`step.py`); the table sets stage 0 beside it."""
    return step_frames(run or StepRun())[0].picture()


def step_frames(run: StepRun) -> list[Frame]:
    """The one frame of these settings. Raises InputError for settings that the engine, the link or the pace refuse."""
    # Only stage 3 gathers ahead, and stage 0 keeps its optimizer whole, on the device: one run serves both settings.
    run = replace(run, prefetch=run.prefetch or run.stage < 3, offload=run.offload and run.stage > 0)
    flow, plain = watch_flow(run), watch_flow(replace(run, stage=0, prefetch=True, overlap=True, offload=False))
    said = headline(flow)
    beside = f"{said} Beside it stage 0: {1e6 * plain.seconds:,.0f} µs and {kb(plain.ranks[0].peak.total)} kB."
    return [Frame(Skyline(flow, plain).drawing, (said, beside, f"{compared(flow, plain)}\n\n{boxes(flow)}"))]


class Skyline:
    def __init__(self, flow: Flow, plain: Flow) -> None:
        self.flow, self.rank = flow, flow.ranks[0]
        self.seconds = max(MOST_SECONDS, flow.seconds, plain.seconds)
        self.bytes = max(MOST_BYTES, self.rank.peak.total, plain.ranks[0].peak.total)
        self.drawing = Drawing(WIDE, HIGH, 1.45)
        self.draw_memory(plain)
        self.draw_phases()
        self.draw_rows()
        self.draw_legend()

    def across(self, seconds: float) -> float:
        return LEFT + (RIGHT - LEFT) * seconds / self.seconds

    def up(self, nbytes: float) -> float:
        return BOTTOM - (BOTTOM - TOP) * nbytes / self.bytes

    def draw_memory(self, plain: Flow) -> None:
        draw_areas(self.drawing, self.flow, plain, self.across, self.up)
        self.drawing.line((LEFT, TOP, LEFT, BOTTOM, RIGHT, BOTTOM), AXIS)
        self.drawing.text(2, TOP - 7, "MB on rank 0; grey: stage 0", START)
        for megabytes in range(int(self.bytes / 1e6) + 1):
            self.drawing.text(LEFT - 4, self.up(1e6 * megabytes) + 4, str(megabytes), END)
        each = 500 * ceil(self.seconds / 3e-3)
        ticks = range(0, int(0.95e6 * self.seconds), each)  # the last has room for the unit
        for micros in ticks:
            unit = " µs" if micros == ticks[-1] else ""
            self.drawing.text(self.across(1e-6 * micros), BOTTOM + 13, f"{micros}{unit}", SMALL)
        peak = self.rank.peak
        self.drawing.add("peak", "disc", (self.across(peak.time), self.up(peak.total), 3), Style("black", "white"))

    def draw_phases(self) -> None:
        """The names of the step's three parts, and where each begins; only where no words stand."""
        starts = {span.name.split()[0]: span.start for span in reversed(computed(self.flow))}
        for name in ("forward", "backward", "update"):
            x = self.across(starts[name] if name != "forward" else 0.0)
            for top, bottom in ((4, 16), *((y - 3, y + BOX + 2) for y in ROWS.values()), (TOP, BOTTOM)):
                if name != "forward":
                    self.drawing.line((x, top, x, bottom), Style(line="#555555", width=0.8, dash=(3, 3)))
            self.drawing.text(x + (-4 if name == "forward" else 3), 13, name, START)

    def draw_rows(self) -> None:
        self.drawing.text(2, ROWS["compute"] - 5, "rank 0 computes", START)
        self.drawing.text(2, ROWS["wire"] - 5, "and sends", START)
        spans = computed(self.flow)
        # A unit's letter stands at its widest box: others of the same name are short pieces of it.
        widest = {span.name: max(one.seconds for one in spans if one.name == span.name) for span in spans}
        self.before: dict[str, tuple[str, float]] = {}
        for span in spans:
            way, _, unit = span.name.partition(" ")
            if way in COMPUTING and way != "compute" and (span.seconds >= SHORT or way == "forward"):
                silent = not unit or unit == "loss" or span.seconds < widest[span.name]
                sign = "" if silent else LETTERS.get(unit, unit[-1])
                self.box("compute", COMPUTING[way], span.start, span.stop, sign)
        for call in self.flow.calls:
            self.box("wire", TRAVELLING[call.name], call.start, call.stop, LETTERS.get(call.unit, call.unit[-1]))

    def box(self, row: str, look: Any, start: float, stop: float, sign: str) -> None:
        x, y = self.across(start), ROWS[row]
        wide = max(0.8, self.across(stop) - x)
        self.drawing.box(x, y, wide, BOX, filled(look))
        middle = x + wide / 2
        if sign and wide >= (9 if sign.isdigit() else 12):
            self.drawing.text(middle, y + 14, sign, words(11, halo=3))
        elif sign and not (row in self.before and self.before[row][0] == sign and middle - self.before[row][1] < 12):
            # Beneath its box; where forward meets backward, two boxes of one unit share a letter.
            self.drawing.text(middle, y + BOX + 11, sign, SMALL)
            self.before[row] = sign, middle

    def draw_legend(self) -> None:
        used = [MEMORY[kind] for kind in KINDS if any(sample.bytes.get(kind) for sample in self.rank.course)]
        also = {"gathered units": ", all_gather", "gradient buffers": ", reduce_scatter"}
        looks = [look._replace(name=look.name + also.get(look.name, "")) for look in used]
        self.drawing.legend([*looks, TRAVELLING["all_reduce"]], 6, BOTTOM + 22, 200, 2)
        self.drawing.text(206, HIGH - 5, "E embedding, H head; dot: the peak", START)


def computed(flow: Flow) -> list[Any]:
    spans = [span for span in flow.ranks[0].spans if span.kind == "compute" and span.stop - span.start > 0.5e-6]
    return sorted(spans, key=lambda span: span.start)


def headline(flow: Flow) -> str:
    run, rank = flow.run, flow.ranks[0]
    said = ["with overlap" if run.overlap else "without overlap"]
    if run.stage == 3:
        said.append("with prefetch" if run.prefetch else "without prefetch")
    if run.offload:
        said.append("optimizer on the host")
    text = f"Stage {run.stage}, {', '.join(said)}: {1e6 * flow.seconds:,.0f} µs; {peak_name(rank)}."
    host = sum(nbytes for kind, nbytes in rank.course[-1].bytes.items() if kind.startswith("host:"))
    return f"{text} {kb(host)} kB rest on the host." if host else text


def peak_name(rank: StepOfRank) -> str:
    """Such as "peak 2,114 kB in backward block 1, the largest part gradient buffers"."""
    kind = max(KINDS, key=lambda kind: rank.peak.bytes.get(kind, 0))
    where = rank.peak_at.replace("blocks.", "block ")
    return f"peak {rank.peak.total / 1e3:,.0f} kB in {where}, the largest part {named(kind)}"


def compared(flow: Flow, plain: Flow) -> str:
    """Rank 0 of this step beside stage 0's: times, bytes sent, and bytes by kind at the peak."""
    ranks = [plain.ranks[0], flow.ranks[0]]
    kinds = [kind for kind in KINDS if any(rank.peak.bytes.get(kind) for rank in ranks)]
    rows = [
        ["step, µs", *(f"{1e6 * rank.seconds:,.0f}" for rank in ranks)],
        ["computing, µs", *(f"{1e6 * rank.busy_seconds('compute'):,.0f}" for rank in ranks)],
        ["in collectives, µs", *(f"{1e6 * rank.busy_seconds('collective'):,.0f}" for rank in ranks)],
        ["both at once, µs", *(f"{1e6 * rank.overlapped:,.0f}" for rank in ranks)],
        ["sent, bytes", *(f"{sum(one.sent(one.seconds).values()):,}" for one in (plain, flow))],
        ["peak, bytes", *(f"{rank.peak.total:,}" for rank in ranks)],
        *([f"  {named(kind)}", *(f"{rank.peak.bytes.get(kind, 0):,}" for rank in ranks)] for kind in kinds),
    ]
    return text_table(["rank 0", "stage 0", "as set"], rows)


def boxes(flow: Flow) -> str:
    """What the two rows of the picture show, in order of time."""
    rows = [(span.start, span.stop, "compute", span.name.replace("blocks.", "block ")) for span in computed(flow)]
    rows += [(call.start, call.stop, "wire", f"{call.name} of {nice(call.unit)}") for call in flow.calls]
    shown = [[what, row, f"{1e6 * start:,.0f}", f"{1e6 * stop:,.0f}"] for start, stop, row, what in sorted(rows)]
    return text_table(["what", "row", "from, µs", "to, µs"], shown)
