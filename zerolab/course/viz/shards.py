"""Which rank owns which part of which parameter, in one flat buffer."""

from __future__ import annotations

from typing import Any

from matplotlib.patches import Rectangle

from zerolab.course.viz.looks import HATCHES, PALE
from zerolab.course.viz.picture import BACKDROP, Picture, blank, text_table
from zerolab.flat import Layout

LETTER = 0.0098
"""Of a row's width: pieces too narrow for their names have none in the picture; the table has all of them."""
PADDING: dict[str, Any] = {"facecolor": "white", "hatch": "xxxxx", "edgecolor": "#777777"}
"""Dense crosses, as no parameter has."""


def shard_map(layout: Layout, itemsize: int = 4) -> Picture:
    """A row for each rank's shard: its pieces of the parameters, drawn to scale, and the padding. `itemsize` is in
    bytes; the table gives elements and bytes."""
    figure = blank(7.2, 0.9 + 0.5 * layout.ranks)
    axes = figure.add_subplot()
    for rank in range(layout.ranks):
        first, last = layout.shard(rank)
        # What no piece covers is padding, between slots and at the end.
        axes.add_patch(Rectangle((0, -rank - 0.38), last - first, 0.76, linewidth=0.6, **PADDING))
        for piece in layout.pieces(rank):
            number = layout.slots.index(piece.slot)
            colour, hatch = PALE[number % len(PALE)], HATCHES[number // len(PALE) % len(HATCHES)]
            axes.add_patch(
                Rectangle(
                    (piece.start - first, -rank - 0.38), piece.numel, 0.76, facecolor=colour, hatch=hatch,
                    edgecolor="black", linewidth=0.6,
                )
            )  # fmt: skip
            if piece.numel > LETTER * len(piece.slot.name) * (last - first):
                middle = (piece.start + piece.stop) / 2 - first
                ground = BACKDROP if hatch else None
                axes.text(middle, -rank, piece.slot.name, ha="center", va="center", fontsize=8, bbox=ground)
    axes.set_xlim(0, max(layout.shard_numel, 1))
    axes.set_ylim(-layout.ranks + 0.4, 0.6)
    axes.set_yticks([-rank for rank in range(layout.ranks)], [f"rank {rank}" for rank in range(layout.ranks)])
    axes.set_xlabel(f"elements of a rank's shard; crossed: {padding_of(layout):,} elements of padding in all")
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    alt, table = shard_text(layout, itemsize)
    return Picture(figure, table, alt)


def padding_of(layout: Layout) -> int:
    """Elements that belong to no parameter."""
    return layout.numel - sum(slot.numel for slot in layout.slots)


def shard_text(layout: Layout, itemsize: int = 4) -> tuple[str, str]:
    """What the map shows, in a sentence, and its numbers as a table."""
    rows = []
    for rank in range(layout.ranks):
        padding = layout.shard_numel
        for piece in layout.pieces(rank):
            inside = f"[{piece.start - piece.slot.start}, {piece.stop - piece.slot.start}) of {piece.slot.numel}"
            rows.append([f"rank {rank}", piece.slot.name, inside, piece.numel, piece.numel * itemsize])
            padding -= piece.numel
        if padding:
            rows.append([f"rank {rank}", "padding", "", padding, padding * itemsize])
    said = f"{len(layout.slots)} parameters in a flat buffer of {layout.numel:,} elements, cut into {layout.ranks} "
    said += f"shards of {layout.shard_numel:,} elements; {padding_of(layout):,} of all are padding."
    return said, text_table(["", "parameter", "elements", "numel", "bytes"], rows)
