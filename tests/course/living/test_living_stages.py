"""The stages' scene replays a real step: what it draws adds up to what the tracker counted and the meter sent."""

import json
import re
from pathlib import Path

import pytest
from javascript import answers
from matplotlib.colors import to_rgba
from matplotlib.patches import Rectangle

from zerolab.course import living
from zerolab.course.viz.slices import AWAY, NEW, courses, flow_of, held, stops
from zerolab.course.viz.stages import LEGEND, PLACE, draw_moment, stage_moment
from zerolab.course.viz.step import StepRun, watch_step
from zerolab.course.widgets import step_timeline
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


def test_the_browser_counts_the_bytes_that_python_counted(tmp_path: Path) -> None:
    kinds = "(run, time) => Object.entries(run.course).map(([kind, steps]) => [kind, sampled(steps, [time])[0]])"
    of_run = f"run.moments.map(({{ time }}) => [sent(run, time), Object.fromEntries(({kinds})(run, time))])"
    data = json.loads(living.recorded("stages"))
    for stage, moments in enumerate(answers("stages", f"data.stages.map((run) => {of_run})", tmp_path, data=data)):
        flow = flow_of(stage)
        for stop, (sent, kinds) in zip(stops(flow), moments, strict=True):
            assert sent == flow.sent(stop.time)
            counted = held(flow, stop.time).bytes
            assert kinds == {kind: counted.get(kind, 0) for kind in kinds} and sum(kinds.values()) == sum(
                counted.values()
            )


@pytest.mark.parametrize(("stage", "moment"), [(1, 14), (3, 0)])
def test_the_still_picture_says_what_the_scene_says_at_that_moment(stage: int, moment: int) -> None:
    said = living.SCENES["stages"]()["stages"][stage]["moments"][moment]
    still = stage_moment(stage, moment)
    assert (said["verdict"], said["alt"], said["table"]) == (still.verdict, still.alt, still.numbers)


@pytest.mark.parametrize("stage", STAGES)
def test_a_black_frame_is_a_slice_with_its_final_values_and_never_a_message(stage: int) -> None:
    flow, bottom = flow_of(stage), max(top + 4 * height for top, height in PLACE.values())
    in_flight = [(one.start + one.stop) / 2 for one in flow.messages]
    for time in (*(stop.time for stop in stops(flow)[::4]), *in_flight[:: len(in_flight) // 4]):
        patches = [one for one in draw_moment(flow, time).axes[0].patches if isinstance(one, Rectangle)]
        framed = [
            one
            for one in patches
            if one.get_y() < bottom and one.get_linewidth() > 1 and one.get_edgecolor() == to_rgba("black")
        ]
        last = [[state for state in one.states if state[0] <= time + 1e-12][-1][1] for one in courses(flow)]
        assert len(framed) == last.count(NEW)


def test_the_scene_frames_in_black_what_the_still_picture_does_and_both_have_one_legend() -> None:
    style, script = ((Path(living.__file__).parent / name).read_text() for name in ("living.css", "stages.js"))
    black = re.findall(r"svg\.step \.(\w+) \{[^}]*stroke: #000;", style)
    assert black == ["new", "now"]  # and the line of the moment
    assert re.findall(r'class: "start" \}, "(.*: .*)"\);', script)[-3:] == list(LEGEND)


@pytest.mark.parametrize("moment", [-1, 40, True, 1.0])
def test_a_moment_that_a_step_has_not_is_refused(moment: object) -> None:
    with pytest.raises(InputError, match=rf"stage 1 has no moment {moment!r}; take 0 to 18"):
        stage_moment(1, moment)  # type: ignore[arg-type]


def test_a_stage_that_is_none_is_refused() -> None:
    with pytest.raises(InputError, match="there is no stage 4; choose 0 to 3"):
        stage_moment(4)


def test_a_timeline_of_other_ranks_than_the_recorded_ones_names_no_scene() -> None:
    for living_picture, names in ((step_timeline(2), True), (step_timeline(2, ranks=1), False)):
        bundle = living_picture._repr_mimebundle_()
        data = bundle[0] if isinstance(bundle, tuple) else bundle
        assert ('data-scene="timeline"' in data["text/html"]) is names
