"""A number under the reader's hand, in every format at once."""

from __future__ import annotations

from math import frexp, isfinite, ldexp

from ipywidgets import Dropdown, FloatText, IntSlider, Layout, SelectMultiple

from zerolab.course.formats import FORMATS
from zerolab.course.viz.numbers import number_line
from zerolab.course.viz.picture import Picture
from zerolab.course.widgets.living import Living

WIDE = {"style": {"description_width": "150px"}, "layout": Layout(width="340px")}
POWERS = (-150, 130)
"""From below the smallest number of any format to beyond the largest."""
COARSEST = "the coarsest of these"


def number_sliders(value: float = 3.14159265, formats: tuple[str, ...] = tuple(FORMATS)) -> Living:
    """The number line around a value: type one, or double and halve it with the slider. The stretch shown follows
    the neighbours in one format."""
    controls = {
        "value": FloatText(value=value, description="value", **WIDE),
        "power": IntSlider(
            value=power_of(value), min=POWERS[0], max=POWERS[1], description="its power of two", **WIDE
        ),
        "formats": SelectMultiple(
            options=list(FORMATS), value=formats, rows=len(FORMATS), description="formats", **WIDE
        ),
        "zoom": Dropdown(options=[COARSEST, *FORMATS], value=COARSEST, description="room for neighbours in", **WIDE),
    }  # fmt: skip
    link_power(controls["value"], controls["power"])

    def draw(value: float, power: int, formats: tuple[str, ...], zoom: str) -> Picture:
        # The power is in the value already.
        return number_line(value, formats, None if zoom == COARSEST else zoom)

    return Living(draw, **controls)


def power_of(value: float) -> int:
    """The power of two of a value's leading bit, within what the slider has; 0 for what has none."""
    if not value or not isfinite(value):
        return 0
    return min(max(frexp(value)[1] - 1, POWERS[0]), POWERS[1])


def link_power(value: FloatText, power: IntSlider) -> None:
    """The slider keeps the mantissa of the value and moves its power; a value that is typed moves the slider."""

    def follow(_: object) -> None:
        power.value = power_of(value.value)

    def shift(_: object) -> None:
        # Not for a move that came from the value, nor where the slider ends before the value does.
        if power.value != power_of(value.value):
            value.value = ldexp(2 * frexp(value.value)[0], power.value) if value.value else ldexp(1.0, power.value)

    value.observe(follow, names="value")
    power.observe(shift, names="value")
