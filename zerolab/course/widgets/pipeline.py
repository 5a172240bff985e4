"""The pipeline of an offloaded step, under the reader's hand."""

from __future__ import annotations

from ipywidgets import IntSlider, Layout, SelectionSlider

from zerolab.course.viz.picture import Picture
from zerolab.course.viz.pipeline import MOST_BUFFERS, offload_pipeline
from zerolab.course.widgets.living import Living

WIDE = {"style": {"description_width": "130px"}, "layout": Layout(width="320px")}
TIMES = [0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0]


def pipeline_sliders(
    groups: int = 6, buffers: int = 2, read: float = 2.0, compute: float = 2.0, write: float = 2.0
) -> Living:
    """The timeline of a step whose states pass through buffers, one row for each, for any times of its three parts in
    milliseconds."""

    def draw(buffers: int, groups: int, read: float, compute: float, write: float) -> Picture:
        return offload_pipeline(groups, buffers, read, compute, write)

    return Living(
        draw,
        buffers=IntSlider(value=buffers, min=1, max=MOST_BUFFERS, description="buffers", **WIDE),
        groups=IntSlider(value=groups, min=1, max=12, description="groups", **WIDE),
        read=SelectionSlider(options=TIMES, value=read, description="read one group, ms", **WIDE),
        compute=SelectionSlider(options=TIMES, value=compute, description="compute on it, ms", **WIDE),
        write=SelectionSlider(options=TIMES, value=write, description="write it, ms", **WIDE),
    )
