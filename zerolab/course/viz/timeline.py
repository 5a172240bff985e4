"""When which rank sent, on the virtual clock of a lockstep launch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from zerolab.course.viz.looks import HATCHES, PALE
from zerolab.course.viz.picture import Picture, blank, text_table
from zerolab.errors import InputError
from zerolab.ranks.lockstep.transport import Event


@dataclass(frozen=True)
class TimedMessage:
    """A message of rank `rank`, in milliseconds: when it was posted, set out and arrived."""

    rank: int
    posted: float
    start: float
    stop: float


def timeline(traces: Mapping[str, Sequence[Event]], ranks: int) -> Picture:
    """A panel for each trace (`Results.trace` of a lockstep launch with a link), a row for each rank, a bar for each
    message that it sends; a thin line while the message waits for its receiver or its wire. All panels have one time
    axis, in milliseconds."""
    sends = {name: messages(trace) for name, trace in traces.items()}
    if not any(message.stop > message.start for found in sends.values() for message in found):
        raise InputError("no message takes any time; launch in lockstep with trace=True and a link")
    figure = blank(7.6, (0.3 * ranks + 0.45) * len(sends) + 0.35)
    panels = figure.subplots(len(sends), 1, sharex=True, squeeze=False)[:, 0]
    for number, (axes, (name, found)) in enumerate(zip(panels, sends.items(), strict=True)):
        for message in found:
            axes.plot([message.posted, message.start], [message.rank] * 2, color="black", linewidth=0.8)
            axes.barh(
                message.rank, message.stop - message.start, left=message.start, height=0.7,
                color=PALE[number], hatch=HATCHES[number], edgecolor="black", linewidth=0.5,
            )  # fmt: skip
        axes.set_yticks(range(ranks), [f"rank {rank}" for rank in range(ranks)])
        axes.set_ylim(ranks - 0.5, -0.5)
        axes.set_title(f"{name}: done after {last(found):.4g} ms", loc="left", fontsize=10)
        axes.spines[["top", "right"]].set_visible(False)
    panels[-1].set_xlabel(
        "milliseconds on the virtual clock; a bar is a message on its way, a line its wait for receiver or wire"
    )
    rows = [[name, len(found), f"{last(found):.4g}"] for name, found in sends.items()]
    said = "; ".join(f"{name} sends {count} messages in {until} ms" for name, count, until in rows)
    return Picture(
        figure, text_table(["", "messages", "milliseconds"], rows), f"Who sends when on {ranks} ranks: {said}."
    )


def messages(trace: Sequence[Event]) -> list[TimedMessage]:
    """The messages of a trace. One is on its way once both sides have posted it and their wires are free."""
    sends = (event for event in trace if event.kind == "send")
    return [TimedMessage(send.rank, send.start * 1e3, send.out * 1e3, send.end * 1e3) for send in sends]


def last(found: Sequence[TimedMessage]) -> float:
    """When the last message has arrived, in milliseconds."""
    return max((message.stop for message in found), default=0.0)
