"""A step at stages 0 to 3, moment by moment, under the reader's hand."""

from __future__ import annotations

from ipywidgets import IntSlider, Layout, SelectionSlider

from zerolab.course.viz.slices import flow_of, stops
from zerolab.course.viz.stages import stage_moment
from zerolab.course.widgets.living import Living
from zerolab.zero.table import STAGES

WIDE = {"style": {"description_width": "80px"}, "layout": Layout(width="300px")}


def stage_stepper(stage: int = 1, moment: int = 0) -> Living:
    """A step of a small model on four ranks as it ran in lockstep: what each rank has of every unit at a moment, and
    rank 0's memory. A stage that was not shown before takes about a second to run."""
    controls = {
        "stage": SelectionSlider(options=list(STAGES), value=stage, description="stage", **WIDE),
        "moment": IntSlider(value=moment, min=0, max=len(stops(flow_of(stage))) - 1, description="moment", **WIDE),
    }

    def stretch(_: object) -> None:
        controls["moment"].max = len(stops(flow_of(controls["stage"].value))) - 1

    # Before the picture hears of it: a stage of fewer moments must not be asked for one that it has not.
    controls["stage"].observe(stretch, names="value")
    return Living(stage_moment, scene="stages", **controls)
