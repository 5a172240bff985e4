"""How long training stands still for checkpoints, under the reader's hand."""

from __future__ import annotations

from ipywidgets import IntSlider, Layout, SelectionSlider

from zerolab.course.viz.picture import Picture
from zerolab.course.viz.saving import save_timeline
from zerolab.course.widgets.living import Living

WIDE = {"style": {"description_width": "150px"}, "layout": Layout(width="340px")}
TIMES = [0.0, 1.0, 2.0, 3.0, 5.0, 10.0, 20.0, 30.0, 40.0, 80.0]


def save_sliders(every: int = 3, step: float = 10.0, copy: float = 3.0, write: float = 20.0) -> Living:
    """Twelve steps with checkpoints, waited for or not, for any times of a step, a copy and a write in milliseconds."""

    def draw(every: int, step: float, copy: float, write: float) -> Picture:
        return save_timeline(12, every, step, copy, write)

    return Living(
        draw,
        every=IntSlider(value=every, min=1, max=6, description="steps to a checkpoint", **WIDE),
        step=SelectionSlider(options=TIMES[1:], value=step, description="a step, ms", **WIDE),
        copy=SelectionSlider(options=TIMES, value=copy, description="copying shards, ms", **WIDE),
        write=SelectionSlider(options=TIMES, value=write, description="writing them, ms", **WIDE),
    )
