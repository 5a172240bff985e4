"""A ring collective step by step, under the reader's hand."""

from __future__ import annotations

from ipywidgets import Dropdown, IntSlider, Layout, SelectionSlider

from zerolab.course.viz.film import COLLECTIVES, NUMEL, film
from zerolab.course.viz.moment import ring_moment
from zerolab.course.viz.picture import Picture
from zerolab.course.viz.ring import MOST_RANKS
from zerolab.course.widgets.living import Living

WIDE = {"style": {"description_width": "80px"}, "layout": Layout(width="300px")}


def ring_stepper(collective: str = "reduce_scatter", ranks: int = 4, step: int = 0, numel: int = NUMEL) -> Living:
    """What each rank of a ring holds after so many steps, and what moves next. `numel` is the length of the tensor, in
    int32 elements; the step goes as far as the collective does."""
    last = len(film(collective, ranks, numel)) - 1
    controls = {
        "collective": Dropdown(options=list(COLLECTIVES), value=collective, description="collective", **WIDE),
        "ranks": SelectionSlider(
            options=list(range(2, MOST_RANKS + 1)), value=ranks, description="ranks", **WIDE
        ),
        "step": IntSlider(value=step, min=0, max=last, description="steps done", **WIDE),
    }  # fmt: skip

    def stretch(_: object) -> None:
        controls["step"].max = len(film(controls["collective"].value, controls["ranks"].value, numel)) - 1

    # Before the picture hears of it: a shorter ring must not be asked for a step that it has not.
    for name in ("collective", "ranks"):
        controls[name].observe(stretch, names="value")

    def draw(collective: str, ranks: int, step: int) -> Picture:
        return ring_moment(collective, ranks, step, numel)

    return Living(draw, scene="ring", **controls)
