"""What is busy when, on one time axis: what one rank computed and sent, or when which rank sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from matplotlib.figure import Figure

from zerolab.collectives import Span, overlap_seconds
from zerolab.course.viz.looks import COMPUTING, MEMORY, TRAVELLING, Look, pale_look
from zerolab.course.viz.picture import BACKDROP, Picture, figures, legend, panels, text_table
from zerolab.errors import InputError
from zerolab.ranks.lockstep.transport import Event

INCHES, LETTER = 6.3, 0.07
"""About as long as the time axis is, and a letter of a label, for deciding which labels fit."""


class Stretch(NamedTuple):
    """`row` is busy from `start` to `stop`. A thin one only waits."""

    row: int
    look: Look
    start: float
    stop: float
    label: str = ""
    thin: bool = False


def draw_spans(
    runs: Mapping[str, Sequence[Stretch]], rows: Sequence[str], across: str, looks: Sequence[Look]
) -> Figure:
    """A panel for each run, by its title, with a line at its end; in each the same rows. `looks` are explained."""
    figure, found = panels(len(runs), (0.33 * len(rows) + 0.38) * len(runs) + 0.75)
    total = max(bar.stop for bars in runs.values() for bar in bars)
    for axes, (title, bars) in zip(found, runs.items(), strict=True):
        for bar in bars:
            width, middle = bar.stop - bar.start, (bar.start + bar.stop) / 2
            axes.barh(
                bar.row, width, 0.04 if bar.thin else 0.72, left=bar.start, color=bar.look.colour,
                hatch=bar.look.hatch, edgecolor="black", linewidth=0.5,
            )  # fmt: skip
            if bar.label and LETTER * (len(bar.label) + 1) < width / total * INCHES:
                axes.text(middle, bar.row, bar.label, ha="center", va="center", fontsize=8, bbox=BACKDROP)
        axes.axvline(max(bar.stop for bar in bars), color="black", linewidth=1)
        axes.set_title(title, loc="left", fontsize=10)
        axes.set(yticks=range(len(rows)), yticklabels=rows, ylim=(len(rows) - 0.5, -0.5))
    found[-1].set(xlim=(0, 1.005 * total), xlabel=across)
    if looks:
        legend(figure, looks, 6)
    return figure


SPANS = ("compute", "collective")
OTHER = Look("other collectives", *MEMORY["communication_buffers"][1:])
BLACK = Look("", "black", "")
LOOKS = (*COMPUTING.values(), *TRAVELLING.values(), OTHER)


def timelines(runs: Mapping[str, Sequence[Span]]) -> Picture:
    """A panel for each run, all on one axis that begins at its own first span: above what a rank computes, beneath its
    collectives.

    runs    by name, the spans of one rank, as of `watch_step`, or `comm.tracer.spans` returned from a rank function
            that was launched with trace=True. The first word of a span's name decides how it is drawn
    """
    drawn, rows, said = {}, [], []
    for name, spans in runs.items():
        bars = bars_of(name, spans)
        busy = [[(bar.start, bar.stop) for bar in bars if bar.row == row] for row in range(2)]
        last = figures(max(bar.stop for bar in bars))
        computing, sending, both = (
            figures(overlap_seconds(one, other)) for one, other in ((busy[0],) * 2, (busy[1],) * 2, busy)
        )
        drawn[f"{name}: {last} ms"] = bars
        rows.append([name, last, computing, sending, both])
        said.append(f"{name} takes {last} ms, of which {both} ms computing and sending at once")
    used = {bar.look for bars in drawn.values() for bar in bars}
    if len(used & {*LOOKS[:3]}):
        used -= {COMPUTING["compute"]}  # white, too, and too short to be told apart
    looks = [look for look in LOOKS if look in used]
    figure = draw_spans(drawn, ["computes", "sends"], "ms since the start, on one rank", looks)
    table = text_table(["ms", "takes", "computing", "in collectives", "both at once"], rows)
    return Picture(figure, table, f"Timelines on one axis: {'; '.join(said)}.")


def bars_of(name: str, spans: Sequence[Span]) -> list[Stretch]:
    """The spans that take time, in milliseconds since the first begins."""
    found = [span for span in spans if span.stop > span.start]
    if not found:
        raise InputError(f"{name!r} has no span that takes time; record it with trace=True and a link")
    first = min(span.start for span in found)
    return [
        Stretch(
            SPANS.index(span.kind), look_of_span(span), 1e3 * (span.start - first), 1e3 * (span.stop - first),
            span.name.partition(" ")[2],
        )
        for span in found
    ]  # fmt: skip


def look_of_span(span: Span) -> Look:
    """A collective by its name, computing by its first word."""
    word = span.name.partition(" ")[0]
    if span.kind == "compute":
        return COMPUTING.get(word, COMPUTING["compute"])
    return TRAVELLING.get(word, OTHER)


def timeline(traces: Mapping[str, Sequence[Event]], ranks: int) -> Picture:
    """A panel for each trace of a lockstep launch with a link, a row for each rank, a bar for each message that it
    sends; a thin line while the message waits for its receiver or its wire."""
    drawn, rows = {}, []
    for number, (name, trace) in enumerate(traces.items()):
        sends = [event for event in trace if event.kind == "send"]
        last = f"{1e3 * max((event.end for event in sends), default=0):.4g}"
        rows.append([name, len(sends), last])
        waits = [Stretch(one.rank, BLACK, 1e3 * one.start, 1e3 * one.out, thin=True) for one in sends]
        moves = [Stretch(one.rank, pale_look(number), 1e3 * one.out, 1e3 * one.end) for one in sends]
        drawn[f"{name}: done after {last} ms"] = [*waits, *moves]
    if not any(bar.stop > bar.start for bars in drawn.values() for bar in bars):
        raise InputError("no message takes any time; launch in lockstep with trace=True and a link")
    across = "milliseconds on the virtual clock; bar: a message on its way, line: its wait for receiver or wire"
    figure = draw_spans(drawn, [f"rank {rank}" for rank in range(ranks)], across, ())
    said = "; ".join(f"{name} sends {count} messages in {until} ms" for name, count, until in rows)
    table = text_table(["", "messages", "milliseconds"], rows)
    return Picture(figure, table, f"Who sends when on {ranks} ranks: {said}.")
