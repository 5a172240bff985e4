"""Controls move the picture: tested by setting values; a notebook and a browser do the rest."""

from threading import Event, Thread

import pytest
from controls import each_changes_what_is_shown, pixels
from ipywidgets import IntSlider

from zerolab.course.lab import VIEW
from zerolab.course.viz.looks import contrast
from zerolab.course.viz.picture import Picture, blank
from zerolab.course.widgets import Living, bucket_sliders
from zerolab.course.widgets.living import RED
from zerolab.errors import InputError


def test_each_control_changes_the_picture_and_the_numbers() -> None:
    others = {"ranks": 8, "gbit_per_s": 1.0, "latency_us": 5.0, "bucket_numel": 1024, "overlapped": False}
    each_changes_what_is_shown(bucket_sliders({"w": (400, 300), "b": (403,), "v": (170_000,)}), others)


def test_settings_that_cannot_go_together_fade_the_picture_and_say_why_above_it() -> None:
    def draw(one: int) -> Picture:
        if one == 1:
            raise InputError("one is 1; take another")
        return Picture(blank(1 + one, 1), f"{one}")

    living = Living(draw, one=IntSlider())
    kept = pixels(living)
    assert "opacity" not in living._shown.value and not living._note.value
    living.controls["one"].value = 1
    assert "one is 1; take another" in living._note.value and f"color: {RED}" in living._note.value
    assert "opacity: 0.35" in living._shown.value and pixels(living) == kept
    stored = living._repr_mimebundle_()
    assert f">{living._note.value}<figure" in stored["text/html"] and "opacity" in stored["text/html"]
    assert stored["text/plain"].startswith("one is 1; take another")
    living.controls["one"].value = 2
    assert not living._note.value and "opacity" not in living._shown.value
    assert living.picture.table == "2" and pixels(living) != kept
    with pytest.raises(InputError, match="one is 1"):
        Living(draw, one=IntSlider(1))


def test_what_is_said_in_red_can_be_read() -> None:
    assert contrast(RED, "white") >= 4.5


def test_a_slow_picture_says_that_it_is_being_drawn_and_then_no_more() -> None:
    seen: list[str] = []

    def draw(one: int) -> Picture:
        seen.append(living._note.value if one else "")
        return Picture(blank(1, 1), f"{one}")

    living = Living(draw, busy="The step runs ...", one=IntSlider())
    assert not living._note.value
    living.controls["one"].value = 3
    assert "The step runs ..." in seen[-1] and not living._note.value


def test_a_notebook_without_a_kernel_shows_the_picture_and_its_numbers() -> None:
    living = bucket_sliders({"w": (400, 300)})
    bundle = living._repr_mimebundle_()
    assert bundle["text/html"] == living.picture.html() == living._shown.value
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
    assert living.picture.table == "1 1" and "1 1" in living._shown.value


def test_settings_are_drawn_once_though_one_control_moved_another() -> None:
    drawn: list[float] = []

    def draw(one: int, other: int) -> Picture:
        drawn.append(one)
        return Picture(blank(1, 1), f"{one} {other}")

    one, other = IntSlider(), IntSlider()
    one.observe(lambda change: other.set_trait("value", change["new"]), names="value")
    living = Living(draw, one=one, other=other)
    one.value = 3
    assert drawn == [0, 3] and living.picture.table == "3 3"
