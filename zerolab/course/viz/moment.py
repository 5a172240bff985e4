"""One moment of a ring collective: what every rank holds of every chunk, and what moves now."""

from __future__ import annotations

from typing import Any

from matplotlib.patches import FancyArrowPatch, Rectangle

from zerolab.course.viz.film import NUMEL, Message, Moment, film
from zerolab.course.viz.looks import HATCHES, PALE, ink
from zerolab.course.viz.picture import Picture, blank, text_table
from zerolab.course.viz.ring import Hop, wrapped
from zerolab.errors import InputError

HALF_WIDTH, HALF_HEIGHT = 0.36, 0.31
"""Of a box, in units of the grid: the rest is room for arrows."""


def ring_moment(collective: str = "reduce_scatter", ranks: int = 4, step: int = 0, numel: int = NUMEL) -> Picture:
    """A ring `collective` (`film.py`) after `step` steps: a row for each rank, a column for each chunk, and an arrow
    for each message of the step that comes now. The ring takes N-1 steps, an all_reduce twice as many."""
    moments = film(collective, ranks, numel)
    last = len(moments) - 1
    if isinstance(step, bool) or not isinstance(step, int) or not 0 <= step <= last:
        raise InputError(f"{collective} over {ranks} ranks is never {step!r} steps on; take 0 to {last}")
    moment = moments[step]
    figure = blank(min(7.9, max(4.2, 1.1 * ranks + 1.0)), (0.74 if ranks < 6 else 0.6) * ranks + 0.5)
    axes = figure.add_subplot()
    leaving = {(message.src, message.hop.chunk) for message in moment.messages}
    for rank, row in enumerate(moment.held):
        for chunk, hop in enumerate(row):
            _box(axes, rank, chunk, hop, ranks, (rank, chunk) in leaving)
    for message in moment.messages:
        _arrow(axes, message)
    _frame(axes, ranks)
    said, alt, table = ring_text(collective, moments, step)
    return Picture(figure, table, alt, said)


def ring_text(collective: str, moments: tuple[Moment, ...], step: int) -> tuple[str, str, str]:
    """What a moment comes to, in a sentence; the same for who does not see it; and its numbers as a table."""
    moment, said = moments[step], headline(collective, moments, step)
    ranks = len(moment.held)
    sums = [sum(hop is not None and len(hop.ranks) == ranks for hop in row) for row in moment.held]
    alt = f"{said}. Complete chunks on ranks 0 to {ranks - 1}: {', '.join(map(str, sums))}."
    return said, alt, _table(moment, ranks)


def headline(collective: str, moments: tuple[Moment, ...], step: int) -> str:
    """Such as "all_reduce over 4 ranks, after 3 of 6 steps: complete chunks travel next"."""
    ranks, last = len(moments[0].held), len(moments) - 1
    start = f"{collective} over {ranks} ranks"
    if step == last:
        return f"{start}, after {last} step{'s' * (last > 1)}: each rank has sent {_range(moments[step].sent)} bytes"
    summands = {len(message.hop.ranks) for message in moments[step].messages}
    count = summands.pop()
    what = "complete chunks travel" if count == ranks else f"sums of {count} of {ranks} summands travel"
    return f"{start}, after {step} of {last} steps: {what.replace('sums of 1 of', 'chunks with 1 of')} next"


def _range(values: tuple[int, ...]) -> str:
    low, high = min(values), max(values)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _table(moment: Moment, ranks: int) -> str:
    """By rank: summands of each chunk that it holds, its message of this step, its bytes so far."""
    moving = {message.src: message for message in moment.messages}
    rows = []
    for rank, row in enumerate(moment.held):
        cells = ["-" if hop is None else f"{len(hop.ranks)} of {ranks}" for hop in row]
        now = "nothing"
        if message := moving.get(rank):
            now = f"chunk {message.hop.chunk} to rank {message.dst}, {message.nbytes:,} bytes"
        rows.append([f"rank {rank}", *cells, now, f"{moment.sent[rank]:,}"])
    return text_table(["summands of", *(f"chunk {chunk}" for chunk in range(ranks)), "sends now", "sent before"], rows)


def _box(axes: Any, rank: int, chunk: int, hop: Hop | None, ranks: int, leaves: bool) -> None:
    corner, size = (chunk - HALF_WIDTH, rank - HALF_HEIGHT), (2 * HALF_WIDTH, 2 * HALF_HEIGHT)
    if hop is None:
        axes.add_patch(Rectangle(corner, *size, fill=False, edgecolor="#777777", linewidth=0.8, linestyle=":"))
        return
    share = len(hop.ranks) / ranks
    axes.add_patch(
        Rectangle(
            corner, *size, facecolor=(PALE[chunk], 0.1 + 0.7 * share), hatch=HATCHES[chunk],
            edgecolor=ink(PALE[chunk]), linewidth=0,
        )
    )  # fmt: skip
    width = 2.4 if share == 1 else 1.6 if leaves else 0.6
    axes.add_patch(Rectangle(corner, *size, fill=False, edgecolor="black", linewidth=width, zorder=3))
    label = wrapped(hop.sum(ranks), most=3)
    count = "" if share == 1 else f"\n{len(hop.ranks)} of {ranks}"
    ground = {"boxstyle": "round,pad=0.12", "facecolor": "white", "edgecolor": "none", "alpha": 0.95}
    size_of_text = 8.5 if ranks < 6 else 7.5 if len(label) < 12 else 6.5
    axes.text(
        chunk, rank, f"{label}{count}", ha="center", va="center", fontsize=size_of_text, bbox=ground, zorder=4,
    )  # fmt: skip


def _arrow(axes: Any, message: Message) -> None:
    """Down its column to the next rank; from the last rank around, beside the column, up to rank 0."""
    chunk, colour = message.hop.chunk, ink(PALE[message.hop.chunk])
    down = message.dst > message.src
    side = 0.0 if down else HALF_WIDTH
    start = (chunk + side, message.src + (HALF_HEIGHT if down else 0.0))
    stop = (chunk + side, message.dst - (HALF_HEIGHT if down else 0.0))
    path = "arc3" if down else f"bar,fraction={0.11 / message.src:.3f}"
    axes.add_patch(
        FancyArrowPatch(
            start, stop, arrowstyle="-|>", mutation_scale=15, connectionstyle=path, color=colour,
            linewidth=2.2, linestyle="-" if down else (0, (4, 2)), shrinkA=0, shrinkB=0, zorder=5,
        )
    )  # fmt: skip


def _frame(axes: Any, ranks: int) -> None:
    axes.set_xlim(-0.5, ranks - 0.4)
    axes.set_ylim(ranks - 0.55, -0.45)
    axes.set_xticks(range(ranks), [f"chunk {chunk}" for chunk in range(ranks)])
    axes.set_yticks(range(ranks), [f"rank {rank}" for rank in range(ranks)])
    axes.xaxis.tick_top()
    axes.tick_params(length=0, labelsize=10)
    for spine in axes.spines.values():
        spine.set_visible(False)
