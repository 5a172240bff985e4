"""Pictures of several runs at once, and of who owns what: they say what was recorded, in the table and in words."""

import re

import pytest
import torch

from zerolab.collectives import Span
from zerolab.course.viz import (
    StepRun,
    compared_pipelines,
    curve,
    memory_course,
    owners,
    sixteen_bytes,
    timelines,
    watch_step,
)
from zerolab.course.viz.looks import MEMORY
from zerolab.course.viz.pipeline import schedule
from zerolab.errors import InputError
from zerolab.memory import Sample, Tracker, predict_states

# Who owns what


@pytest.mark.parametrize("ranks", [2, 4, 5])
def test_each_part_has_one_owner_where_a_state_is_cut_and_all_of_them_where_it_is_not(ranks: int) -> None:
    figure = owners(ranks).figure
    for stage, axes in enumerate(figure.axes):
        filled = [patch for patch in axes.patches if patch.get_fill()]
        by_colour = {
            kind: sum(patch.get_facecolor()[:3] == pytest.approx(rgb(MEMORY[kind].colour)) for patch in filled)
            for kind in ("parameters", "gradients", "optimizer_states")
        }
        assert by_colour == {
            "parameters": ranks if stage >= 3 else ranks**2,
            "gradients": ranks if stage >= 2 else ranks**2,
            "optimizer_states": ranks if stage >= 1 else ranks**2,
        }


def rgb(colour: str) -> list[float]:
    return [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]


def test_owners_count_the_bytes_a_parameter_of_their_recipe() -> None:
    picture = owners(4, stages=(0, 1, 2, 3), precision="bf16")
    lines = picture.table.splitlines()[1:]
    for stage in range(4):
        said = {float(line.split()[-1]) for line in lines if line.startswith(f"stage {stage}")}
        assert said == {sum(predict_states(1_000, 4, stage, "bf16").values()) / 1_000}
    assert re.split(r"  +", lines[9]) == ["stage 2, rank 1", "all 4 parts", "part 1", "part 1", "5.5"]
    assert "at stage 2 a rank keeps one part in 4 of gradients and optimizer states, 5.5 bytes a param" in picture.alt
    titles = [axes.get_title(loc="left") for axes in picture.figure.axes]
    assert titles[1] == "stage 1: 2 + 2 + 12/4 = 7 bytes a parameter"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((1,), "the parts of 1 ranks"),
        ((4, ()), "no stages"),
        ((4, (4,)), "stage 4"),
        ((4, (0,), "fp9"), "no precision 'fp9'"),
    ],
)
def test_owners_that_cannot_be_drawn_are_refused(arguments: tuple, message: str) -> None:
    with pytest.raises(InputError, match=message):
        owners(*arguments)


# Sixteen bytes


@pytest.mark.parametrize(("ranks", "precision"), [(1, "fp32"), (4, "fp32"), (2, "bf16")])
def test_each_byte_of_a_parameter_is_a_square_and_all_but_one_ranks_are_copies(ranks: int, precision: str) -> None:
    picture, sizes = sixteen_bytes(ranks, precision), predict_states(1, 1, 0, precision)
    drawn = [patch.get_facecolor()[:3] for patch in picture.figure.axes[0].patches]
    assert len(drawn) == ranks * sum(sizes.values()) == 16 * ranks
    for kind, size in sizes.items():
        assert sum(colour == pytest.approx(rgb(MEMORY[kind].colour)) for colour in drawn) == size
    assert [line.endswith("copies") for line in picture.table.splitlines()[1:]] == [rank > 0 for rank in range(ranks)]
    assert ("of which 48, drawn grey, are copies" in picture.alt) == (ranks == 4)


@pytest.mark.parametrize(("arguments", "message"), [((0,), "of 0 ranks"), ((4, "fp9"), "no precision 'fp9'")])
def test_bytes_that_cannot_be_drawn_are_refused(arguments: tuple, message: str) -> None:
    with pytest.raises(InputError, match=message):
        sixteen_bytes(*arguments)


# Memory over time


def samples_of(sizes: list[int]) -> list[Sample]:
    return [Sample(at + 3, "", {"gradients": size, "activations": 500_000}) for at, size in enumerate(sizes)]


def test_the_courses_of_two_runs_stand_on_one_axis_with_their_peaks_named() -> None:
    hill, stairs = samples_of([10**6, 3 * 10**6, 0]), samples_of([10**6, 2 * 10**6])
    picture = memory_course({"careless": hill, "in time": stairs}, kinds=["gradients"])
    assert picture.table.splitlines() == [
        "gradients, MB  at the peak  at the end",
        "careless              3.00        0.00",
        "in time               2.00        2.00",
    ]
    assert "careless peaks at 3.00 MB and ends with 0.00 MB; in time peaks at 2.00 MB" in picture.alt
    (axes,) = picture.figure.axes
    assert [line.get_xydata().tolist() for line in axes.lines[:3:2]] == [
        [[0, 1], [1, 3], [2, 0]],
        [[0, 1], [1, 2]],
    ]
    assert axes.get_xlim() == (0, 2)
    assert len(memory_course({"a": hill, "b": stairs}, split=True).figure.axes) == 2
    assert "3.50" in memory_course({"all": hill}).table


def test_a_kind_may_be_left_out_of_a_course() -> None:
    picture = memory_course({"run": samples_of([10**6, 0])}, without=["activations"])
    assert picture.table.splitlines() == [
        "all that is live but activations, MB  at the peak  at the end",
        "run                                          1.00        0.00",
    ]
    with pytest.raises(InputError, match="both kinds and without"):
        memory_course({"run": samples_of([1])}, kinds=["gradients"], without=["activations"])


def test_a_real_trackers_samples_can_be_drawn_and_times_come_in_order() -> None:
    with Tracker() as tracker:
        kept = torch.zeros(1000)
        kept.add_(1)
    assert memory_course({"run": tracker.samples}, unit="kB").table.split()[-2:] == ["4.00", "4.00"]
    late = [Sample(1, "", {"other": 10}, 0.002), Sample(2, "", {"other": 30}, 0.001)]
    times = memory_course({"run": late}).figure.axes[0].lines[0].get_xdata()
    assert list(times) == [1, 2]


@pytest.mark.parametrize(
    ("runs", "options", "message"),
    [
        ({}, {}, "0 runs"),
        ({"a": []}, {}, "'a' has no samples"),
        ({"a": samples_of([1])}, {"unit": "GB"}, "unit is 'GB'"),
        ({"a": samples_of([1])}, {"kinds": ["weights"]}, "no kind of memory 'weights'"),
        ({"a": samples_of([1])}, {"without": ["weights"]}, "no kind of memory 'weights'"),
        ({"a": samples_of([1]), "b": [Sample(1, "", {}, 1.0)]}, {}, "some runs have times"),
    ],
)
def test_courses_that_cannot_be_drawn_are_refused(runs: dict, options: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        memory_course(runs, **options)


# Several timelines


def test_timelines_begin_at_zero_on_one_axis_and_say_what_overlaps() -> None:
    late = [Span(0, "compute", "backward a", 1.0, 1.004), Span(0, "collective", "all_reduce", 1.002, 1.008)]
    early = [Span(0, "compute", "forward a", 0.0, 0.001), Span(1, "compute", "forward a", 0.0, 9.0)]
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
    for runs, message in (({}, "no runs"), ({"a": [late[0]]}, "no span of rank 1")):
        with pytest.raises(InputError, match=message):
            timelines(runs, rank=1)


def test_small_buckets_take_longer_where_each_message_has_its_latency() -> None:
    small, large = (watch_step(StepRun(0, 2, latency_us=50, bucket_numel=numel))[0] for numel in (2_000, None))
    assert small.seconds > large.seconds
    table = timelines({"small": small.spans, "large": large.spans}, unit="µs").table.splitlines()
    assert [int(line.split()[1].replace(",", "")) for line in table[1:]] == [
        pytest.approx(1e6 * run.seconds, rel=0.01) for run in (small, large)
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
    long = curve(range(101), {"a": [1.0] * 101}, "step", "loss")
    assert len(long.table.splitlines()) <= 26 and long.table.splitlines()[-1].startswith("100")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([], {"a": []}), "give one or more"),
        (([2, 1], {"a": [1, 1]}), "each larger"),
        (([0, 1], {"a": [1, 1]}), "no place on a log"),
        (([1, 2], {}), "0 lines"),
        (([1, 2], {"a": [1]}), "1 values for 2 places"),
    ],
)
def test_a_curve_that_cannot_be_drawn_is_refused(arguments: tuple, message: str) -> None:
    with pytest.raises(InputError, match=message):
        curve(*arguments, "across", "up", log=True)


# A recorded pipeline above the predicted one


def test_a_walk_that_keeps_to_the_schedule_is_predicted_exactly() -> None:
    parts = schedule(5, 2, 2, 1, 3)
    trace = [(part.kind, part.group, 7 + part.start / 1e3, 7 + part.stop / 1e3) for part in reversed(parts)]
    picture = compared_pipelines(trace, 2)
    assert picture.table.splitlines()[0] == "a group, ms: read 2, compute 1, write 3"
    recorded, predicted = picture.figure.axes
    assert sorted((bar.get_x(), bar.get_y()) for bar in recorded.patches) == [
        pytest.approx(place) for place in sorted((bar.get_x(), bar.get_y()) for bar in predicted.patches)
    ]
    assert recorded.get_xlim() == predicted.get_xlim()
    assert "A recorded walk of 5 groups through 2 buffers takes" in picture.alt
    with pytest.raises(InputError, match="no computation that takes time"):
        compared_pipelines(trace[:1], 2)
