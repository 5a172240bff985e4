"""A ring collective, step by step, drawn from the messages that the library's own code sends.

Rank r brings (c+1) * 10^r as chunk c. A number on the way then tells by its digits which chunk it is, and by their
places whose summands are in it: 303 is chunk 2 with the summands of ranks 0 and 2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from matplotlib.patches import Rectangle

from zerolab.collectives import RingCollectives, Transport
from zerolab.collectives.transport import WrappedTransport
from zerolab.course.viz.looks import HATCHES, PALE, ink
from zerolab.course.viz.picture import Picture, blank, text_table
from zerolab.errors import InputError
from zerolab.ranks import launch

MOST_RANKS = 8


@dataclass(frozen=True)
class Hop:
    """What a rank holds when it sends in a step: a chunk, and the ranks whose summands are in it."""

    chunk: int
    ranks: tuple[int, ...]

    def sum(self, ranks: int) -> str:
        """Its sum so far, such as "g3+g0"; "complete" once all `ranks` are in it."""
        # Chunk c sets out from rank c+1, so this is the order in which its summands came.
        came = sorted(self.ranks, key=lambda rank: (rank - self.chunk - 1) % ranks)
        return "complete" if len(came) == ranks else "+".join(f"g{rank}" for rank in came)


class Witness(WrappedTransport):
    """A transport that notes what each payload is; all elements of one are alike."""

    def __init__(self, inner: Transport) -> None:
        super().__init__(inner)
        self.payloads: list[int] = []

    def exchange(self, outgoing: torch.Tensor, dst: int, incoming: torch.Tensor, src: int, tag: int = 0) -> None:
        self.payloads.append(int(outgoing[0]))
        super().exchange(outgoing, dst, incoming, src, tag)


def watch_ring(collective: str, ranks: int) -> list[list[Hop]]:
    """By rank, what it sends in each step of a "reduce_scatter" or "all_gather" and, last, what it has in hand at the
    end. The library's own ring runs, in lockstep."""
    if collective not in ("reduce_scatter", "all_gather"):
        raise InputError(f"no ring of {collective!r} can be watched; name reduce_scatter or all_gather")
    if isinstance(ranks, bool) or not isinstance(ranks, int) or not 2 <= ranks <= MOST_RANKS:
        raise InputError(f"a ring of {ranks!r} ranks cannot be drawn; take 2 to {MOST_RANKS}")

    def on_rank(transport: Transport) -> list[int]:
        witness = Witness(transport)
        comm = RingCollectives(witness)
        names = torch.arange(1, ranks + 1)
        if collective == "reduce_scatter":
            last = comm.reduce_scatter(names * 10**comm.rank)
        else:
            # What is gathered is complete: the sum over all ranks.
            complete = names * sum(10**rank for rank in range(ranks))
            last = comm.all_gather(complete[comm.rank : comm.rank + 1]).roll(-comm.rank - 1)
        return [*witness.payloads, int(last[0])]

    sent = launch(on_rank, ranks=ranks, world="lockstep", collectives="transport", device="cpu", prints="quiet")
    return [[decode(value) for value in payloads] for payloads in sent]


def decode(value: int) -> Hop:
    """Which chunk a number is, and whose summands are in it."""
    digits = [int(digit) for digit in reversed(str(value))]
    return Hop(max(digits) - 1, tuple(rank for rank, digit in enumerate(digits) if digit))


def ring_steps(collective: str = "reduce_scatter", ranks: int = 4) -> Picture:
    """What each rank has in hand before each step and at the end, and where it goes."""
    hops = watch_ring(collective, ranks)
    heads = [f"sent in step {step}" for step in range(1, ranks)] + ["end"]
    figure = blank((1.75 if ranks < 6 else 1.35) * ranks + 0.7, 0.78 * ranks + 0.6)
    axes = figure.add_subplot()
    for rank, row in enumerate(hops):
        for step, hop in enumerate(row):
            _box(axes, step, rank, hop, ranks)
            if step < ranks - 1:
                _arrow(axes, step, rank, ranks, ink(PALE[hop.chunk]))
    axes.set_xlim(-0.45, ranks - 0.55)
    axes.set_ylim(ranks - 0.55, -0.45)
    axes.set_xticks(range(ranks), heads)
    axes.set_yticks(range(ranks), [f"rank {rank}" for rank in range(ranks)])
    axes.xaxis.tick_top()
    axes.tick_params(length=0, labelsize=10)
    for spine in axes.spines.values():
        spine.set_visible(False)
    rows = [[f"rank {rank}", *(f"chunk {hop.chunk}: {hop.sum(ranks)}" for hop in row)] for rank, row in enumerate(hops)]
    alt = f"A ring {collective} over {ranks} ranks: in each of {ranks - 1} steps a rank sends a chunk to its right "
    last = [hop.chunk for hop in (row[-1] for row in hops)]
    alt += f"neighbour, and at the end ranks 0 to {ranks - 1} hold chunk {', '.join(map(str, last))} complete."
    return Picture(figure, text_table(["", *heads], rows), alt)


def _box(axes: Any, step: int, rank: int, hop: Hop, ranks: int) -> None:
    complete = len(hop.ranks) == ranks
    axes.add_patch(
        Rectangle(
            (step - 0.31, rank - 0.3), 0.62, 0.6,
            facecolor=(PALE[hop.chunk], 0.75 if complete else 0.35), hatch=HATCHES[hop.chunk],
            edgecolor=ink(PALE[hop.chunk]), linewidth=0, zorder=2,
        )
    )  # fmt: skip
    axes.add_patch(
        Rectangle(
            (step - 0.31, rank - 0.3), 0.62, 0.6,
            fill=False, edgecolor="black", linewidth=2.2 if complete else 0.8, zorder=3,
        )
    )  # fmt: skip
    ground = {"boxstyle": "round,pad=0.12", "facecolor": "white", "edgecolor": "none", "alpha": 0.95}
    label = wrapped(hop.sum(ranks))
    axes.text(
        step, rank, f"chunk {hop.chunk}\n{label}",
        ha="center", va="center", fontsize=9 if len(label) <= 9 else 7.5 if ranks < 6 else 6.5, bbox=ground, zorder=4,
    )  # fmt: skip


def wrapped(summands: str, most: int = 4) -> str:
    """A sum such as "g1+g2" in lines of at most `most` summands, as wide as a box."""
    parts = summands.split("+")
    return "+\n".join("+".join(parts[at : at + most]) for at in range(0, len(parts), most))


def _arrow(axes: Any, step: int, rank: int, ranks: int, colour: tuple[float, float, float]) -> None:
    """From a rank to its right neighbour in the next step; the last rank's goes back up to rank 0."""
    to = (rank + 1) % ranks
    start, stop = (step + 0.31, rank), (step + 0.69, to)
    axes.annotate(
        "", xy=stop, xytext=start,
        arrowprops={"arrowstyle": "-|>", "color": colour, "linewidth": 2.0,
                    "linestyle": "-" if to else (0, (4, 3))},
        zorder=1,
    )  # fmt: skip
