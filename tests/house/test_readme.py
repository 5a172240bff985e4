"""What the README shows is what the commands give."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from cover import NIGHTLY
from matplotlib.colors import to_rgb
from PIL import Image, ImageSequence

from benchmarks.stages import MEGABYTE, STATES, max_total, most_sent
from zerolab.course.exercises.zero_1.claims import adam
from zerolab.course.grade import CheckFailed, checks
from zerolab.course.viz import StepRun, step_skyline
from zerolab.course.viz.looks import MEMORY
from zerolab.run import RunSpec
from zerolab.train import train

README = (Path(__file__).parents[2] / "README.md").read_text()
ROWS = re.findall(r"^\| ([0-3]) \| ([\d. |]+) \| [\d.]+", README, re.MULTILINE)
BY_DAY = ROWS if NIGHTLY else ROWS[::3]
"""Stages 0 and 3: what is measured at the others is what is predicted (test_memory.py); nightly all rows."""


def test_the_table_has_a_row_for_each_stage() -> None:
    assert [int(stage) for stage, _ in ROWS] == [0, 1, 2, 3]


@pytest.mark.ranks
@pytest.mark.parametrize(("stage", "row"), BY_DAY)
def test_the_bytes_of_the_table_are_measured_again(stage: str, row: str) -> None:
    report = train(RunSpec(zero_stage=stage, ranks=4, model_size="tiny", max_steps=2, timeout=100.0))
    states = [max(report.memory_measured[kind]) for kind in STATES]
    measured = [*states, sum(states), max_total(report), most_sent(report)]
    shown = [cell.strip() for cell in row.split("|")][:6]
    if torch.__version__.split("+")[0] != "2.13.0":
        # What torch allocates beside the states differs between its versions; the states and the wire do not.
        measured[4] = float(shown[4]) * MEGABYTE
    assert [f"{size / MEGABYTE:.2f}" for size in measured] == shown


def all_reduced(comm, row, gradient, steps):  # type: ignore[no-untyped-def]
    """Stage 1 in 3Ψ: right, and above the scoreboard's targets."""
    row = row.clone()
    shard = row.tensor_split(comm.size)[comm.rank]
    optimizer = adam(shard)
    for _ in range(steps):
        mean = comm.all_reduce(gradient(row), average=True)
        shard.grad = mean.tensor_split(comm.size)[comm.rank]
        optimizer.step()
        comm.all_gather(shard, out=row)
    return row


@pytest.mark.ranks
def test_the_check_that_is_shown_is_what_a_learner_reads(capsys: pytest.CaptureFixture[str]) -> None:
    shown = re.search(r"```\n(train_sharded\n.*?)```", README, re.DOTALL)
    assert shown is not None
    with pytest.raises(CheckFailed) as caught:
        checks("03_zero_1").train_sharded(all_reduced)
    said = capsys.readouterr().out + str(caught.value)
    assert said.split() == shown[1].split()


@pytest.mark.ranks
def test_the_library_example_runs() -> None:
    ((results,),) = printed_by(EXAMPLES[0])
    assert [set(sent) for sent in results] == [{"all_gather", "reduce_scatter"}] * 2


@pytest.mark.ranks
def test_the_example_of_a_grid_runs_and_its_stages_have_one_loss() -> None:
    every = printed_by(EXAMPLES[1])
    assert [rank for rank, _, _ in every] == [*range(8)] and len(EXAMPLES) == 2
    # The ranks of a part of the batch agree: both stages, and both halves of each matrix.
    losses = [round(loss, 5) for _, loss, _ in every]
    assert len({*losses}) == 2 and losses == losses[:4] * 2 and losses[0] == losses[1]
    assert all({*sent} == {"pp", "dp_shard", "tp"} for _, _, sent in every)


EXAMPLES = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def printed_by(example: str) -> list[tuple[Any, ...]]:
    """What each print of an example is given."""
    printed: list[tuple[Any, ...]] = []
    exec(example, {"__name__": "__main__", "print": lambda *given: printed.append(given)})
    return printed


PICTURES = re.findall(r"\]\((docs/\w+\.(?:png|gif))\)", README)


def colours(path: Path) -> set[tuple[int, ...]]:
    """Those that a picture has in ten pixels or more; of a film, in one of every tenth frame."""
    found: set[tuple[int, ...]] = set()
    for number, frame in enumerate(ImageSequence.Iterator(Image.open(path))):
        if number % 10 == 0:
            every = frame.convert("RGB").getcolors(1 << 24) or []
            found.update(colour for count, colour in every if count >= 10)
    return found


@pytest.mark.parametrize("name", PICTURES)
def test_a_kind_of_memory_has_its_one_colour_in_every_picture(name: str) -> None:
    shown = colours(Path(__file__).parents[2] / name)
    missing = {
        kind
        for kind, look in MEMORY.items()
        if kind != "step_buffers" and tuple(round(255 * part) for part in to_rgb(look.colour)) not in shown
    }
    assert not missing


def test_the_timeline_is_the_step_as_it_runs_now(tmp_path: Path) -> None:
    picture = step_skyline(StepRun(stage=3, ranks=4))
    (tmp_path / "now.png").write_bytes(picture.png())
    now, stored = (
        numpy.asarray(Image.open(path).convert("L"), dtype=float)
        for path in (tmp_path / "now.png", Path(__file__).parents[2] / "docs" / "timeline.png")
    )
    # Another version of a font's renderer moves edges a little; another step moves whole boxes.
    assert now.shape == stored.shape and abs(now - stored).mean() < 2
    peak = re.search(r"peak ([\d,]+) kB in backward block 1", picture.alt)
    assert peak is not None and f"peak at {peak[1]} kB in the backward pass of block 1" in README


def test_virtual_time_is_that_of_the_device_that_is_named() -> None:
    config = RunSpec(world="virtual")
    named = re.search(
        r"`--gflop-per-s` \((\d+) .*?`--gbyte-per-s` \((\d+)\) and `--gbit-per-s` \(if", README, re.DOTALL
    )
    assert named is not None
    assert (config.gflop_per_s, config.gbyte_per_s, config.gbit_per_s) == (float(named[1]), float(named[2]), None)
