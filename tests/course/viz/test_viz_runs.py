"""Pictures of several runs at once, and of who owns what: they say what was recorded, in the table and in words."""

import re
from collections.abc import Callable
from math import inf, nan

import pytest
import torch
from matplotlib.colors import to_hex
from matplotlib.patches import Patch

from zerolab.collectives import Span
from zerolab.course.viz import (
    Picture,
    StepRun,
    bars,
    curve,
    memory_course,
    owners,
    sixteen_bytes,
    timelines,
    watch_step,
)
from zerolab.course.viz.looks import MEMORY
from zerolab.errors import InputError
from zerolab.memory import Sample, Tracker, predict_states

# Who owns what


@pytest.mark.parametrize("ranks", [2, 4, 5])
def test_each_part_has_one_owner_where_a_state_is_cut_and_all_of_them_where_it_is_not(ranks: int) -> None:
    for kind, stages in (("parameters", 1), ("gradients", 2), ("optimizer_states", 3)):
        # The box, its hatch and its frame are three patches; the first is filled.
        drawn = [hexed(patch) for patch in owners(ranks).figure.axes[0].patches]
        assert drawn.count(MEMORY[kind].colour) == stages * ranks + (4 - stages) * ranks**2


def hexed(patch: Patch) -> str:
    return to_hex(patch.get_facecolor()).upper() if patch.get_fill() else ""


def test_owners_count_the_bytes_a_parameter() -> None:
    picture = owners(4)
    lines = picture.table.splitlines()[1:]
    for stage in range(4):
        said = {float(line.split()[-1]) for line in lines if line.startswith(f"stage {stage}")}
        assert said == {sum(predict_states(1_000, 4, stage, "fp32").values()) / 1_000}
    assert re.split(r"  +", lines[9]) == ["stage 2, rank 1", "all 4 parts", "part 1", "part 1", "7"]
    assert "at stage 2 a rank keeps one part in 4 of gradients and optimizer states, 7 bytes a param" in picture.alt
    assert "stage 1: 4 + 4 + 8/4 = 10 bytes a parameter" in {text.get_text() for text in picture.figure.axes[0].texts}


@pytest.mark.parametrize("ranks", [1, 4])
def test_each_byte_of_a_parameter_is_a_square_and_all_but_one_ranks_are_copies(ranks: int) -> None:
    picture, sizes = sixteen_bytes(ranks), predict_states(1, 1, 0, "fp32")
    drawn = [hexed(patch) for patch in picture.figure.axes[0].patches if patch.get_fill()]
    assert len(drawn) == ranks * sum(sizes.values()) == 16 * ranks
    for kind, size in sizes.items():
        assert drawn.count(MEMORY[kind].colour) == size
    assert [line.endswith("copies") for line in picture.table.splitlines()[1:]] == [rank > 0 for rank in range(ranks)]
    assert ("of which 48, drawn grey, are copies" in picture.alt) == (ranks == 4)


@pytest.mark.parametrize(("draw", "ranks"), [(owners, 1), (owners, 9), (sixteen_bytes, 0), (sixteen_bytes, True)])
def test_ranks_that_cannot_be_drawn_are_refused(draw: Callable[[int], Picture], ranks: int) -> None:
    with pytest.raises(InputError, match=f"{ranks} ranks cannot be drawn; take"):
        draw(ranks)


# Memory over time


def test_the_courses_of_two_runs_stand_on_one_axis_with_their_peaks() -> None:
    hill, stairs = (
        [Sample(at + 3, "", {"gradients": size * 10**6, "activations": 500_000}) for at, size in enumerate(sizes)]
        for sizes in ([1, 3, 0], [1, 2])
    )
    picture = memory_course({"careless": hill, "in time": stairs}, without=["activations"])
    assert picture.table.splitlines() == [
        "all that is live but activations, MB  at the peak  at the end",
        "careless                                     3.00        0.00",
        "in time                                      2.00        2.00",
    ]
    assert "careless peaks at 3.00 MB and ends with 0.00 MB; in time peaks at 2.00 MB" in picture.alt
    (axes,) = picture.figure.axes
    assert [line.get_xydata().tolist() for line in axes.lines[::2]] == [[[0, 1], [1, 3], [2, 0]], [[0, 1], [1, 2]]]
    assert [line.get_xydata().tolist() for line in axes.lines[1::2]] == [[[1, 3]], [[1, 2]]]
    assert axes.get_xlim() == (0, 2)
    assert "3.50" in memory_course({"all": hill}).table
    for without, wrong in ((["activation"], "activation"), ("activations", "a")):
        with pytest.raises(InputError, match=f"'{wrong}' is no kind of memory; give a list of some of parameters"):
            memory_course({"all": hill}, without=without)


def test_a_real_trackers_samples_can_be_drawn() -> None:
    with Tracker() as tracker:
        kept = torch.zeros(1_000_000)
        kept.add_(1)
    assert memory_course({"run": tracker.samples}).table.split()[-2:] == ["4.00", "4.00"]


# Several timelines


def test_timelines_begin_at_zero_on_one_axis_and_say_what_overlaps() -> None:
    late = [Span(0, "compute", "backward a", 1.0, 1.004), Span(0, "collective", "all_reduce", 1.002, 1.008)]
    early = [Span(0, "compute", "forward a", 0.0, 0.001)]
    picture = timelines({"late": late, "early": early})
    assert picture.table.splitlines() == [
        "ms     takes  computing  in collectives  both at once",
        "late       8          4               6             2",
        "early      1          1               0             0",
    ]
    assert [axes.get_title(loc="left") for axes in picture.figure.axes] == ["late: 8 ms", "early: 1 ms"]
    assert [axes.get_xlim()[1] for axes in picture.figure.axes] == pytest.approx([8.04, 8.04])
    assert [(bar.get_x(), bar.get_width()) for bar in picture.figure.axes[0].patches] == [
        pytest.approx((0, 4)), pytest.approx((2, 6)),
    ]  # fmt: skip
    with pytest.raises(InputError, match="no span that takes time"):
        timelines({"a": []})


def test_small_buckets_take_longer_where_each_message_has_its_latency() -> None:
    small, large = (watch_step(StepRun(0, 2, latency_us=50, bucket_numel=numel))[0] for numel in (2_000, None))
    assert small.seconds > large.seconds
    table = timelines({"small": small.spans, "large": large.spans}).table.splitlines()
    assert [float(line.split()[1]) for line in table[1:]] == [
        pytest.approx(1e3 * run.seconds, rel=0.01) for run in (small, large)
    ]


# Curves


def test_a_curve_says_where_it_begins_and_ends_and_its_least() -> None:
    picture = curve([1, 10, 100], {"step": [3.0, 1.0, 2.5]}, "elements", "ms", log=True, marked={"one unit": 10})
    assert picture.table.splitlines() == [
        "elements  step, ms",
        "1                3",
        "10               1",
        "100            2.5",
    ]
    assert picture.alt == "step goes from 3 at 1 to 2.5 at 100, 1 at the least."
    assert picture.figure.axes[0].get_xscale() == "log"
    first, second = curve([1, 2], {"a": [1.0, 2.0], "b": [1.0, 2.0]}, "step", "loss").figure.axes[0].lines
    assert first.get_linewidth() >= second.get_linewidth() + 1.5, "one lies on the other, and both are seen"
    assert curve([1, 1_048_576], {"a": [1.0, 2.0]}, "elements", "ms").table.splitlines()[-1].split() == [
        "1,048,576",
        "2",
    ]
    long = curve(range(101), {"a": [1.0] * 101}, "step", "loss")
    assert len(long.table.splitlines()) <= 26 and long.table.splitlines()[-1].startswith("100")


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda: curve([1, 2], {"a": [1.0, nan]}, "step", "loss"), "a has nan, which lies on no axis; give finite"),
        (lambda: curve([1, inf], {"a": [1.0, 2.0]}, "step", "loss"), "step has inf, which lies on no axis"),
        (lambda: curve([1, 3, 2], {"a": [1, 2, 3]}, "step", "loss"), "2 comes after 3 on the axis 'step'"),
        (lambda: bars(["2"], {"ring": [nan]}), "ring has nan, which lies on no axis"),
        (lambda: bars(["2"], {"ring": [1.0]}, {"ring": [inf]}), "ring has inf, which lies on no axis"),
        (lambda: bars(["2"], {"ring": [1.0]}, {"rings": [1.0]}), "the formula of 'rings' marks no bar; name some"),
    ],
)  # fmt: skip
def test_what_lies_on_no_axis_is_refused(draw: Callable[[], Picture], message: str) -> None:
    with pytest.raises(InputError, match=message):
        draw()
