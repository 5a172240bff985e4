"""Controls on the pipeline of an offloaded step, and what is shown where it was measured."""

from typing import Any

from controls import each_changes_what_is_shown

from zerolab.course.viz.bars import bars
from zerolab.course.viz.picture import preformatted
from zerolab.course.viz.pipeline import offload_pipeline
from zerolab.course.widgets.here import NOTE, Here
from zerolab.course.widgets.pipeline import pipeline_sliders


def stored(widget: Any) -> dict[str, Any]:
    """What a notebook keeps of it, once the number of the widget is dropped."""
    bundle = widget._repr_mimebundle_()
    data = bundle[0] if isinstance(bundle, tuple) else bundle
    return {kind: value for kind, value in data.items() if "widget" not in kind}


def test_each_control_changes_the_picture_and_the_numbers() -> None:
    others = {"buffers": 4, "groups": 9, "read": 3.0, "compute": 0.5, "write": 8.0}
    each_changes_what_is_shown(pipeline_sliders(), others)


def test_buffers_go_from_1_to_4() -> None:
    slider = pipeline_sliders().controls["buffers"]
    assert (slider.min, slider.max) == (1, 4)


def test_the_picture_is_that_of_the_pure_function() -> None:
    living = pipeline_sliders(groups=5, buffers=3, read=1.0, compute=4.0, write=2.0)
    assert living.picture.table == offload_pipeline(5, 3, 1, 4, 2).table
    assert stored(living)["text/plain"] == living.picture.table


def test_what_was_measured_is_shown_and_not_stored() -> None:
    assert ">5 GB/s &amp; more</pre>" in Here("5 GB/s & more").children[0].value
    assert stored(Here("5 GB/s")) == stored(Here("6 GB/s"))
    assert stored(Here("5 GB/s")) == {"text/plain": NOTE, "text/html": preformatted(NOTE)}


def test_figures_of_a_named_machine_are_stored_before_the_note() -> None:
    other = "two cores, no GPU: 4 GB/s\n"
    kept = stored(Here("5 GB/s", elsewhere=other))
    assert kept["text/plain"] == f"{other}{NOTE}" and "two cores, no GPU: 4 GB/s" in kept["text/html"]
    assert "5 GB/s" not in kept["text/html"] and "4 GB/s" not in Here("5 GB/s", elsewhere=other).children[0].value


def test_a_measured_picture_is_shown_above_its_numbers_and_not_stored() -> None:
    picture = bars(["a"], {"b": [1.5]})
    here = Here(picture)
    assert here.children[0].value == picture.html() and here.text == picture.table
    assert stored(here)["text/plain"] == NOTE and "img" not in stored(here)["text/html"]
