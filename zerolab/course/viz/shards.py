"""Which rank owns which part of which parameter: parameters one by one, end to end in a flat buffer, and cut up."""

from __future__ import annotations

from collections.abc import Iterator

from zerolab.course.viz.drawing import Drawing, Frame, Style, filled, words
from zerolab.course.viz.looks import HATCHES, PALE, WHITE, Look
from zerolab.course.viz.picture import Picture, text_table
from zerolab.flat import Layout
from zerolab.flat.layout import Piece

WIDE, LEFT, ROW, TOP = 520, 62, 34, 30
PICTURES = ("parameters, one by one", "end to end in a flat buffer", "cut into shards, one for each rank")
PADDING = Look("padding", WHITE, "xx")
MOST_HIGH, LETTER = 84, 8.4
"""Dots: the height of a row, and the width of a letter."""


def shard_map(layout: Layout) -> Picture:
    """A row for each rank's shard: its pieces of the parameters, drawn to scale, and the padding."""
    return shard_frames(layout)[-1].picture()


def shard_frames(layout: Layout) -> list[Frame]:
    """Three pictures, PICTURES, between which each piece of a parameter that one rank owns moves as a box."""
    said, table = shard_text(layout)
    return [Frame(Plan(layout, at).drawn(), (said, f"{name}: {said}", table)) for at, name in enumerate(PICTURES)]


def padding_of(layout: Layout) -> int:
    """Elements that belong to no parameter."""
    return layout.numel - sum(slot.numel for slot in layout.slots)


def shard_text(layout: Layout) -> tuple[str, str]:
    """What the map shows, in a sentence, and its numbers as a table, with the bytes of fp32."""
    rows = []
    for rank in range(layout.ranks):
        padding = layout.shard_numel
        for piece in layout.pieces(rank):
            inside = f"[{piece.start - piece.slot.start}, {piece.stop - piece.slot.start}) of {piece.slot.numel}"
            rows.append([f"rank {rank}", piece.slot.name, inside, piece.numel, piece.numel * 4])
            padding -= piece.numel
        if padding:
            rows.append([f"rank {rank}", "padding", "", padding, padding * 4])
    said = f"{len(layout.slots)} parameters in a flat buffer of {layout.numel:,} elements, cut into {layout.ranks} "
    said += f"shards of {layout.shard_numel:,} elements; {padding_of(layout):,} of all are padding."
    return said, text_table(["", "parameter", "elements", "numel", "bytes"], rows)


class Plan:
    """Where an element lies in the picture PICTURES[at], and what is drawn there."""

    def __init__(self, layout: Layout, at: int) -> None:
        self.layout, self.at = layout, at
        rows = (len(layout.slots), 2, layout.ranks)
        self.most = max(layout.ranks, len(layout.slots), 3)  # as high as the highest, so that nothing beneath jumps
        self.row = min(MOST_HIGH, ROW * self.most / rows[at])
        room = WIDE - LEFT - 6
        largest = max(slot.numel for slot in layout.slots)
        self.wide = (0.55 * room / max(largest, 1), room / max(layout.numel, 1), room / max(layout.shard_numel, 1))[at]

    def place(self, at: int, rank: int, numel: int, slot: int = 0) -> tuple[float, float, float, float]:
        """The box of `numel` elements from `at` on in the flat buffer, which are those of `rank`."""
        first = self.layout.slots[slot].start
        x, row = ((at - first, slot), (at, 0), (at - rank * self.layout.shard_numel, rank))[self.at]
        return LEFT + x * self.wide, TOP + row * self.row, numel * self.wide, self.row - 10

    def pieces(self) -> Iterator[tuple[int, int, Piece]]:
        for rank in range(self.layout.ranks):
            for piece in self.layout.pieces(rank):
                yield rank, self.layout.slots.index(piece.slot), piece

    def drawn(self) -> Drawing:
        slots, ranks = self.layout.slots, self.layout.ranks
        looks = [Look(slot.name, PALE[at % 9], HATCHES[at // 9 % 9]) for at, slot in enumerate(slots)]
        high = TOP + ROW * self.most
        drawing = Drawing(WIDE, high + 17 * (len(slots) // 2 + 1) + 8)
        drawing.text(LEFT, 18, PICTURES[self.at], words(anchor="start"), "title")
        for rank in range(ranks):
            box = self.place(rank * self.layout.shard_numel, rank, self.layout.shard_numel)
            drawing.box(*box, filled(PADDING) if self.at else Style(), f"padding {rank}")
        for rank, slot, piece in self.pieces():
            drawing.box(*self.place(piece.start, rank, piece.numel, slot), filled(looks[slot]), f"piece {rank} {slot}")
        drawing.legend([*looks, PADDING], 6, high + 4, 257, 2, size=14)
        if self.at:
            for rank, slot, piece in self.pieces():
                x, y, wide, tall = self.place(piece.start, rank, piece.numel, slot)
                if wide > LETTER * len(piece.slot.name) + 8:
                    drawing.text(x + wide / 2, y + tall / 2 + 5, piece.slot.name, words(halo=3), f"name {rank} {slot}")
        if self.at == 0:
            for number, whole in enumerate(slots):
                x, y, wide, tall = self.place(whole.start, 0, whole.numel, number)
                drawing.text(x + wide + 8, y + tall / 2 + 5, whole.name, words(anchor="start"))
        for rank in range(ranks):
            x, y, wide, tall = self.place(rank * self.layout.shard_numel, rank, self.layout.shard_numel)
            if self.at == 1:
                for edge in (x, x + wide):
                    drawing.line((edge, y - 5, edge, y + tall + 5), Style(line="black", width=2))
                drawing.text(x + wide / 2, y + tall + 18, f"rank {rank}" if wide > 54 else str(rank), words())
            elif self.at == 2:
                drawing.text(LEFT - 6, y + tall / 2 + 5, f"rank {rank}", words(anchor="end"))
        return drawing
