"""The stages' film shows a real step: what it draws adds up to what the tracker counted and the meter sent."""

from itertools import pairwise

import pytest

from zerolab.course.living import SCENES
from zerolab.course.viz.looks import COMPUTING, MEMORY, TRAVELLING
from zerolab.course.viz.skyline import step_frames
from zerolab.course.viz.slices import AWAY, NEW, courses, flow_of, held, stop_text, stops
from zerolab.course.viz.stages import (
    BANDS,
    BOTTOM,
    LEFT,
    MOST_BYTES,
    MOST_SECONDS,
    MOST_SENT,
    RIGHT,
    TOP,
    draw_moment,
    stage_frames,
)
from zerolab.course.viz.step import StepRun, watch_step
from zerolab.errors import InputError
from zerolab.memory import KINDS
from zerolab.zero.table import STAGES


@pytest.mark.parametrize("stage", STAGES)
def test_a_step_that_is_watched_unit_by_unit_is_the_step_that_the_timeline_shows(stage: int) -> None:
    assert flow_of(stage).ranks == watch_step(StepRun(stage=stage))


@pytest.mark.parametrize("stage", STAGES)
def test_the_slices_of_each_moment_are_as_many_bytes_as_the_tracker_counted(stage: int) -> None:
    flow = flow_of(stage)
    ranks, all_courses = flow.run.ranks, list(courses(flow))
    for stop in stops(flow):
        shown = dict.fromkeys(("parameters", "gradients", "gathered_units", "gradient_buffers", "optimizer_states"), 0)
        for one in all_courses:
            _, state, kind = [state for state in one.states if state[0] <= stop.time + 1e-12][-1]
            if one.rank == 0 and state != AWAY:
                shown[kind] += flow.units[one.unit] * (2 if one.band == "optimizer_states" else 1) // ranks
        counted = held(flow, stop.time).bytes
        # A gathered unit has this rank's slice, too, which is drawn as the shard that stays.
        assert shown["parameters"] == counted["parameters"]
        assert shown["gathered_units"] * ranks == counted["gathered_units"] * (ranks - 1)
        assert shown["optimizer_states"] == counted["optimizer_states"] - 4 * len(flow.units)  # and its step counters
        # While a unit has gradients of its own, the slice that stays is drawn among them.
        assert shown["gradient_buffers"] == counted["gradient_buffers"]
        assert shown["gradients"] == counted["gradients"] - counted["gradient_buffers"] // ranks


def test_each_message_is_of_a_collective_of_the_stage_and_all_are_what_the_stage_sends() -> None:
    whole = sum(flow_of(0).units.values()) * 3 // 4
    assert [flow_of(stage).sent(1.0) for stage in STAGES] == [
        {"all_reduce": 2 * whole},
        {"reduce_scatter": whole, "all_gather": whole},
        {"reduce_scatter": whole, "all_gather": whole},
        {"all_gather": 2 * whole, "reduce_scatter": whole},
    ]


@pytest.mark.parametrize("stage", [1, 3])
def test_a_gathered_slice_has_its_values_when_its_message_has_come_and_none_before(stage: int) -> None:
    flow = flow_of(stage)
    for call, (name, unit, *_) in enumerate(flow.calls):
        for one in (one for one in flow.messages if one.call == call and name == "all_gather"):
            course = next(
                c
                for c in courses(flow)
                if (c.band, c.rank, c.unit, c.chunk) == ("parameters", one.dst, unit, one.chunk)
            )
            before, after = ([s for s in course.states if s[0] < one.stop + late][-1][1] for late in (-1e-9, 1e-9))
            assert after > before


@pytest.mark.parametrize("stage", STAGES)
def test_a_black_frame_is_a_slice_with_its_final_values_and_never_a_message(stage: int) -> None:
    flow = flow_of(stage)
    in_flight = [(one.start + one.stop) / 2 for one in flow.messages]
    for time in (*(stop.time for stop in stops(flow)[::4]), *in_flight[:: len(in_flight) // 4]):
        marks = draw_moment(flow, time).marks
        framed = [name for name, mark in marks.items() if mark.style.line == "black" and mark.shape == "rect"]
        framed = [name for name in framed if name.split()[0] in BANDS]
        last = [[state for state in one.states if state[0] <= time + 1e-12][-1][1] for one in courses(flow)]
        assert len(framed) == last.count(NEW)
        sent = [mark.style.line for name, mark in marks.items() if name.startswith("message")]
        assert sent == ["white"] * sum(one.start <= time < one.stop for one in flow.messages)


@pytest.mark.parametrize("stage", [0, 3])
def test_a_message_leaves_the_slice_of_its_sender_and_comes_to_that_of_its_receiver(stage: int) -> None:
    flow = flow_of(stage)
    for number, one in [*enumerate(flow.messages)][:: len(flow.messages) // 6]:
        name, unit = flow.calls[one.call][:2]
        band = "parameters" if name == "all_gather" else "gradients"
        for time, rank in ((one.start, one.src), (one.stop - 1e-9, one.dst)):
            marks = draw_moment(flow, time).marks
            there, slice_of_it = marks[f"message {number}"], marks[f"{band} {rank} {unit} {one.chunk}"]
            assert there.at == pytest.approx(slice_of_it.at, abs=0.7)
            assert there.style.fill == MEMORY["gathered_units" if name == "all_gather" else "gradient_buffers"].colour


def test_what_rank_0_has_sent_is_as_high_as_its_bytes() -> None:
    flow = flow_of(2)
    for stop in stops(flow)[::6]:
        marks = draw_moment(flow, stop.time).marks
        for name, nbytes in flow.sent(stop.time).items():
            assert marks[f"sent {name}"].at[3] == pytest.approx((BOTTOM - TOP) * nbytes / MOST_SENT, abs=0.1)


@pytest.mark.parametrize("stage", [0, 3])
@pytest.mark.parametrize("drawn", ["stages", "timeline"])
def test_an_area_is_as_large_as_the_bytes_of_its_kind_over_the_step(drawn: str, stage: int) -> None:
    flow = flow_of(stage)
    if drawn == "stages":
        marks, dots = draw_moment(flow, 0.0).marks, (RIGHT - LEFT) / MOST_SECONDS * (BOTTOM - TOP) / MOST_BYTES
    else:
        [frame] = step_frames(StepRun(stage))
        marks, dots = frame.drawing.marks, (394 - 30) / 2.8e-3 * (240 - 132) / 4e6
    course = flow.ranks[0].course
    ends = [*(sample.time for sample in course[1:]), flow.seconds]
    for kind in KINDS:
        whole = sum(one.bytes.get(kind, 0) * (end - one.time) for one, end in zip(course, ends, strict=True))
        assert (f"memory {kind}" in marks) == (whole > 0)
        if whole:
            assert inside(marks[f"memory {kind}"].at) == pytest.approx(
                dots * whole, rel=0.02, abs=8
            )  # places are tenths of dots
            assert marks[f"memory {kind}"].style.fill == MEMORY[kind].colour


def inside(at: tuple[float, ...]) -> float:
    """How large an area with these corners is."""
    corners = [*zip(at[::2], at[1::2], strict=True)]
    return abs(sum(x * below - right * y for (x, y), (right, below) in pairwise([*corners, corners[0]]))) / 2


def test_the_timelines_boxes_stand_where_each_thing_was_done_and_sent() -> None:
    flow, [frame] = flow_of(2), step_frames(StepRun(2))
    boxes = [mark for mark in frame.drawing.marks.values() if mark.shape == "rect"]
    for top, expected in (
        (34, [(one.start, one.stop, COMPUTING[one.name.split()[0]].hatch) for one in flow.ranks[0].spans
              if one.kind == "compute" and one.seconds >= 5e-6 and one.name.split()[0] != "compute"]),
        (84, [(call.start, call.stop, TRAVELLING[call.name].hatch) for call in flow.calls]),
    ):  # fmt: skip
        found = sorted((box.at[0], box.at[2], box.style.hatch) for box in boxes if box.at[1] == top and box.at[2] > 1)
        assert [box[2] for box in found] == [one[2] for one in sorted(expected)]
        for (x, wide, _), (start, stop, _) in zip(found, sorted(expected), strict=True):
            assert (x, wide) == pytest.approx((30 + 1.3e5 * start, 1.3e5 * (stop - start)), abs=0.11)


@pytest.mark.parametrize("moment", [-1, 40, True, 1.0])
def test_a_moment_that_a_step_has_not_is_refused(moment: object) -> None:
    with pytest.raises(InputError, match=rf"with stage 1 there is no moment {moment!r}; take 0 to 18"):
        SCENES["stages"].picture(stage=1, moment=moment)


def test_a_stage_that_is_none_is_refused() -> None:
    with pytest.raises(InputError, match="there is no ZeRO stage 4; choose 0, 1, 2 or 3"):
        SCENES["stages"].picture(stage=4, moment=0)


def test_a_film_stops_at_each_moment_of_the_step_and_says_what_it_says() -> None:
    flow = flow_of(1)
    said = [frame.words for frame in stage_frames(1) if frame.words]
    assert said == [stop_text(flow, number) for number in range(len(stops(flow)))]
