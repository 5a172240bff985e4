"""The pipeline's picture: its schedule is that of the real walk, its times are exact; a recorded walk is drawn, too.
Checkpoints beside training are simulated as one disk can write them."""

import threading
import time
from itertools import combinations, pairwise, product
from math import inf, nan

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zerolab.course.viz import compared_pipelines, offload_pipeline, save_timeline
from zerolab.course.viz.pipeline import SAVING, PipelineStep, duration, least, schedule, simulate
from zerolab.errors import InputError
from zerolab.offload.lane import Transfer, pipeline

WALK = [("read", 0, 1.0, 2.0), ("compute", 0, 2.0, 3.0)]
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


# A recorded walk above the predicted one


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


@pytest.mark.timeout(60)
def test_what_a_real_walk_tells_can_be_drawn() -> None:
    def begin(group: int, buffer: int) -> Transfer:
        transfer = Transfer()
        threading.Thread(target=transfer.run, args=(lambda: time.sleep(0.001),), daemon=True).start()
        return transfer

    trace: list[tuple[str, int, float, float]] = []
    for _ in pipeline(range(5), begin, begin, 3, lambda *one: trace.append(one)):
        time.sleep(0.001)
    assert [len(axes.patches) for axes in compared_pipelines(trace, 3).figure.axes] == [15, 15]


# Checkpoints


@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.parametrize(("every", "copy", "write"), [(1, 2.0, 30.0), (3, 3.0, 20.0), (4, 0.0, 90.0), (6, 5.0, 0.0)])
def test_training_and_the_disk_do_one_thing_at_a_time(every: int, copy: float, write: float, waits: bool) -> None:
    bars = simulate(12, every, 10.0, copy, write, waits)
    spent = {name: sum(bar.stop - bar.start for bar in bars if bar.look == SAVING[name]) for name in SAVING}
    for row in range(2):
        in_order = sorted((bar.start, bar.stop) for bar in bars if bar.row == row)
        assert all(stop <= start for (_, stop), (start, _) in pairwise(in_order))
    assert sum(bar.look == SAVING["step"] for bar in bars) == 12
    assert spent["write"] == pytest.approx(12 // every * write)
    if waits or write <= 10.0 * every:
        assert spent["copy"] + spent["wait"] == pytest.approx(12 // every * (write if waits else copy))


def test_a_disk_that_is_too_slow_holds_training_up_without_waiting_too() -> None:
    bars = simulate(12, 3, 10.0, 3.0, 50.0, waits=False)
    assert [bar.stop - bar.start for bar in bars if bar.look == SAVING["wait"]] == pytest.approx([20.0] * 3)


def test_the_table_sets_waiting_and_not_waiting_beside_each_other() -> None:
    assert save_timeline(6, 3, 10, 2, 25).table.splitlines() == [
        "Training stands still for 50 ms with wait=True and 4 ms with wait=False.",
        "            stands still, ms  training ends  last file ends  of training's time",
        "wait=True                 50            110             110                 45%",
        "wait=False                 4             64              89                  6%",
    ]


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda: offload_pipeline(0, 1, 1, 1, 1), "the number of groups"),
        (lambda: offload_pipeline(1, 0, 1, 1, 1), "the number of buffers"),
        (lambda: offload_pipeline(3, 2, -1.0, 1.0, 1.0), "read takes -1.0 ms; give a finite time of at least 0"),
        (lambda: offload_pipeline(3, 2, 1.0, 1.0, inf), "write takes inf ms"),
        (lambda: offload_pipeline(3, 2, 0, 0, 0), "no time is above 0 among read, compute, write"),
        (lambda: compared_pipelines([("read", 0, 1.0, 2.0)], 2), "no computation that takes time"),
        (lambda: compared_pipelines([*WALK, ("write", 0, 3.0, nan)], 2), "write of group 0 lasts from 3.0 to nan"),
        (lambda: compared_pipelines([*WALK, ("write", 0, 3.0, 2.0)], 2), "write of group 0 lasts from 3.0 to 2.0"),
        (lambda: save_timeline(6, 3, nan, 2.0, 2.0), "step takes nan ms"),
        (lambda: save_timeline(6, 3, 1.0, nan, 2.0), "copy takes nan ms"),
        (lambda: save_timeline(6, 3, 1.0, 2.0, -1.0), "write takes -1.0 ms"),
        (lambda: save_timeline(6, 3, 0.0, 0.0, 2.0), "no time is above 0 among step"),
        (lambda: save_timeline(6, -1), "every is -1; give a whole number of at least 1"),
        (lambda: save_timeline(6, 1.5), "every is 1.5; give a whole number"),  # type: ignore[arg-type]
        (lambda: save_timeline(0, 1), "steps is 0; give a whole number of at least 1"),
    ],
)
def test_what_has_no_schedule_is_refused(draw, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InputError, match=message):
        draw()
