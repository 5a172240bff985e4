"""Which rank reads which part of whose files, when a checkpoint is loaded by another number of ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from zerolab.checkpoint.manifest import ShardRange
from zerolab.checkpoint.planner import plan
from zerolab.course.viz.drawing import Drawing, Frame, Style, filled, words
from zerolab.course.viz.looks import WHITE, Look, pale_look
from zerolab.course.viz.picture import Picture, check_ranks, text_table
from zerolab.course.viz.shards import PADDING
from zerolab.flat import Layout, lay_out
from zerolab.flat.layout import ALIGN, check_count
from zerolab.zero.start import check_stage

WIDE, LEFT, ROW, BOX, SAVED, TOP = 520, 104, 34, 24, 50, 104
LETTER = 8.4
"""Dots of a letter: a part too narrow for its name has none."""
MOST_SAID = 4
"""Ranks that the words for the picture name one by one."""


class RankRead(NamedTuple):
    """Rank `rank` reads the elements `[start, stop)` of a parameter from the files of rank `writer`; they lie at
    `[first, last)` of the flat buffer."""

    rank: int
    parameter: str
    start: int
    stop: int
    writer: int
    first: int
    last: int


def reshard_map(
    shapes: Mapping[str, Sequence[int]],
    saved_by: int,
    loaded_by: int,
    stage: int = 2,
    nbytes: int = 14,
    align: int = ALIGN,
) -> Picture:
    """A flat buffer of parameters of these shapes, saved by so many ranks and loaded by so many others. Above stands
    who saved what, beneath it a row for each rank that loads: what it reads, in the colour of whose files it reads.

        viz.reshard_map({"w": (30, 40), "b": (30,)}, saved_by=4, loaded_by=3)

    stage   of those who load: at stage 0 each rank reads everything, at the others its own shard
    nbytes  of an element with its states: 14 in 16 bits with Adam (2 + 4 + 4 + 4)
    align   slots and shards start at multiples of so many elements

    Raises:
        InputError: ranks outside 1 to 8, a stage that there is not, or no bytes.
    """
    for ranks in (saved_by, loaded_by):
        check_ranks(ranks)
    before, after = (lay_out(shapes, ranks, align) for ranks in (saved_by, loaded_by))
    return reshard_frames(before, after, stage, nbytes)[-1].picture()


def reshard_text(
    found: Sequence[RankRead], saved_by: int, loaded_by: int, stage: int, nbytes: int
) -> tuple[str, str, str]:
    """What the readings come to, in a sentence; the same for who does not see them; and their numbers as a table."""
    totals = [nbytes * sum(r.stop - r.start for r in found if r.rank == rank) for rank in range(loaded_by)]
    files = [len({r.writer for r in found if r.rank == rank}) for rank in range(loaded_by)]
    at = f"at stage{'s 1 to 3' if stage else ' 0'}"
    verdict = f"Saved by {_ranks(saved_by)}, loaded by {_ranks(loaded_by)} {at}: a rank reads at most "
    verdict += f"{max(totals):,} bytes, from the files of at most {_ranks(max(files))}; all together {sum(totals):,}."
    rows = [
        [f"rank {r.rank}", f"{r.parameter} [{r.start}, {r.stop})", f"rank {r.writer}", nbytes * (r.stop - r.start)]
        for r in found
    ]
    table = text_table(["read by", "elements", "from", "bytes"], [[*row[:3], f"{row[3]:,}"] for row in rows])
    said = [
        f"rank {rank} reads {total:,} bytes from {_files({r.writer for r in found if r.rank == rank})}"
        for rank, total in enumerate(totals)
    ]
    alt = f"A checkpoint of {_ranks(saved_by)}, read by {_ranks(loaded_by)}: {'; '.join(said)}."
    alt = alt if len(said) <= MOST_SAID else verdict
    return verdict, alt, table


def readings(before: Layout, after: Layout, stage: int) -> list[RankRead]:
    """What each rank of `after` reads of what the ranks of `before` have saved, in the order of ranks and elements."""
    saved: dict[str, list[ShardRange]] = {slot.name: [] for slot in before.slots}
    for writer in range(before.ranks):
        for piece in before.pieces(writer):
            saved[piece.slot.name].append(
                ShardRange(piece.start - piece.slot.start, piece.stop - piece.slot.start, writer)
            )
    whole = lay_out({slot.name: slot.shape for slot in after.slots}, 1, after.align)
    found = []
    for rank in range(after.ranks):
        for piece in whole.pieces(0) if stage == 0 else after.pieces(rank):
            slot = piece.slot
            for part in plan(saved[slot.name], piece.start - slot.start, piece.stop - slot.start):
                place = slot.start + part.start, slot.start + part.stop
                found.append(RankRead(rank, slot.name, part.start, part.stop, part.source.writer, *place))
    return found


def _ranks(count: int) -> str:
    return f"{count} rank{'s' * (count != 1)}"


def _files(ranks: set[int]) -> str:
    if not ranks:
        return "no files"
    *others, last = map(str, sorted(ranks))
    return f"the files of ranks {', '.join(others)} and {last}" if others else f"the files of rank {last}"


def reshard_frames(before: Layout, after: Layout, stage: int, nbytes: int) -> list[Frame]:
    """Rank after rank that loads, its parts move from where they were saved to a row of its own."""
    check_stage(stage)
    check_count("nbytes", nbytes)
    found = readings(before, after, stage)
    said, alt, table = reshard_text(found, before.ranks, after.ranks, stage, nbytes)
    frames = []
    for read in range(after.ranks + 1):
        words = said, f"{read} of {_ranks(after.ranks)} have read. {alt}", table
        frames.append(Frame(_drawn(before, after, found, read), words, 300 if read else 0))
        frames.append(Frame(_drawn(before, after, found, read, leaves=True)))
    return frames[:-1]


def _drawn(before: Layout, after: Layout, found: Sequence[RankRead], read: int, leaves: bool = False) -> Drawing:
    """The flat buffer three times: its parameters, who saved what, and a row for each rank that loads. `read` ranks
    have read; if the next `leaves`, its parts lie where they were saved."""
    scale = (WIDE - LEFT - 6) / max(before.numel, after.numel, 1)
    drawing = Drawing(WIDE, TOP + ROW * after.ranks + 4)

    def box(y: float, first: int, last: int, look: Look, texts: Sequence[str] = (), name: str = "") -> None:
        wide = (last - first) * scale
        drawing.box(LEFT + first * scale, y, wide, BOX, filled(look), name)
        text = next((text for text in texts if wide > LETTER * len(text) + 6), "")
        if text:
            drawing.text(LEFT + (first + last) / 2 * scale, y + 17, text, words(14, halo=3), name and f"{name} name")

    drawing.text(LEFT - 6, 25, "parameters", words(anchor="end"))
    for slot in before.slots:
        box(8, slot.start, slot.stop, Look("", WHITE, ""), [slot.name])
    drawing.text(LEFT - 6, SAVED + 17, "saved by", words(anchor="end"))
    for writer in range(before.ranks):
        first, last = before.shard(writer)
        box(SAVED, first, last, PADDING)
        for piece in before.pieces(writer):
            box(SAVED, piece.start, piece.stop, pale_look(writer))
        used = max((piece.stop for piece in before.pieces(writer)), default=first)
        text = f"rank {writer}" if (used - first) * scale > LETTER * 6 + 4 else str(writer)
        if used > first:
            drawing.text(LEFT + (first + used) / 2 * scale, SAVED + 17, text, words(14, halo=3))
    drawing.line((0, TOP - 15, WIDE, TOP - 15), Style(line="#777777", width=1))
    for rank in range(after.ranks):
        drawing.text(LEFT - 6, TOP + ROW * rank + 17, f"rank {rank} reads", words(14, anchor="end"))
    for number, one in enumerate(found):
        if one.rank < read + leaves:
            there = one.rank < read
            texts = [f"from rank {one.writer}", f"{one.writer}"] if there else []
            y = TOP + ROW * one.rank if there else SAVED
            box(y, one.first, one.last, pale_look(one.writer), texts, f"part {number}")
    return drawing
