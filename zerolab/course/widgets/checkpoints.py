"""Checkpoints under the reader's hand: who reads what of them, and how long training stands still for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ipywidgets import IntSlider, Layout, SelectionSlider

from zerolab.course.living import reshard
from zerolab.course.viz.picture import Picture
from zerolab.course.viz.reshard import MOST_RANKS, reshard_map
from zerolab.course.viz.saving import save_timeline
from zerolab.course.widgets.living import Living
from zerolab.flat import ALIGN

WIDE = {"style": {"description_width": "150px"}, "layout": Layout(width="340px")}
TIMES = [0.0, 1.0, 2.0, 3.0, 5.0, 10.0, 20.0, 30.0, 40.0, 80.0]


def reshard_sliders(
    shapes: Mapping[str, Sequence[int]],
    saved_by: int = 4,
    loaded_by: int = 3,
    stage: int = 2,
    nbytes: int = 14,
    align: int = ALIGN,
) -> Living:
    """Which elements each rank reads from whose files, for any numbers of ranks before and after, and any stage."""

    def draw(saved_by: int, loaded_by: int, stage: int) -> Picture:
        return reshard_map(shapes, saved_by, loaded_by, stage, nbytes, align)

    known = reshard.name_of(shapes, nbytes, align)
    return Living(
        draw,
        scene="reshard" if known else "",
        about={"model": known},
        saved_by=IntSlider(value=saved_by, min=1, max=MOST_RANKS, description="ranks that saved", **WIDE),
        loaded_by=IntSlider(value=loaded_by, min=1, max=MOST_RANKS, description="ranks that load", **WIDE),
        stage=SelectionSlider(options=[0, 1, 2, 3], value=stage, description="stage that loads", **WIDE),
    )


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
