"""Gradients against the ranges of formats: the shares are what torch's own conversion makes of the gradients."""

import math
from itertools import combinations

import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text

from zerolab.course.formats import FORMATS
from zerolab.course.viz.gradients import gradient_windows, shares
from zerolab.errors import InputError

TINY = 2.0**-25
"""Half of fp16's smallest number, which is rounded to 0."""


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


@pytest.mark.parametrize("name", ["fp32", "bf16", "fp16", "e5m2", "e4m3"])
@pytest.mark.parametrize("scale", [1.0, 2.0**-9, 3.0])
def test_what_is_lost_and_what_is_coarse_is_what_torch_makes_of_it(name: str, scale: float) -> None:
    form = FORMATS[name]
    # fp32 sizes, so that the conversion rounds once.
    sizes = spread(-40, 8).float().double()
    stored = (sizes * scale).float().to(form.dtype).double()
    lost, coarse, held, large = shares((sizes * scale).float().double(), (name, 1.0))
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


@pytest.mark.parametrize("span", [(-45, -4), (-3, 30), (-140, 120), (0, 1)])
def test_no_text_lies_on_another(span: tuple[int, int]) -> None:
    windows = [("fp16", 1.0), ("fp16", 2.0**16), ("bf16", 1.0), ("e5m2", 3.0), ("e4m3", 1.0)]
    picture = gradient_windows(spread(*span), windows)
    renderer = FigureCanvasAgg(picture.figure).get_renderer()
    picture.figure.draw(renderer)
    width, height = picture.figure.canvas.get_width_height()
    texts = [text for axes in picture.figure.axes for text in axes.findobj(Text) if text.get_visible()]
    boxes = [(text.get_text(), text.get_window_extent(renderer)) for text in texts if text.get_text()]
    # Ticks beyond the limits of an axis have labels, too, which are not drawn.
    shown = [(said, box) for said, box in boxes if box.x0 >= 0 and box.x1 <= width and box.y0 >= 0 and box.y1 <= height]
    assert {text.get_text() for text in picture.figure.axes[1].texts} <= {said for said, _ in shown}
    for (one, box), (other, second) in combinations(shown, 2):
        assert not box.overlaps(second), f"{one!r} on {other!r}"


@pytest.mark.parametrize(
    ("gradients", "windows", "message"),
    [
        (torch.zeros(3), [("fp16", 1.0)], "all 3 gradients are 0"),
        (torch.tensor([1.0, math.inf]), [("fp16", 1.0)], "inf or NaN"),
        (torch.ones(1), [], "no windows"),
        (torch.ones(1), [("fp64", 1.0)], "there is no format 'fp64'"),
        (torch.ones(1), [("fp16", 0.0)], "the scale of fp16 is 0.0"),
    ],
)
def test_what_cannot_be_drawn_is_refused(gradients: torch.Tensor, windows: list, message: str) -> None:
    with pytest.raises(InputError, match=message):
        gradient_windows(gradients, windows)
