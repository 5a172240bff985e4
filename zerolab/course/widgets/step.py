"""A training step under the reader's hand: each setting really runs it."""

from __future__ import annotations

from ipywidgets import Checkbox, Layout, SelectionSlider

from zerolab.course.viz.picture import Picture
from zerolab.course.viz.skyline import step_skyline
from zerolab.course.viz.step import StepRun
from zerolab.course.widgets.living import Living
from zerolab.zero.table import STAGES

WIDE = {"style": {"description_width": "115px"}, "layout": Layout(width="320px")}


def step_timeline(
    stage: int = 3, ranks: int = 4, gbit_per_s: float = 10.0, latency_us: float = 5.0, prefetch: bool = True
) -> Living:
    """Timeline and memory of one step of a small model on a simulated link, in lockstep. A new setting runs all four
    stages, which takes about a second; after that they are remembered."""

    def draw(**settings: object) -> Picture:
        return step_skyline(StepRun(**settings))  # type: ignore[arg-type]

    return Living(
        draw,
        # What the scene replays was recorded with four ranks on this link.
        scene="timeline" if (ranks, gbit_per_s, latency_us) == (4, 10.0, 5.0) else "",
        busy="The step runs with these settings, at all four stages ...",
        stage=SelectionSlider(options=list(STAGES), value=stage, description="stage", **WIDE),
        ranks=SelectionSlider(options=[1, 2, 3, 4], value=ranks, description="ranks", **WIDE),
        gbit_per_s=SelectionSlider(
            options=[1.0, 5.0, 10.0, 25.0, 100.0], value=gbit_per_s, description="gigabits a second", **WIDE
        ),
        latency_us=SelectionSlider(
            options=[0.0, 1.0, 5.0, 20.0, 50.0], value=latency_us, description="latency, µs", **WIDE
        ),
        prefetch=Checkbox(value=prefetch, description="gather the next unit ahead (stage 3)", indent=False),
    )
