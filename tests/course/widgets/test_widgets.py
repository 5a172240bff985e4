"""Controls move the picture: tested by setting values; a notebook and a browser do the rest."""

import math
from collections.abc import Callable
from threading import Event, Thread
from typing import Any

import pytest
from controls import contrast, each_changes_what_is_shown, pixels
from ipywidgets import IntSlider

from zerolab.course.formats import FORMATS
from zerolab.course.lab import VIEW
from zerolab.course.viz import bars, loss_scale, number_line, offload_pipeline, save_timeline
from zerolab.course.viz.picture import Picture, blank, preformatted
from zerolab.course.viz.scale import gradient_course, simulated
from zerolab.course.widgets import (
    Here,
    Living,
    bucket_sliders,
    number_sliders,
    pipeline_sliders,
    save_sliders,
    scale_sliders,
)
from zerolab.course.widgets.living import NOTE, RED
from zerolab.course.widgets.sliders import COARSEST
from zerolab.errors import InputError
from zerolab.precision.scaler import LossScaler


def stored(widget: Any) -> dict[str, Any]:
    """What a notebook keeps of it, once the number of the widget is dropped."""
    return {kind: value for kind, value in widget._repr_mimebundle_().items() if "widget" not in kind}


@pytest.mark.parametrize(
    ("start", "others"),
    [
        (
            lambda: bucket_sliders({"w": (400, 300), "b": (403,), "v": (170_000,)}),
            {"ranks": 8, "gbit_per_s": 1.0, "latency_us": 5.0, "bucket_numel": 1024, "overlapped": False},
        ),
        (number_sliders, {"value": -0.1, "power": 3, "zoom": "fp16"}),
        (pipeline_sliders, {"buffers": 4, "groups": 9, "read": 3.0, "compute": 0.5, "write": 8.0}),
        (save_sliders, {"every": 2, "step": 5.0, "copy": 1.0, "write": 40.0}),
        (
            lambda: scale_sliders(initial_power=20),
            {
                "course": "spikes", "gradient_power": 2, "initial_power": 24, "window": 20, "hysteresis": 3,
                "forgives": True,
            },
        ),
    ],
    ids=["buckets", "numbers", "pipeline", "saving", "scale"],
)  # fmt: skip
def test_each_control_changes_the_picture_and_the_numbers(start: Callable[[], Living], others: dict[str, Any]) -> None:
    each_changes_what_is_shown(start(), others)


@pytest.mark.usefixtures("undrawn")
def test_the_picture_is_that_of_the_pure_function() -> None:
    gradients = gradient_course("falling", 0)
    for living, picture in (
        (number_sliders(math.e), number_line(math.e)),
        (pipeline_sliders(5, 3, 1.0, 4.0, 2.0), offload_pipeline(5, 3, 1, 4, 2)),
        (save_sliders(2, 5.0, 1.0, 40.0), save_timeline(12, 2, 5, 1, 40)),
        (scale_sliders(24, 5, "falling"), loss_scale(simulated(gradients, LossScaler(24, 5)), gradients)),
    ):
        assert living.picture.table == stored(living)["text/plain"] == picture.table


@pytest.mark.usefixtures("undrawn")
def test_the_slider_of_a_number_multiplies_what_is_typed() -> None:
    living = number_sliders(-3.0)
    living.controls["power"].value = -20
    assert living.picture.table == number_line(-3 * 2.0**-20).table
    for power, value in ((0, 1e300), (100, 1e300)):
        living.controls["value"].value, living.controls["power"].value = value, power
    assert "the value is inf, which lies on no line" in living.note.value


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize(
    ("start", "message"),
    [
        (lambda: pipeline_sliders(groups=20), "groups is 20; take 1 to 12"),
        (lambda: pipeline_sliders(read=7.0), "read one group, ms is 7.0; choose one of 0.5, 1.0"),
        (lambda: save_sliders(every=0), "steps to a checkpoint is 0; take 1 to 6"),
        (lambda: bucket_sliders({"w": (3,)}, ranks=5), "ranks is 5; choose one of 2, 4, 8"),
        (lambda: scale_sliders(course="rising"), "course of the largest gradient is 'rising'; choose one of steady"),
    ],
)
def test_a_start_outside_a_control_is_refused(start: Callable[[], Living], message: str) -> None:
    with pytest.raises(InputError, match=message):
        start()


@pytest.mark.usefixtures("undrawn")
def test_the_stretch_is_that_of_the_format_chosen() -> None:
    living = number_sliders(1.0)
    assert living.controls["zoom"].value == COARSEST
    for name, form in FORMATS.items():
        living.controls["zoom"].value = name
        assert float(living.picture.table.split(" wide")[0].split()[-1]) == float(f"{2.5 * form.epsilon:.3g}")


def test_settings_that_cannot_go_together_fade_the_picture_and_say_why_above_it() -> None:
    def draw(one: int) -> Picture:
        if one == 1:
            raise InputError("one is 1; take another")
        return Picture(blank(1 + one, 1), f"{one}")

    living = Living(draw, one=IntSlider())
    kept = pixels(living)
    assert "opacity" not in living.shown.value and not living.note.value
    living.controls["one"].value = 1
    assert "one is 1; take another" in living.note.value and f"color: {RED}" in living.note.value
    assert contrast(RED, "white") >= 4.5 and "background: #fff" in living.note.value, "also on a dark page"
    assert "opacity: 0.35" in living.shown.value and pixels(living) == kept
    kept_so = stored(living)
    assert f">{living.note.value}<figure" in f">{kept_so['text/html']}" and "opacity" in kept_so["text/html"]
    assert kept_so["text/plain"].startswith("one is 1; take another")
    living.controls["one"].value = 2
    assert not living.note.value and "opacity" not in living.shown.value
    assert living.picture.table == "2" and pixels(living) != kept
    with pytest.raises(InputError, match="one is 1"):
        Living(draw, one=IntSlider(1))


def test_a_notebook_without_a_kernel_shows_the_picture_and_its_numbers() -> None:
    living = bucket_sliders({"w": (400, 300)})
    bundle = living._repr_mimebundle_()
    assert bundle["text/html"] == living.picture.html() == living.shown.value
    assert bundle["text/plain"] == living.picture.table
    assert VIEW in bundle


def test_two_controls_that_move_in_two_threads_end_with_the_picture_of_both() -> None:
    drawing, go_on = Event(), Event()

    def draw(one: int, other: int) -> Picture:
        if (one, other) == (1, 0):
            drawing.set()
            assert go_on.wait(20)
        return Picture(blank(1, 1), f"{one} {other}")

    living = Living(draw, one=IntSlider(), other=IntSlider())
    threads = [Thread(target=setattr, args=(living.controls[name], "value", 1)) for name in living.controls]
    threads[0].start()
    assert drawing.wait(20)
    threads[1].start()
    threads[1].join(0.2)  # a picture that does not wait for the one before it is drawn by now
    go_on.set()
    for thread in threads:
        thread.join(20)
    assert living.picture.table == "1 1" and "1 1" in living.shown.value


# What was measured where the reader is


def test_what_was_measured_is_shown_and_not_stored() -> None:
    assert ">5 GB/s &amp; more</pre>" in Here("5 GB/s & more").children[0].value
    assert stored(Here("5 GB/s")) == stored(Here("6 GB/s")) == {"text/plain": NOTE, "text/html": preformatted(NOTE)}
    picture = bars(["a"], {"b": [1.5]})
    here = Here(picture)
    assert here.children[0].value == picture.html() and here.text == picture.table
    assert stored(here) == stored(Here("5 GB/s"))


def test_figures_of_a_named_machine_are_stored_before_the_note() -> None:
    other = "two cores, no GPU: 4 GB/s\n"
    kept = stored(Here("5 GB/s", elsewhere=other))
    assert kept["text/plain"] == f"{other}{NOTE}" and "two cores, no GPU: 4 GB/s" in kept["text/html"]
    assert "5 GB/s" not in kept["text/html"] and "4 GB/s" not in Here("5 GB/s", elsewhere=other).children[0].value
