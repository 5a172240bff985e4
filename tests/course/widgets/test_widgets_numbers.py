"""Controls on the number line and on the loss scale: tested by setting values."""

import math
from collections.abc import Callable

import pytest
from controls import each_changes_what_is_shown, pixels

from zerolab.course.formats import FORMATS
from zerolab.course.viz.numbers import number_line
from zerolab.course.viz.scale import gradient_course, loss_scale, simulated
from zerolab.course.widgets.living import Living
from zerolab.course.widgets.numbers import COARSEST, number_sliders
from zerolab.course.widgets.scale import scale_sliders
from zerolab.precision.scaler import LossScaler


@pytest.mark.parametrize(
    ("start", "others"),
    [
        (number_sliders, {"value": -0.1, "power": 3, "formats": ("fp16", "e4m3"), "zoom": "fp16"}),
        (
            lambda: scale_sliders(initial_power=20),
            {
                "course": "spikes", "gradient_power": 2, "initial_power": 24, "window": 20, "hysteresis": 3,
                "consecutive": True,
            },
        ),
    ],
    ids=["numbers", "scale"],
)  # fmt: skip
def test_each_control_changes_the_picture_and_the_numbers(
    start: Callable[[], Living], others: dict[str, object]
) -> None:
    each_changes_what_is_shown(start(), others)


@pytest.mark.usefixtures("undrawn")
def test_the_picture_is_that_of_the_pure_function() -> None:
    assert number_sliders(math.e).picture.table == number_line(math.e).table
    living = scale_sliders(24, 5, 1, "falling", -4)
    assert living.picture.table == loss_scale(simulated(gradient_course("falling", -4), LossScaler(24, 5, 1))).table


@pytest.mark.usefixtures("undrawn")
def test_the_slider_moves_the_power_and_keeps_the_mantissa() -> None:
    living = number_sliders(-3.0)
    value, power = living.controls["value"], living.controls["power"]
    assert power.value == 1
    power.value = -20
    assert value.value == -1.5 * 2.0**-20
    value.value = 100.0
    assert (value.value, power.value) == (100.0, 6)
    assert living.picture.table == number_line(100.0).table


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("value", [0.0, -0.0, 1e300, -1e-300])
def test_a_value_beyond_the_slider_stays_what_was_typed(value: float) -> None:
    living = number_sliders(1.0)
    living.controls["value"].value = value
    assert living.controls["value"].value == value
    assert living.picture.table == number_line(value).table


@pytest.mark.usefixtures("undrawn")
def test_from_zero_the_slider_goes_to_a_power_of_two() -> None:
    living = number_sliders(0.0)
    living.controls["power"].value = -10
    assert living.controls["value"].value == 2.0**-10


def test_what_cannot_be_drawn_keeps_the_picture_and_says_why() -> None:
    living = number_sliders()
    kept = pixels(living)
    living.controls["formats"].value = ()
    assert "there are no formats to draw" in living._note.value and pixels(living) == kept
    living.controls["formats"].value = ("bf16",)
    assert "0 10000000 1001001" in living._shown.value and not living._note.value
    living.controls["value"].value = math.inf
    assert "the value is inf, which lies on no line" in living._note.value


@pytest.mark.usefixtures("undrawn")
def test_the_stretch_is_that_of_the_format_chosen() -> None:
    living = number_sliders(1.0)
    assert living.controls["zoom"].value == COARSEST
    widths = []
    for name in FORMATS:
        living.controls["zoom"].value = name
        widths.append(float(living.picture.table.split(" wide")[0].split()[-1]))
    assert widths == [float(f"{2.5 * FORMATS[name].epsilon:.3g}") for name in FORMATS]


def test_a_run_that_ends_is_drawn_to_its_end() -> None:
    living = scale_sliders(initial_power=4, gradient_power=16)
    assert "which ends the run" in living._shown.value
