"""The stages' film shows a real step: what it draws adds up to what the tracker counted and the meter sent."""

import pytest

from zerolab.course.living import SCENES
from zerolab.course.viz.slices import AWAY, NEW, courses, flow_of, held, stop_text, stops
from zerolab.course.viz.stages import BANDS, draw_moment, stage_frames
from zerolab.course.viz.step import StepRun, watch_step
from zerolab.errors import InputError
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
        assert shown["gradients"] + shown["gradient_buffers"] <= counted["gradients"] + counted["gradient_buffers"]


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
