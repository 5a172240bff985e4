"""The loss scale of a simulated run, under the reader's hand."""

from __future__ import annotations

from ipywidgets import Checkbox, Dropdown, IntSlider, Layout, SelectionSlider

from zerolab.course.viz.picture import Picture
from zerolab.course.viz.scale import COURSES, gradient_course, loss_scale, simulated
from zerolab.course.widgets.living import Living
from zerolab.precision.scaler import LossScaler

WIDE = {"style": {"description_width": "205px"}, "layout": Layout(width="400px")}
WINDOWS = [1, 2, 5, 10, 20, 50, 100, 1000]


def scale_sliders(
    initial_power: int = 16, window: int = 10, hysteresis: int = 2, course: str = "steady", gradient_power: int = 0
) -> Living:
    """The scale over a run of 120 steps, whose largest gradients take one of COURSES around 2**gradient_power. A step
    is skipped where the scale times its gradient is too large for fp16."""

    def draw(
        course: str, gradient_power: int, initial_power: int, window: int, hysteresis: int, consecutive: bool
    ) -> Picture:
        scaler = LossScaler(initial_power, window, hysteresis, consecutive_hysteresis=consecutive)
        return loss_scale(simulated(gradient_course(course, gradient_power), scaler))

    return Living(
        draw,
        course=Dropdown(options=list(COURSES), value=course, description="course of the largest gradient", **WIDE),
        gradient_power=IntSlider(value=gradient_power, min=-24, max=16, description="around: two to", **WIDE),
        initial_power=IntSlider(value=initial_power, min=0, max=32, description="first scale: two to", **WIDE),
        window=SelectionSlider(
            options=WINDOWS, value=window, description="window: clean steps to double", **WIDE
        ),
        hysteresis=SelectionSlider(
            options=[1, 2, 3, 4], value=hysteresis, description="hysteresis: overflows to halve", **WIDE
        ),
        consecutive=Checkbox(value=False, description="a clean step forgives what was before", indent=False),
    )  # fmt: skip
