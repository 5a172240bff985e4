"""The pipeline's picture: its schedule is that of the real walk, its times are exact; a recorded walk is drawn, too."""

import threading
import time
from itertools import combinations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.backends.backend_agg import FigureCanvasAgg

from zerolab.course.viz.pipeline import (
    LOOKS,
    PipelineStep,
    duration,
    least,
    offload_pipeline,
    recorded_pipeline,
    schedule,
)
from zerolab.errors import InputError
from zerolab.offload.lane import Transfer, pipeline

TIMES = st.sampled_from([0.5, 1, 2, 3, 8])
SOON = 20.0


class Clockwork:
    """A fake disk that follows a schedule: a transfer ends when everything has happened that ends before it there."""

    def __init__(self, parts: list[PipelineStep]) -> None:
        self.seen: list[tuple[str, int]] = []
        self._ends = [(part.kind, part.group) for part in sorted(parts, key=lambda part: part.stop)]
        self._moved = threading.Condition()

    def begin(self, kind: str, group: int) -> Transfer:
        transfer = Transfer()
        work = lambda: self.end(kind, group)  # noqa: E731
        threading.Thread(target=transfer.run, args=(work,), daemon=True).start()
        return transfer

    def end(self, kind: str, group: int) -> None:
        with self._moved:
            before = self._ends.index((kind, group))
            assert self._moved.wait_for(lambda: len(self.seen) >= before, SOON), f"{kind} {group} came too early"
            self.seen.append((kind, group))
            self._moved.notify_all()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("buffers", [1, 2, 3, 4])
@pytest.mark.parametrize("times", [(2.0, 1.0, 1.5), (1.0, 3.1, 1.7), (1.1, 0.3, 4.0), (5.0, 1.0, 0.7)])
def test_the_real_walk_can_take_each_simulated_order(buffers: int, times: tuple[float, float, float]) -> None:
    """A transfer that the schedule lets end first, and that the real walk had not begun by then, would hang here."""
    parts = schedule(7, buffers, *times)
    disk = Clockwork(parts)
    walk = pipeline(
        range(7), lambda group, _: disk.begin("read", group), lambda group, _: disk.begin("write", group), buffers
    )
    for group, _ in walk:
        disk.end("compute", group)
    assert disk.seen == disk._ends


@settings(max_examples=60, deadline=None)
@given(groups=st.integers(1, 9), buffers=st.integers(1, 5), read=TIMES, compute=TIMES, write=TIMES)
def test_no_buffer_and_no_lane_does_two_things_at_once(
    groups: int, buffers: int, read: float, compute: float, write: float
) -> None:
    parts = schedule(groups, buffers, read, compute, write)
    assert len(parts) == 3 * groups
    for one, other in combinations(parts, 2):
        if one.kind == other.kind or one.group % buffers == other.group % buffers:
            assert one.stop <= other.start or other.stop <= one.start
    assert least(groups, read, compute, write) <= duration(parts) <= groups * (read + compute + write)


def test_one_buffer_is_serial_and_three_reach_the_least_time() -> None:
    for times in product((0.5, 1.0, 2.0, 8.0), repeat=3):
        assert duration(schedule(8, 1, *times)) == 8 * sum(times)
        assert duration(schedule(8, 3, *times)) == least(8, *times)


def test_the_table_sets_the_numbers_of_buffers_beside_each_other() -> None:
    assert offload_pipeline(6, 2, 2, 1.5, 3).table.splitlines() == [
        "2 buffers: 22.5 ms, held up by too few buffers",
        "one after the other 39 ms; no number of buffers gets below 21.5 ms",
        "6 groups, buffers    ms  times faster       held up by",
        "1                    39          1.00  too few buffers",
        "2 (shown)          22.5          1.73  too few buffers",
        "3                  21.5          1.81          writing",
        "4                  21.5          1.81          writing",
    ]


@pytest.mark.parametrize(
    ("times", "held"),
    [((3, 1, 2), "reading"), ((1, 9, 1), "computing"), ((2, 1, 2), "reading and writing"), ((1, 1, 1), "all three")],
)
def test_the_slowest_holds_up_a_pipeline_with_enough_buffers(times: tuple[int, int, int], held: str) -> None:
    assert f"held up by {held}" in offload_pipeline(5, 3, *times).table.splitlines()[0]


def test_more_buffers_than_four_have_a_row_too() -> None:
    assert offload_pipeline(8, 6, 1, 1, 1).table.splitlines()[-1].startswith("6 (shown)")


def test_bars_lie_in_the_row_of_their_buffer_at_their_time() -> None:
    axes = offload_pipeline(5, 2, 1, 2, 3).figure.axes[0]
    drawn = sorted((bar.get_x(), bar.get_y() + bar.get_height() / 2, bar.get_width()) for bar in axes.patches)
    parts = schedule(5, 2, 1, 2, 3)
    expected = sorted((part.start, part.group % 2, part.stop - part.start) for part in parts)
    assert drawn == [pytest.approx(bar) for bar in expected]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["buffer 0", "buffer 1"]


@pytest.mark.parametrize(("groups", "buffers"), [(1, 1), (6, 2), (12, 4), (40, 3)])
def test_no_text_lies_on_another(groups: int, buffers: int) -> None:
    figure = offload_pipeline(groups, buffers, 2, 0.5, 3).figure
    renderer = FigureCanvasAgg(figure).get_renderer()
    figure.draw(renderer)
    axes = figure.axes[0]
    (legend,) = figure.legends
    texts = [*axes.texts, *axes.get_xticklabels(), *axes.get_yticklabels(), axes._left_title, axes.xaxis.label]
    shown = [text for text in [*texts, *legend.get_texts()] if text.get_text()]
    for one, other in combinations(shown, 2):
        assert not one.get_window_extent(renderer).overlaps(other.get_window_extent(renderer)), (one, other)


# A recorded walk


def test_a_recorded_walk_begins_at_its_first_read_and_names_what_is_busy() -> None:
    trace = [
        ("read", "a", 10.0, 10.002), ("read", "b", 10.001, 10.004), ("compute", "a", 10.002, 10.003),
        ("compute", "b", 10.004, 10.005), ("write", "a", 10.003, 10.005), ("write", "b", 10.005, 10.008),
    ]  # fmt: skip
    picture = recorded_pipeline(trace, buffers=2)
    assert picture.table.splitlines() == [
        "2 buffers: 8 ms, write is busy 62% of the time",
        "one after the other 12 ms",
        "         busy, ms  of the time",
        "read            4          50%",
        "compute         2          25%",
        "write           5          62%",
    ]
    assert picture.png().startswith(b"\x89PNG")


@pytest.mark.timeout(60)
def test_what_a_real_walk_tells_can_be_drawn() -> None:
    def begin(group: int, buffer: int) -> Transfer:
        transfer = Transfer()
        threading.Thread(target=transfer.run, args=(lambda: time.sleep(0.001),), daemon=True).start()
        return transfer

    trace: list[tuple[str, int, float, float]] = []
    for _ in pipeline(range(5), begin, begin, 3, lambda *one: trace.append(one)):
        time.sleep(0.001)
    picture = recorded_pipeline(trace, 3)
    assert len(picture.figure.axes[0].patches) == 15
    assert [line.split()[0] for line in picture.table.splitlines()[3:]] == [*LOOKS]


# What is refused


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 1, 1, 1, 1), "the number of groups"),
        ((1, 0, 1, 1, 1), "the number of buffers"),
        ((1, 1, -1, 1, 1), "read takes -1; give a finite time"),
        ((1, 1, 1, float("nan"), 1), "compute takes nan"),
        ((1, 1, 1, 1, "2"), "write takes '2'"),
        ((2, 1, 0, 0, 0), "nothing takes any time"),
    ],
)
def test_what_has_no_schedule_is_refused(arguments: tuple, message: str) -> None:
    with pytest.raises(InputError, match=message):
        offload_pipeline(*arguments)


@pytest.mark.parametrize(
    ("trace", "message"),
    [
        ([], "no computation that takes time"),
        ([("read", 0, 1.0, 2.0)], "no computation that takes time"),
        ([("guess", 0, 1.0, 2.0)], "the trace has a part 'guess'"),
    ],
)
def test_a_trace_that_is_none_is_refused(trace: list, message: str) -> None:
    with pytest.raises(InputError, match=message):
        recorded_pipeline(trace, 2)
