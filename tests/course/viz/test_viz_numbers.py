"""Numbers in formats, gradients in windows and the loss scale's course: what the formats, torch and the scaler say."""

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from zerolab.course.formats import FORMATS, bits, neighbours
from zerolab.course.viz import gradient_windows, loss_scale, number_line
from zerolab.course.viz.numbers import RIGHT, ROW, across, shares
from zerolab.course.viz.scale import COURSES, MOST_ROWS, STEPS, gradient_course, simulated
from zerolab.errors import InputError
from zerolab.precision.scaler import LossScaler

FINITE = st.floats(allow_nan=False, allow_infinity=False)
TINY = 2.0**-25
"""Half of fp16's smallest number, which is rounded to 0."""


# The number line


def test_the_table_has_bits_neighbours_and_errors_of_each_format() -> None:
    lines = number_line(math.pi).table.splitlines()
    assert lines[0] == "3.14159265; the stretch shown is 1.6 wide"
    assert [" ".join(line.split()) for line in lines[3:]] == [
        "bf16 0 10000000 1001001 3.125 3.140625 3.15625 -0.000968 0.00031",
        "fp16 0 10000 1001001000 3.13867188 3.140625 3.14257812 -0.000968 0.00031",
        "e4m3 0 1000 101 3 3.25 3.5 0.108 0.035",
        "e5m2 0 10000 10 2.5 3 3.5 -0.142 0.045",
    ]


def test_every_number_of_the_stretch_has_a_tick_and_a_finer_format_is_a_band() -> None:
    axes = number_line(math.pi).figure.axes[0]
    half = 1.25 * (math.pi - 2.5)
    ticks = [[round(x, 1) for x in line.get_xdata()] for line in axes.lines]
    for row, expected in ((3, [2.5, 2.75, 3, 3.25, 3.5, 3.75]), (4, [2.5, 3, 3.5])):
        places = [round(across((place - math.pi) / half), 1) for place in expected]
        found = [x for (x, other), line in zip(ticks, axes.lines, strict=True) if x == other and row_of(line) == row]
        assert sorted(found) == sorted([*places, across(0)])
    band = [text.get_text() for text in axes.texts if text.get_text().endswith(" numbers")]
    assert band == ["6,727,586 numbers", "822 numbers"]


def row_of(line) -> int:  # type: ignore[no-untyped-def]
    """Of a tick, which format it is of; ticks of the axis lie beneath all."""
    return round((sum(line.get_ydata()) / 2 - 42) / ROW)


def test_a_coarser_format_lies_outside_and_neighbours_are_named() -> None:
    axes = number_line(math.pi, zoom="fp16").figure.axes[0]
    said = [text.get_text() for text in axes.texts]
    assert "rounded to 3.25, right of here" in said and "rounded to 3, left of here" in said
    assert {"3.140625", "3.13867188", "3.14257812"} <= set(said)
    assert all(text.get_position()[0] <= RIGHT for text in axes.texts)


def test_the_boxes_hold_the_bits() -> None:
    texts = number_line(-0.1).figure.axes[0].texts
    written = "".join(text.get_text() for text in texts if text.get_text() in "01" and text.get_position()[1] > 300)
    assert written == "".join(bits(-0.1, name) for name in FORMATS).replace(" ", "")


@settings(max_examples=8, deadline=None)
@given(value=FINITE, zoom=st.sampled_from([None, *FORMATS]))
def test_any_finite_number_can_be_drawn(value: float, zoom: str | None) -> None:
    picture = number_line(value, zoom=zoom)
    rows = picture.table.splitlines()[2:]
    assert [row.split()[0] for row in rows] == [*FORMATS]
    for row, name in zip(rows, FORMATS, strict=True):
        assert f"{neighbours(value, name)[1]:.9g}" in row
    assert picture.png().startswith(b"\x89PNG")


# Gradients and windows


def spread(low: int, high: int) -> torch.Tensor:
    """Many sizes between two powers of two."""
    powers = torch.rand(4096, generator=torch.Generator().manual_seed(0)).double() * (high - low) + low
    return torch.exp2(powers)


def test_the_table_counts_each_outcome() -> None:
    gradients = torch.tensor([0.0, TINY, 2 * TINY, 2.0**-14, -1.0, 65504.0, 70000.0, -1e9])
    picture = gradient_windows(gradients, [("fp16", 1.0), ("fp16", 2.0**-17)])
    assert picture.table.splitlines() == [
        "7 gradients that are not 0, 1 that are",
        "stored in     lost  coarse  held  too large",
        "fp16          14 %    14 %  43 %       29 %",
        "fp16 x 2^-17  43 %    14 %  43 %        0 %",
    ]
    assert picture.alt.endswith(": fp16 loses 14 %, 29 % too large; fp16 x 2^-17 loses 43 %.")


def test_one_gradient_among_many_that_is_too_large_is_named() -> None:
    picture = gradient_windows(torch.tensor([1.0] * 300 + [1e9]), [("fp16", 1.0)])
    assert picture.table.splitlines()[-1].split() == ["fp16", "0", "%", "0", "%", "100", "%", "<1", "%"]
    assert "<1 % too large" in picture.alt
    assert any("<1 % too large" in text.get_text() for text in picture.figure.axes[1].texts)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("scale", [1.0, 2.0**-9, 3.0])
def test_what_is_lost_and_what_is_coarse_is_what_torch_makes_of_it(name: str, scale: float) -> None:
    form = FORMATS[name]
    # fp32 sizes, so that the conversion rounds once.
    sizes = torch.cat([spread(-40, 20), torch.tensor([460.0, 464.0, 464.1, 65510.0, 65520.0]) / scale])
    scaled = (sizes * scale).float()
    stored = scaled.to(form.dtype).double()
    lost, coarse, held, large = shares(scaled.double(), (name, 1.0))
    # e4m3 has no inf, and torch saturates there: beyond 448 it would go on in steps of 32.
    beyond = stored.isinf() if form.infinite else (scaled.double() / 32).round() * 32 > 448
    assert large == pytest.approx(100 * float(beyond.double().mean()))
    assert lost == pytest.approx(100 * float((stored == 0).double().mean()))
    assert lost + coarse == pytest.approx(100 * float((stored < form.smallest_normal).double().mean()), abs=0.8)
    assert lost + coarse + held + large == pytest.approx(100)


def test_a_scale_moves_the_window_and_not_the_gradients() -> None:
    picture = gradient_windows(spread(-30, -10), [("fp16", 1.0), ("fp16", 2.0**10)])
    bars, lines = picture.figure.axes
    assert sum(bar.get_height() for bar in bars.patches) == pytest.approx(100)
    # Of each window the normal numbers, then the subnormal ones, then what becomes 0 and what becomes inf.
    low, high = lines.get_xlim()
    top = math.log2(65504)
    assert top - 10 < high < top, "the first window reaches farther than the picture"
    spans = [(bar.get_x(), bar.get_x() + bar.get_width()) for bar in lines.patches]
    expected = [(-14, high), (-25, -14), (low, -25), (high, high)]
    expected += [(-24, top - 10), (-35, -24), (low, -35), (top - 10, high)]
    assert spans == [pytest.approx(span) for span in expected]
    assert [bool(bar.get_hatch()) for bar in lines.patches] == [False, False, True, True] * 2


# The course of a scale


def test_the_course_of_a_run_is_the_scalers() -> None:
    # 65,519 is rounded to 65,504; halfway to the next power is 65,520, which becomes inf.
    gradients = [65520 / 16] * 2 + [65519 / 16] * 4 + [65520 / 16]
    steps = simulated(gradients, LossScaler(4, window=3))
    picture = loss_scale(steps, gradients)
    assert picture.table.splitlines() == [
        "3 of 7 steps skipped",
        "a scale of 16 keeps gradients from 3.7e-09 to 4094",
        "steps   scale  log2  outcome",
        "0 to 1     16     4  skipped",
        "2 to 5      8     3    taken",
        "6          16     4  skipped",
    ]
    axes = picture.figure.axes[0]
    (values, edges, _), (limits, _, _) = (patch.get_data() for patch in axes.patches)
    assert values.tolist() == [4, 4, 3, 3, 3, 3, 4] and edges[-1] == 7
    assert limits[2] == pytest.approx(math.log2(65504 * 16 / 65519))
    (marks,) = [line for line in axes.lines if line.get_marker() == "X"]
    assert marks.get_xydata().tolist() == [[0.5, 4], [1.5, 4], [6.5, 4]]
    assert loss_scale([(0.75, False)]).table.splitlines()[-1] == "0       0.75  -0.415037    taken"


@pytest.mark.parametrize("gradient", [math.nan, math.inf])
def test_a_step_whose_gradient_is_not_finite_is_skipped_and_has_no_limit(gradient: float) -> None:
    steps = simulated([1.0, gradient, 0.0], LossScaler(4, hysteresis=1))
    assert steps == [(16, False), (16, True), (8, False)]
    (limits, _, _) = loss_scale(steps, [1.0, gradient, 0.0]).figure.axes[0].patches[1].get_data()
    assert limits.tolist() == pytest.approx([math.log2(65504), math.nan, math.nan], nan_ok=True)


def test_a_run_that_ends_at_the_floor_says_so() -> None:
    steps = simulated([1e6] * 9, LossScaler(2, hysteresis=2))
    assert [scale for scale, _ in steps] == [4, 4, 2, 1]
    assert "4 of 4 steps skipped; the last one overflowed at the floor" in loss_scale(steps, [1e6] * 9).table


@pytest.mark.parametrize("name", COURSES)
def test_a_simulated_run_ends_where_its_gradients_allow(name: str) -> None:
    gradients = gradient_course(name, 0)
    steps = simulated(gradients, LossScaler(24, window=5, hysteresis=1))
    assert len(steps) == len(gradients) == STEPS
    for (scale, skipped), gradient in zip(steps, gradients, strict=True):
        assert skipped == (scale * gradient >= 65520)
    for (scale, skipped), (after, _) in pairwise(steps):
        assert after in ((scale / 2,) if skipped else (scale, 2 * scale))


def test_a_long_table_says_what_it_leaves_out() -> None:
    table = loss_scale([(2.0**step, False) for step in range(100)]).table
    assert table.splitlines()[-1] == f"and {100 - MOST_ROWS} rows more, for the steps after these"


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda: number_line(math.inf), "the value is inf, which lies on no line; give a finite number"),
        (lambda: number_line("pi"), "the value is 'pi'; give a number"),  # type: ignore[arg-type]
        (lambda: number_line(1.0, "fp8"), "there is no format 'fp8'"),
        (lambda: gradient_windows(torch.zeros(3), [("fp16", 1.0)]), "all 3 gradients are 0"),
        (lambda: gradient_windows(torch.tensor([1.0, math.inf]), [("fp16", 1.0)]), "inf or NaN"),
        (lambda: gradient_windows(torch.ones(1), [("fp64", 1.0)]), "there is no format 'fp64'"),
        (lambda: gradient_windows(torch.ones(1), [("fp16", 0.0)]), "the scale of fp16 is 0.0"),
    ],
)
def test_what_cannot_be_drawn_is_refused(draw, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InputError, match=message):
        draw()
