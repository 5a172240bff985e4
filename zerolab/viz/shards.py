"""Which rank owns which part of which parameter, in one flat buffer."""

from __future__ import annotations

from matplotlib.patches import Rectangle

from zerolab.flat import Layout
from zerolab.viz.picture import COLOURS, HATCHES, Picture, blank, text_table

LETTER = 0.0098
"""Of a row's width: pieces too narrow for their names have none in the picture; the table has all of them."""
DARK = ("#0072B2", "#D55E00", "#009E73")


def shard_map(layout: Layout, itemsize: int = 4) -> Picture:
    """A row for each rank's shard: its pieces of the parameters, drawn to scale, and the padding. `itemsize` is in
    bytes; the table gives elements and bytes."""
    figure = blank(7.2, 0.9 + 0.55 * layout.ranks)
    axes = figure.add_subplot()
    rows = []
    for rank in range(layout.ranks):
        first, last = layout.shard(rank)
        axes.add_patch(Rectangle((0, -rank - 0.38), last - first, 0.76, facecolor="white", edgecolor="#777777"))
        used = 0
        for piece in layout.pieces(rank):
            number = layout.slots.index(piece.slot)
            colour, hatch = COLOURS[number % len(COLOURS)], HATCHES[number // len(COLOURS) % len(HATCHES)]
            axes.add_patch(
                Rectangle(
                    (piece.start - first, -rank - 0.38), piece.numel, 0.76, facecolor=colour, hatch=hatch,
                    edgecolor="white",
                )
            )  # fmt: skip
            if piece.numel > LETTER * len(piece.slot.name) * (last - first):
                middle = (piece.start + piece.stop) / 2 - first
                ink = "white" if colour in DARK else "black"
                axes.text(middle, -rank, piece.slot.name, ha="center", va="center", fontsize=8, color=ink)
            inside = f"[{piece.start - piece.slot.start}, {piece.stop - piece.slot.start}) of {piece.slot.numel}"
            rows.append([f"rank {rank}", piece.slot.name, inside, piece.numel, piece.numel * itemsize])
            used += piece.numel
        padding = last - first - used
        if padding:
            rows.append([f"rank {rank}", "padding", "", padding, padding * itemsize])
    axes.set_xlim(0, max(layout.shard_numel, 1))
    axes.set_ylim(-layout.ranks + 0.4, 0.6)
    axes.set_yticks([-rank for rank in range(layout.ranks)], [f"rank {rank}" for rank in range(layout.ranks)])
    axes.set_xlabel("elements of a rank's shard; white is padding")
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    return Picture(figure, text_table(["", "parameter", "elements", "numel", "bytes"], rows))
