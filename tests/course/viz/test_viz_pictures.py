"""What every picture of the course keeps to: words, contrast, no text on another, one look for a kind of memory."""

import base64
import configparser
import inspect
import io
import re
from functools import lru_cache
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from controls import contrast
from matplotlib import _pylab_helpers
from matplotlib.backend_bases import RendererBase
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.text import Annotation, Text
from matplotlib.transforms import BboxBase
from pictures import CROWDED, EACH
from PIL import Image

from zerolab.course import viz
from zerolab.course.viz import Picture
from zerolab.course.viz.drawing import Drawing, Style, words
from zerolab.course.viz.looks import COLOURS, COMPUTING, HATCHES, MEMORY, PALE, ink
from zerolab.course.viz.picture import DPI, LINE, MOST_RANKS, SHARPER, blank, folded
from zerolab.memory import KINDS


@lru_cache
def picture(name: str) -> Picture:
    return (EACH | CROWDED)[name]()


def test_each_public_function_that_draws_is_among_these() -> None:
    public = {name: getattr(viz, name) for name in viz.__all__}
    drawing = {
        name for name, thing in public.items()
        if inspect.isfunction(thing) and inspect.signature(thing).return_annotation == "Picture"
    }  # fmt: skip
    assert drawing | {"ring", "stages"} == set(EACH)


# Words


@pytest.mark.parametrize("name", EACH)
def test_a_picture_says_in_a_sentence_or_two_what_it_shows_with_its_numbers(name: str) -> None:
    alt = picture(name).alt
    assert 40 <= len(alt) <= 500 and re.search(r"\d", alt) and "\n" not in alt and alt.endswith((".", "complete."))
    assert not re.search(r"\b[a-z]+_(states|units|buffers)\b", alt), "the name of a kind, not its key"


def test_a_picture_is_html_with_words_for_it_and_its_numbers_beneath() -> None:
    shown = picture("memory_calculator")
    bundle = shown._repr_mimebundle_()
    assert set(bundle) == {"text/html", "text/plain"} and bundle["text/plain"] == repr(shown) == shown.table
    page = bundle["text/html"]
    assert f'alt="{shown.alt}"' in page and "max-width: 100%" in page
    assert page.index(shown.verdict) < page.index("<img") < page.index("<pre") < page.index("optimizer states   ")
    assert "overflow-x: auto" in page and "font-family: monospace" in page


def test_of_two_pictures_with_the_same_words_nbval_compares_the_words_alone() -> None:
    rules = configparser.ConfigParser()
    rules.read(Path(__file__).parents[2] / "nbval_sanitize.cfg")
    pages = []
    for wide, table in ((1, "a"), (2, "a"), (1, "b")):
        figure = blank(3, 3)
        figure.add_subplot().plot([1, wide])
        page = Picture(figure, table, "words").html()
        for rule in rules.sections():
            page = re.sub(rules[rule]["regex"], rules[rule]["replace"], page)
        pages.append(page)
    assert pages[0] == pages[1] != pages[2]


def test_words_are_escaped_and_long_tables_are_folded() -> None:
    page = Picture(blank(1, 1), "a < b", 'say "no"', "x & y").html()
    assert "a &lt; b" in page and 'alt="say &quot;no&quot;"' in page and "<b>x &amp; y</b>" in page
    assert not folded("one\ntwo", 2 * LINE).startswith("<details>")
    assert folded("one\ntwo", 2 * LINE - 1).startswith("<details><summary>The same in numbers (2 lines)</summary>")
    assert "<details>" in picture("ring").html() and "<details>" not in picture("bars").html()


# Pixels


def test_a_picture_has_two_dots_for_each_that_it_is_wide() -> None:
    page = picture("owners").html()
    width, height = (int(re.search(rf'{side}="(\d+)"', page)[1]) for side in ("width", "height"))  # type: ignore[index]
    source = re.search(r'src="data:image/png;base64,([^"]+)"', page)[1]  # type: ignore[index]
    stored = Image.open(io.BytesIO(base64.b64decode(source)))
    assert SHARPER == 2 and stored.size == pytest.approx((2 * width, 2 * height), abs=2)
    assert width == round(DPI * picture("owners").figure.get_figwidth())


def test_a_picture_is_white_opaque_the_same_twice_and_in_no_global_list() -> None:
    first, second = (viz.ring_steps("all_gather", 3) for _ in range(2))
    assert first.png() == first.png() == second.png()
    pixels = np.asarray(Image.open(io.BytesIO(first.png())).convert("RGBA"))
    assert pixels[0, 0].tolist() == [255] * 4 and pixels[..., 3].min() == 255
    assert not _pylab_helpers.Gcf.figs


def numbered(pixels: np.ndarray) -> np.ndarray:
    """A number for each colour."""
    return pixels.astype(np.uint32) @ np.array([1, 256, 65536], np.uint32)


def test_a_stored_picture_keeps_the_colours_of_its_areas() -> None:
    # Eight chunks in eight shades each: more colours than a palette has.
    first, second = (viz.ring_steps("reduce_scatter", 8) for _ in range(2))
    first.figure.set_dpi(DPI * SHARPER)
    canvas = FigureCanvasAgg(first.figure)
    canvas.draw()
    drawn = np.asarray(canvas.buffer_rgba())[..., :3]
    stored = np.asarray(Image.open(io.BytesIO(second.png())).convert("RGB"))
    colours, where, counts = np.unique(numbered(drawn), return_inverse=True, return_counts=True)
    assert len(colours) > 1000
    kept = np.bincount(where.ravel(), numbered(stored).ravel() == colours[where.ravel()])
    most = np.argsort(counts)[-40:]
    assert (kept[most] == counts[most]).all()
    # Small ones, too, such as the patch of a legend.
    for name in ("step_skyline", "memory_calculator"):
        found = Image.open(io.BytesIO(picture(name).png())).convert("RGB").getcolors(10**6)
        there = {to_hex(np.array(colour) / 255).upper() for _, colour in found}
        kinds = [look.colour for look in MEMORY.values() if look.name in picture(name).table]
        assert len(kinds) > 4 and set(kinds) <= there


def test_a_still_has_the_dashes_that_the_film_has_whatever_the_width_of_the_line() -> None:
    for width in (0.6, 4):
        drawing = Drawing(120, 20)
        drawing.line((10, 10, 110, 10), Style(line="black", width=width, dash=(10, 10)))
        pixels = np.asarray(Image.open(io.BytesIO(Picture(drawing.figure(), "a line").png())).convert("L"))
        dark = pixels.min(0) < 200
        assert (dark[1:] & ~dark[:-1]).sum() == 5


def test_in_a_still_a_later_mark_lies_above_a_text_as_in_the_film() -> None:
    drawing = Drawing(40, 20)
    drawing.text(20, 15, "under", words())
    drawing.box(0, 0, 40, 20, Style("white"))
    pixels = np.asarray(Image.open(io.BytesIO(Picture(drawing.figure(), "white").png())).convert("L"))
    assert pixels.min() == 255


# Text


def drawn(figure: Figure, monkeypatch: pytest.MonkeyPatch) -> tuple[np.ndarray, dict[Text, BboxBase]]:
    """What stands beneath its texts, and where each of them stands."""
    boxes, draw = {}, Text.draw

    def ground_only(text: Text, renderer: RendererBase) -> None:
        if text.get_visible() and text.get_text().strip():
            # An annotation's own extent has its arrow in it.
            boxes[text] = (Text if isinstance(text, Annotation) else type(text)).get_window_extent(text, renderer)
        if text.get_path_effects() or text.get_bbox_patch():
            colour = text.get_color()
            text.set_color((0, 0, 0, 0))
            draw(text, renderer)
            text.set_color(colour)

    monkeypatch.setattr(Text, "draw", ground_only)
    figure.set_dpi(DPI)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[::-1, :, :3] / 255, boxes


@pytest.mark.parametrize("name", [*EACH, *CROWDED])
def test_text_is_read_easily_lies_on_no_other_and_is_not_cut(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    figure = picture(name).figure
    beneath, boxes = drawn(figure, monkeypatch)
    for text, box in boxes.items():
        inside = figure.bbox.padded(1)
        assert inside.contains(*box.min) and inside.contains(*box.max), f"{text.get_text()!r} is cut"
    for (one, first), (other, second) in combinations(boxes.items(), 2):
        overlap = (
            min(first.x1, second.x1) - max(first.x0, second.x0),
            min(first.y1, second.y1) - max(first.y0, second.y0),
        )
        assert min(overlap) <= 2, (one.get_text(), other.get_text())
    for text, box in boxes.items():
        ground = beneath[int(box.y0) : int(box.y1) + 1, int(box.x0) : int(box.x1) + 1].reshape(-1, 3)
        mean = tuple(ground.mean(0))
        assert contrast(text.get_color(), mean) >= 4.5, f"{text.get_text()!r} on {to_hex(mean)}"


# Looks


def test_each_kind_of_memory_has_a_name_a_colour_and_a_hatch_of_its_own() -> None:
    assert set(MEMORY) == set(KINDS)
    for part in zip(*MEMORY.values(), strict=True):
        assert len(set(part)) == len(KINDS)
    assert not {look.colour for look in COMPUTING.values()} & {look.colour for look in MEMORY.values()}
    assert not set(PALE) & set(COLOURS)
    assert len(set(HATCHES)) == len(HATCHES) == len(PALE) >= MOST_RANKS


def test_bars_calculator_skyline_and_owners_give_a_kind_one_colour_and_one_name() -> None:
    for name in ("bars", "memory_calculator", "step_skyline", "owners"):
        figure = picture(name).figure
        said = {text.get_text().partition(",")[0] for text in figure.findobj(Text)}
        drawn = {to_hex(patch.get_facecolor()).upper() for patch in figure.findobj(Patch) if patch.get_fill()}
        for look in (MEMORY[kind] for kind in ("parameters", "gradients", "optimizer_states")):
            assert look.name in said and look.colour in drawn and look.name in picture(name).table


@pytest.mark.parametrize("colour", [*COLOURS, *PALE])
def test_lines_can_be_seen_on_white(colour: str) -> None:
    # WCAG 2.1: 3 to 1 for what a picture must show (1.4.11).
    assert contrast(ink(colour), "white") >= 3
