"""A ring collective step by step: ranks on a circle, what each holds of each chunk, and chunks on their way, as the
library's own ring moved them (`film.py`)."""

from __future__ import annotations

from math import cos, pi, sin

from zerolab.course.viz.drawing import Drawing, Frame, Style, words
from zerolab.course.viz.film import Message, Moment, film
from zerolab.course.viz.looks import PALE
from zerolab.course.viz.picture import text_table

SIZE, RADIUS = 520, 196
LEGEND = (
    "a box: a chunk of the tensor;", "its height: how many ranks are", "added in it; thick frame: all of them",
    "a disc: a chunk on its way,", "with that number",
)  # fmt: skip
SHARES = {0.0: 400, 0.5: 400, 1.0: 300}
"""Of a message's way, at which there is a frame, and the milliseconds to the next."""


def ring_frames(collective: str, ranks: int) -> list[Frame]:
    """A ring `collective` step by step: N-1 steps, an all_reduce twice as many."""
    moments = film(collective, ranks)
    found = []
    for step, moment in enumerate(moments):
        for share, millis in SHARES.items() if moment.messages else [(0.0, 0)]:
            said = () if share else ring_text(collective, moments, step)
            found.append(Frame(drawn(moment, step, share), said, millis))
    return found


def drawn(moment: Moment, step: int, share: float) -> Drawing:
    ranks = len(moment.held)
    cell = 24 if ranks < 6 else 17 if ranks < 8 else 14.4
    drawing = Drawing(SIZE, SIZE)
    drawing.add("", "disc", (SIZE / 2, SIZE / 2, RADIUS), Style(line="#999999", dash=(4, 5)))
    for at, line in enumerate(LEGEND):
        drawing.text(SIZE / 2, SIZE / 2 + 20 * at - 32 + 8 * (at > 2), line, words())
    leaving = {(message.src, message.hop.chunk) for message in moment.messages}
    for rank, row in enumerate(moment.held):
        x, y = place(rank, ranks)
        left, top = x - cell * ranks / 2, y - cell / 2 - 8
        drawing.box(left - 5, top - 19, cell * ranks + 10, cell + 25, Style("white", "#333333"))
        drawing.text(x, top - 5, f"rank {rank}", words())
        for chunk, hop in enumerate(row):
            box = left + chunk * cell + 1
            drawing.box(box, top, cell - 2, cell, Style(line="#777777", width=0.8, dash=(2, 2)))
            if hop:
                high = cell * len(hop.ranks) / ranks
                whole, leaves = len(hop.ranks) == ranks, (rank, chunk) in leaving
                style = Style(PALE[chunk], "#333333", 0.8)
                if whole or leaves:
                    style = style._replace(line="black", width=2.2, dash=() if whole else (4, 2))
                drawing.box(box, top + cell - high, cell - 2, high, style, f"held {rank} {chunk}")
    for message in moment.messages:
        on_its_way(drawing, message, ranks, f"{step} {message.src}", share)
    return drawing


def place(rank: float, ranks: int) -> tuple[float, float]:
    """Where a rank stands, rank 0 at the top and the others clockwise; fractions lie on the way between two."""
    angle = 2 * pi * rank / ranks - pi / 2
    return SIZE / 2 + RADIUS * cos(angle), SIZE / 2 + RADIUS * sin(angle)


def on_its_way(drawing: Drawing, message: Message, ranks: int, name: str, share: float) -> None:
    hops = (message.dst - message.src) % ranks
    x, y = place(message.src + hops * (0.3 + 0.4 * share), ranks)
    style = Style(PALE[message.hop.chunk], "black", 1.2)
    drawing.add(f"disc {name}", "disc", (x, y, 15), style)
    drawing.text(x, y + 5, str(len(message.hop.ranks)), words(), f"count {name}")


def ring_text(collective: str, moments: tuple[Moment, ...], step: int) -> tuple[str, str, str]:
    """What a moment comes to, in a sentence; the same for who does not see it; and its numbers as a table."""
    moment, said = moments[step], headline(collective, moments, step)
    ranks = len(moment.held)
    sums = [sum(hop is not None and len(hop.ranks) == ranks for hop in row) for row in moment.held]
    alt = f"{said}. Complete chunks on ranks 0 to {ranks - 1}: {', '.join(map(str, sums))}."
    return said, alt, table(moment, ranks)


def headline(collective: str, moments: tuple[Moment, ...], step: int) -> str:
    """Such as "all_reduce over 4 ranks, after 3 of 6 steps: complete chunks travel next"."""
    ranks, last = len(moments[0].held), len(moments) - 1
    start = f"{collective} over {ranks} ranks"
    if step == last:
        low, high = min(moments[step].sent), max(moments[step].sent)
        sent = f"{low:,}" if low == high else f"{low:,} to {high:,}"
        return f"{start}, after {last} step{'s' * (last > 1)}: each rank has sent {sent} bytes"
    [count] = {len(message.hop.ranks) for message in moments[step].messages}
    what = "complete chunks travel" if count == ranks else f"sums of {count} of {ranks} summands travel"
    return f"{start}, after {step} of {last} steps: {what.replace('sums of 1 of', 'chunks with 1 of')} next"


def table(moment: Moment, ranks: int) -> str:
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
