"""Which rank reads which part of whose files, when a checkpoint is loaded by another number of ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from matplotlib.patches import Rectangle

from zerolab.checkpoint.manifest import ShardRange
from zerolab.checkpoint.planner import plan
from zerolab.course.viz.looks import HATCHES, PALE, WHITE
from zerolab.course.viz.picture import BACKDROP, Picture, blank, text_table
from zerolab.course.viz.shards import PADDING
from zerolab.errors import InputError
from zerolab.flat import Layout, lay_out
from zerolab.flat.layout import ALIGN, check_count

MOST_RANKS = 8
LETTER = 0.0098
"""Of the width of the figure: a part too narrow for its name has none."""
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
    for name, ranks in (("saved_by", saved_by), ("loaded_by", loaded_by)):
        if isinstance(ranks, bool) or not isinstance(ranks, int) or not 1 <= ranks <= MOST_RANKS:
            raise InputError(f"{name} is {ranks!r}, which cannot be drawn; take 1 to {MOST_RANKS}")
    if stage not in (0, 1, 2, 3):
        raise InputError(f"the stage is {stage!r}; choose 0, 1, 2 or 3")
    check_count("nbytes", nbytes)
    before, after = (lay_out(shapes, ranks, align) for ranks in (saved_by, loaded_by))
    found = readings(before, after, stage)
    said, alt, table = reshard_text(found, saved_by, loaded_by, stage, nbytes)
    return Picture(_draw(before, after, found), table, alt, said)


def reshard_text(
    found: Sequence[RankRead], saved_by: int, loaded_by: int, stage: int, nbytes: int
) -> tuple[str, str, str]:
    """What the readings come to, in a sentence; the same for who does not see them; and their numbers as a table."""
    totals = [nbytes * sum(r.stop - r.start for r in found if r.rank == rank) for rank in range(loaded_by)]
    files = [len({r.writer for r in found if r.rank == rank}) for rank in range(loaded_by)]
    verdict = f"Saved by {_ranks(saved_by)}, loaded by {_ranks(loaded_by)} at stage {stage}: a rank reads at most "
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


def _draw(before: Layout, after: Layout, found: Sequence[RankRead]) -> Any:
    figure = blank(7.4, 1.3 + 0.36 * after.ranks)
    axes = figure.add_subplot()
    width = max(before.numel, after.numel)
    for slot in before.slots:
        _box(axes, -2.25, slot.start, slot.stop, slot.name, WHITE, "", width, height=0.5)
    for writer in range(before.ranks):
        first, last = before.shard(writer)
        axes.add_patch(Rectangle((first, -1.36), last - first, 0.72, linewidth=0.6, **PADDING))
        for piece in before.pieces(writer):
            _box(axes, -1, piece.start, piece.stop, "", *_look(writer), width)
        used = max((piece.stop for piece in before.pieces(writer)), default=first)
        _name(axes, -1, first, used, f"rank {writer}", width)
    for reading in found:
        names = f"from rank {reading.writer}", str(reading.writer)
        name = next((name for name in names if _fits(name, reading.first, reading.last, width)), "")
        _box(axes, reading.rank + 0.25, reading.first, reading.last, name, *_look(reading.writer), width)
    axes.set_xlim(0, width)
    axes.set_ylim(after.ranks - 0.15, -2.65)
    rows = [-2.25, -1, *(rank + 0.25 for rank in range(after.ranks))]
    axes.set_yticks(
        rows, ["parameters", "saved by", *(f"rank {rank} reads" for rank in range(after.ranks))], fontsize=9
    )
    axes.axhline(-0.38, color="#777777", linewidth=0.8)
    axes.set_xlabel("elements of the flat buffer; crossed: padding, which nobody reads", fontsize=9)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    return figure


def _look(writer: int) -> tuple[str, str]:
    return PALE[writer % len(PALE)], HATCHES[writer % len(HATCHES)]


def _box(
    axes: Any, row: float, first: int, last: int, name: str, colour: str, hatch: str, width: int, height: float = 0.72
) -> None:
    axes.add_patch(
        Rectangle(
            (first, row - height / 2), last - first, height, facecolor=colour, hatch=hatch, edgecolor="black",
            linewidth=0.6,
        )
    )  # fmt: skip
    _name(axes, row, first, last, name, width)


def _name(axes: Any, row: float, first: int, last: int, name: str, width: int) -> None:
    if name and _fits(name, first, last, width):
        axes.text((first + last) / 2, row, name, ha="center", va="center", fontsize=8, bbox={**BACKDROP, "pad": 0.8})


def _fits(name: str, first: int, last: int, width: int) -> bool:
    return last - first > LETTER * (len(name) + 1) * width
