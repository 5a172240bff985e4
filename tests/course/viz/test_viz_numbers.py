"""The number line and the loss scale's course: what is drawn is what the formats and the scaler say."""

import math
from itertools import combinations, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.backends.backend_agg import FigureCanvasAgg

from zerolab.course.formats import FORMATS, bits, neighbours
from zerolab.course.viz.numbers import number_line
from zerolab.course.viz.picture import Picture
from zerolab.course.viz.scale import (
    COURSES,
    MOST_ROWS,
    ScaleCourse,
    gradient_course,
    loss_scale,
    scripted,
    simulated,
)
from zerolab.errors import InputError
from zerolab.precision.scaler import LossScaler

FINITE = st.floats(allow_nan=False, allow_infinity=False)


def texts_at(picture: Picture) -> list[tuple[str, object]]:
    """Each text that shows, with the box of pixels that it takes."""
    renderer = FigureCanvasAgg(picture.figure).get_renderer()
    picture.figure.draw(renderer)
    found = []
    for axes in picture.figure.axes:
        legend = axes.get_legend()
        labels = [*axes.texts, *axes.get_xticklabels(), *axes.get_yticklabels(), axes.title, axes.xaxis.label]
        found += [*labels, *(legend.get_texts() if legend else [])]
    shown = [text for text in found if text.get_text() and text.get_visible()]
    return [(text.get_text(), text.get_window_extent(renderer)) for text in shown]


# The number line


def test_the_table_has_bits_neighbours_and_errors_of_each_format() -> None:
    assert number_line(math.pi, ["bf16", "e4m3", "e5m2"]).table.splitlines() == [
        "3.14159265; the stretch shown is 1.6 wide",
        "format                bits  below  rounded to    above      error  relative",
        "bf16    0 10000000 1001001  3.125    3.140625  3.15625  -0.000968   0.00031",
        "e4m3            0 1000 101      3        3.25      3.5      0.108     0.035",
        "e5m2            0 10000 10    2.5           3      3.5     -0.142     0.045",
    ]


def test_every_number_of_the_stretch_has_a_tick_at_its_place() -> None:
    line = number_line(math.pi, ["e5m2", "e4m3"]).figure.axes[0]
    half = 1.25 * (math.pi - 2.5)
    for ticks, expected in zip(line.collections, [[2.5, 3, 3.5], [2.5, 2.75, 3, 3.25, 3.5, 3.75]], strict=True):
        places = [segment[0][0] * half + math.pi for segment in ticks.get_segments()]
        assert places == pytest.approx(expected)


def test_a_finer_format_is_a_band_with_its_count_and_a_coarser_one_lies_outside() -> None:
    shown = {name: [] for name in FORMATS}
    for text in number_line(math.pi, zoom="fp16").figure.axes[0].texts:
        shown[[*FORMATS][math.floor(text.get_position()[1])]].append(text.get_text())
    assert any(text.endswith(" numbers") for text in shown["fp32"])
    assert shown["fp16"] == ["3.140625", "3.13867188", "3.14257812"]
    assert shown["e4m3"] == ["rounded to 3.25, right of here"] and shown["e5m2"] == ["rounded to 3, left of here"]


def test_the_boxes_hold_the_bits() -> None:
    boxes = number_line(-0.1, ["fp16", "e4m3"]).figure.axes[1]
    written = "".join(text.get_text() for text in boxes.texts if text.get_text() in "01")
    assert written == (bits(-0.1, "fp16") + bits(-0.1, "e4m3")).replace(" ", "")
    assert len(boxes.patches) == 16 + 8


@settings(max_examples=8)
@given(value=FINITE, zoom=st.sampled_from([None, *FORMATS]))
def test_any_finite_number_can_be_drawn(value: float, zoom: str | None) -> None:
    picture = number_line(value, zoom=zoom)
    rows = picture.table.splitlines()[2:]
    assert [row.split()[0] for row in rows] == [*FORMATS]
    for row, name in zip(rows, FORMATS, strict=True):
        assert f"{neighbours(value, name)[1]:.9g}" in row
    assert picture.png().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("value", "zoom"),
    [
        (math.pi, None), (math.pi, "fp16"), (math.pi, "fp32"), (-1 / 3, "bf16"), (0, None), (1e-5, None), (70000, None),
        (0.1, "e4m3"), (1e39, None), (-3.4028234e38, None), (65504, "fp16"), (2.0**-149, "fp32"), (-448, "e4m3"),
        (-1.00135803e-5, "bf16"), (-9.9999e-6, "fp32"), (-1.2345e-30, None), (123456789, "fp32"),
    ],
)  # fmt: skip
def test_no_text_lies_on_another(value: float, zoom: str | None) -> None:
    picture = number_line(value, zoom=zoom)
    for (one, box), (other, second) in combinations(texts_at(picture), 2):
        assert not box.overlaps(second), f"{one!r} on {other!r}"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((math.inf,), "the value is inf, which lies on no line; give a finite number"),
        ((math.nan,), "the value is nan, which"),
        (("pi",), "the value is 'pi'; give a number"),
        ((1.0, []), "no formats to draw; choose from fp32"),
        ((1.0, ["fp64"]), "there is no format 'fp64'"),
        ((1.0, ["fp16"], "fp8"), "there is no format 'fp8'"),
    ],
)
def test_what_has_no_number_line_is_refused(arguments: tuple, message: str) -> None:
    with pytest.raises(InputError, match=message):
        number_line(*arguments)


# The course of a scale


def test_the_course_of_a_script_is_the_scalers() -> None:
    script = [step in "x" for step in "xx....x"]
    picture = loss_scale(scripted(script, LossScaler(4, window=3)))
    assert picture.table.splitlines() == [
        "3 of 7 steps skipped",
        "a scale of 16 keeps gradients from 3.7e-09 to 4094",
        "steps   scale  log2  outcome",
        "0 to 1     16     4  skipped",
        "2 to 5      8     3    taken",
        "6          16     4  skipped",
    ]
    axes = picture.figure.axes[0]
    values, edges, _ = axes.patches[0].get_data()
    assert values.tolist() == [4, 4, 3, 3, 3, 3, 4] and edges[-1] == 7
    (marks,) = [line for line in axes.lines if line.get_marker() == "X"]
    assert marks.get_xydata().tolist() == [[0.5, 4], [1.5, 4], [6.5, 4]]


def test_a_recorded_list_is_drawn_as_the_course_that_it_is() -> None:
    course = scripted([True, False, True, True], LossScaler(5))
    assert loss_scale(list(course.steps)).table == loss_scale(course).table
    assert loss_scale([(0.75, False)]).table.splitlines()[-1] == "0       0.75  -0.415037    taken"


def test_a_step_is_skipped_where_the_scaled_gradient_does_not_fit_into_fp16() -> None:
    # 65,519 is rounded to 65,504; halfway to the next power is 65,520, which becomes inf.
    course = simulated([65519 / 16, 65520 / 16, 65519 / 16, 1e-3], LossScaler(4, hysteresis=1))
    assert course.steps == [(16, False), (16, True), (8, False), (8, False)]
    limits = loss_scale(course).figure.axes[0].patches[1].get_data()[0]
    assert limits[3] == pytest.approx(math.log2(65504 / 1e-3))


def test_a_run_that_ends_at_the_floor_says_so() -> None:
    course = simulated([1e6] * 9, LossScaler(2, hysteresis=2))
    assert [scale for scale, _ in course.steps] == [4, 4, 2, 1] and course.ended and len(course.gradients) == 4
    assert "4 of 4 steps skipped; the last one overflowed at the floor" in loss_scale(course).table


@pytest.mark.parametrize("name", COURSES)
def test_a_simulated_run_ends_where_its_gradients_allow(name: str) -> None:
    gradients = gradient_course(name, 0)
    course = simulated(gradients, LossScaler(24, window=5, hysteresis=1))
    assert len(course.steps) == len(gradients) == 120 and not course.ended
    for (scale, skipped), gradient in zip(course.steps, gradients, strict=True):
        assert skipped == (scale * gradient >= 65520)
    for (scale, skipped), (after, _) in pairwise(course.steps):
        assert after in ((scale / 2,) if skipped else (scale, 2 * scale))


@pytest.mark.parametrize("name", COURSES)
def test_no_text_lies_on_another_there(name: str) -> None:
    picture = loss_scale(simulated(gradient_course(name, -12), LossScaler(32, window=5)))
    for (one, box), (other, second) in combinations(texts_at(picture), 2):
        assert not box.overlaps(second), f"{one!r} on {other!r}"


def test_a_long_table_says_what_it_leaves_out() -> None:
    table = loss_scale([(2.0**step, False) for step in range(100)]).table
    assert table.splitlines()[-1] == f"and {100 - MOST_ROWS} rows more, for the steps after these"


@pytest.mark.parametrize(
    ("course", "message"),
    [
        ([], "the course has no steps; give"),
        ([(0.0, False)], "the scale of step 0 is 0.0; give finite numbers above 0"),
        (ScaleCourse([(2.0, True), (math.inf, True)]), "the scale of step 1 is inf"),
    ],
)
def test_a_course_that_is_none_is_refused(course: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        loss_scale(course)  # type: ignore[arg-type]


def test_gradients_and_courses_that_there_are_not_are_refused() -> None:
    with pytest.raises(InputError, match=r"largest gradient is -1\.0; give finite numbers above 0"):
        simulated([-1.0], LossScaler())
    with pytest.raises(InputError, match="there is no course 'wild'; choose one of steady"):
        gradient_course("wild", 0)
