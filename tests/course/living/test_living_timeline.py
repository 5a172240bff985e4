"""The timeline's scene replays a real step for each setting that it offers."""

import json
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from javascript import answers

from zerolab.course.living import timeline
from zerolab.course.viz.flow import watch_flow
from zerolab.course.viz.skyline import peak_name
from zerolab.course.viz.step import StepRun, watch_step

AHEAD, OTHER = StepRun(stage=3), StepRun(stage=2, overlap=False, offload=True)


@pytest.mark.parametrize("run", [AHEAD, OTHER], ids=timeline.key)
def test_a_settings_boxes_and_memory_are_those_of_a_fresh_run(run: StepRun) -> None:
    shown = timeline.step_record(watch_flow(run))
    watch_step.cache_clear()
    fresh = watch_step(run)[0]
    computed = sorted((s for s in fresh.spans if s.kind == "compute" and s.seconds > 5e-7), key=lambda span: span.start)
    assert shown["compute"] == [[s.name, timeline.micros(s.start), timeline.micros(s.stop)] for s in computed]
    sent = [[s.name, timeline.micros(s.start), timeline.micros(s.stop)] for s in fresh.spans if s.kind == "collective"]
    assert sorted([name, start, stop] for name, _, start, stop in shown["wire"]) == sorted(sent)
    assert shown["course"] == timeline.changes(fresh.course)
    assert shown["peak"][1] == fresh.peak.total


def test_the_data_of_all_settings_is_less_than_a_megabyte() -> None:
    """By day of three of them; each night of all (test_living.py)."""
    some = [timeline.PLAIN, AHEAD, OTHER]
    sizes = [len(json.dumps(timeline.step_record(watch_flow(run)), separators=(",", ":"))) for run in some]
    assert max(sizes) * len([*timeline.settings()]) < 1_000_000


def test_the_largest_part_of_a_peak_is_on_the_device() -> None:
    offloaded = watch_step(replace(AHEAD, offload=True))[0]
    assert max(offloaded.peak.bytes, key=lambda kind: offloaded.peak.bytes[kind]) == "host:optimizer_states"
    assert peak_name(offloaded).endswith("the largest part gradient buffers")


def test_each_setting_that_the_browser_can_ask_for_was_run(tmp_path: Path) -> None:
    asked = [
        dict(zip(("stage", "overlap", "prefetch", "offload"), values, strict=True))
        for values in product(range(4), *[(True, False)] * 3)
    ]
    keys = answers("timeline", "asked.map(keyOf)", tmp_path, asked=asked)
    assert set(keys) == {timeline.key(run) for run in timeline.settings()}
