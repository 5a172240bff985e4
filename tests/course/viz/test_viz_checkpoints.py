"""The picture of a checkpoint that is loaded: what it counts is what a load reads."""

import re
from itertools import product
from pathlib import Path

import pytest
import torch
from torch import nn

from zerolab import ZeroEngine
from zerolab.checkpoint import Checkpoints
from zerolab.course.viz.looks import PALE
from zerolab.course.viz.picture import MOST_RANKS
from zerolab.course.viz.reshard import LEFT, ROW, SAVED, TOP, WIDE, readings, reshard_frames, reshard_map
from zerolab.errors import InputError
from zerolab.flat import lay_out
from zerolab.ranks import launch

SHAPES = {"0.weight": (24, 10), "0.bias": (24,), "1.weight": (5, 24), "1.bias": (5,)}
NUMEL = sum(torch.Size(shape).numel() for shape in SHAPES.values())


@pytest.mark.parametrize(("before", "after"), [*product(range(1, MOST_RANKS + 1), repeat=2)])
def test_every_element_is_read_once_from_the_rank_that_saved_it(before: int, after: int) -> None:
    saved, loaded = lay_out(SHAPES, before), lay_out(SHAPES, after)
    found = readings(saved, loaded, stage=2)
    read = sorted(at for reading in found for at in range(reading.first, reading.last))
    assert read == [at for slot in saved.slots for at in range(slot.start, slot.stop)]
    for reading in found:
        first, last = saved.shard(reading.writer)
        assert first <= reading.first < reading.last <= last
        begin, end = loaded.shard(reading.rank)
        assert begin <= reading.first and reading.last <= end


def test_at_stage_0_every_rank_reads_everything() -> None:
    found = readings(lay_out(SHAPES, 4), lay_out(SHAPES, 3), stage=0)
    for rank in range(3):
        assert sum(reading.stop - reading.start for reading in found if reading.rank == rank) == NUMEL


def test_the_table_has_each_part_with_its_bytes() -> None:
    assert reshard_map({"w": (48,), "b": (3,)}, 3, 2, nbytes=12).table.splitlines() == [
        "Saved by 3 ranks, loaded by 2 ranks at stages 1 to 3: a rank reads at most 384 bytes, from the files of at "
        "most 1 rank; all together 612.",
        "read by    elements    from  bytes",
        "rank 0    w [0, 32)  rank 0    384",
        "rank 1   w [32, 48)  rank 1    192",
        "rank 1     b [0, 3)  rank 1     36",
    ]


class Two(nn.Sequential):
    """Two layers that are gathered as one, so that one flat buffer has all."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(10, 24), nn.Linear(24, 5))

    def units(self) -> list[nn.Module]:
        return [self]


@pytest.mark.timeout(100)
@pytest.mark.parametrize(("after", "stage"), [(3, 1), (2, 3), (1, 2), (5, 2), (3, 0)])
def test_a_load_needs_the_bytes_that_the_picture_counts(tmp_path: Path, after: int, stage: int) -> None:
    def save(comm):
        engine = ZeroEngine(Two(), comm, 2, lr=1e-3)
        engine.backward(engine(torch.ones(2, 10)).square().mean())
        engine.step()
        with Checkpoints(tmp_path) as checkpoints:
            checkpoints.save(engine, 1)

    def load(comm):
        return Checkpoints(tmp_path).load(ZeroEngine(Two(), comm, stage, lr=1e-3)).nbytes_needed

    launch(save, ranks=4, world="lockstep")
    # With one rank every stage is stage 0, which reads the same.
    counted = readings(lay_out(SHAPES, 4), lay_out(SHAPES, after), stage)
    of_rank = [12 * sum(its.stop - its.start for its in counted if its.rank == rank) for rank in range(after)]
    assert list(launch(load, ranks=after, world="lockstep")) == of_rank


@pytest.mark.parametrize("ranks", [0, 9, True, 2.0])
def test_ranks_that_cannot_be_drawn_are_refused(ranks: int) -> None:
    for saved_by, loaded_by in ((ranks, 2), (2, ranks)):
        with pytest.raises(InputError, match=f"{ranks!r} ranks cannot be drawn; take 1 to 8"):
            reshard_map(SHAPES, saved_by, loaded_by)


def test_a_stage_that_is_none_is_refused() -> None:
    with pytest.raises(InputError, match="there is no ZeRO stage 4; choose 0, 1, 2 or 3"):
        reshard_map(SHAPES, 2, 2, stage=4)


def test_a_part_that_is_read_has_the_colour_of_whose_files_it_is_read_from() -> None:
    before, after = lay_out(SHAPES, 4), lay_out(SHAPES, 3)
    frames = [frame for frame in reshard_frames(before, after, 2, 14) if frame.words]
    found = readings(before, after, 2)
    for read, frame in enumerate(frames):
        marks = frame.drawing.marks
        parts = {name: mark for name, mark in marks.items() if re.fullmatch(r"part \d+", name)}
        assert len(parts) == sum(one.rank < read for one in found)
        saved = {mark.at[0]: mark for mark in marks.values() if mark.shape == "rect" and mark.at[1] == SAVED}
        for number, one in enumerate(found[: len(parts)]):
            x, y, wide, _ = parts[f"part {number}"].at
            scale = (WIDE - LEFT - 6) / before.numel
            assert (x - LEFT, wide) == pytest.approx((scale * one.first, scale * (one.last - one.first)), abs=0.11)
            assert y == TOP + ROW * one.rank
            beneath = saved[max(left for left in saved if left <= x + 0.2)]
            assert parts[f"part {number}"].style.fill == beneath.style.fill == PALE[one.writer]
