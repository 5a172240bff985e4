"""A drawing that is drawn twice: boxes, discs, lines, areas and texts, each with a name and a place in dots.

matplotlib draws it as a still; `living/player.js` draws it as SVG, and moves what has the same name in two drawings
from the one place to the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Circle, Polygon, Rectangle
from matplotlib.patheffects import withStroke

from zerolab.course.viz.looks import Look
from zerolab.course.viz.picture import DPI, Picture

POINTS = 72 / DPI
"""Points in a dot."""
NARROWER = 0.9
"""matplotlib's own font is wider than those that browsers take."""


class Style(NamedTuple):
    """How a mark looks. Lengths are in dots.

    fill, line   colours; `fill` is also that of a text
    dash         lengths of a dash and of the gap after it
    opacity      of the fill
    hatch        as matplotlib names it
    anchor       which end of a text stands at its place: "start", "middle" or "end"
    halo         the width of the white rim of a text that stands on something
    """

    fill: str = "none"
    line: str = "none"
    width: float = 0.6
    dash: tuple[float, ...] = ()
    opacity: float = 1.0
    hatch: str = ""
    size: float = 15
    anchor: str = "middle"
    bold: bool = False
    halo: float = 0


def filled(look: Look, line: str = "black", width: float = 0.6) -> Style:
    """The style of a box or an area with this look."""
    return Style(look.colour, line, width, hatch=look.hatch)


def words(size: float = 15, anchor: str = "middle", bold: bool = False, halo: float = 0, fill: str = "black") -> Style:
    """The style of a text."""
    return Style(fill, size=size, anchor=anchor, bold=bold, halo=halo)


class Mark(NamedTuple):
    """A shape and its place: "rect" x, y, width, height from its upper left corner; "disc" x, y, radius; "line" and
    "area" x, y of each point; "text" x, y of its baseline."""

    shape: str
    at: tuple[float, ...]
    style: Style
    text: str = ""


class Drawing:
    """Marks on a canvas of `width` x `height` dots, whose origin is its upper left corner; later ones lie above. The
    still is `scale` times as large."""

    def __init__(self, width: float, height: float, scale: float = 1.0) -> None:
        self.width, self.height, self.scale = width, height, scale
        self.marks: dict[str, Mark] = {}

    def add(self, name: str, shape: str, at: Iterable[float], style: Style, text: str = "") -> None:
        """A mark. What a later drawing moves has the same name there; without a name it gets that of its place, and so
        never moves."""
        mark = Mark(shape, tuple(round(float(number), 1) for number in at), style, text)
        if not name:
            name = f"{shape} {text} {mark.at}"
            while name in self.marks:
                name += "'"
        assert name not in self.marks, name
        self.marks[name] = mark

    def text(self, x: float, y: float, text: str, style: Style, name: str = "") -> None:
        if text:
            self.add(name, "text", (x, y), style, text)

    def box(self, x: float, y: float, width: float, height: float, style: Style, name: str = "") -> None:
        self.add(name, "rect", (x, y, width, height), style)

    def line(self, points: Iterable[float], style: Style, name: str = "") -> None:
        self.add(name, "line", points, style)

    def legend(self, looks: Sequence[Look], x: float, y: float, wide: float, columns: int, size: float = 11) -> None:
        """A swatch and a name for each look, in so many columns."""
        for at, look in enumerate(looks):
            left, top = x + wide * (at % columns), y + (size + 3) * (at // columns)
            self.box(left, top, size + 3, size - 1, filled(look))
            self.text(left + size + 8, top + size - 2, look.name, words(size, "start"))

    def figure(self, above: float = 0) -> Figure:
        """The drawing as matplotlib draws it, with so many dots `above` its origin."""
        figure = Figure(figsize=(self.scale * self.width / DPI, self.scale * (self.height + above) / DPI))
        axes = figure.add_axes((0, 0, 1, 1), xlim=(0, self.width), ylim=(self.height, -above))
        axes.set_axis_off()
        for mark in self.marks.values():
            draw_mark(axes, mark, self.scale * POINTS)
        return figure


def draw_mark(axes: Any, mark: Mark, points: float) -> None:
    """`points` make a dot."""
    style, at = mark.style, mark.at
    if mark.shape == "text":
        rim = [withStroke(linewidth=style.halo * points, foreground="white")] if style.halo else None
        axes.text(
            *at, mark.text, color=style.fill, fontsize=style.size * points * NARROWER, va="baseline",
            ha={"start": "left", "middle": "center", "end": "right"}[style.anchor],
            fontweight="bold" if style.bold else "normal", path_effects=rim, zorder=1,
        )  # fmt: skip
        return
    # matplotlib multiplies dashes by the line's width.
    stroke = (0, tuple(length / style.width for length in style.dash)) if style.dash else "-"
    line: Any = {"color": style.line, "linewidth": style.width * points, "linestyle": stroke, "zorder": 1}
    # Not add_patch, which spends most of the time on limits that stay as they are.
    if mark.shape == "line":
        axes.add_artist(Line2D(at[::2], at[1::2], **line))
        return
    axes.add_artist(patch(mark, facecolor=style.fill, alpha=style.opacity, linewidth=0))
    if style.hatch:
        axes.add_artist(patch(mark, fill=False, hatch=style.hatch, edgecolor="#444444", linewidth=0))
    axes.add_artist(patch(mark, **line | {"fill": False}))


def patch(mark: Mark, **looks: Any) -> Any:
    if mark.shape == "rect":
        x, y, width, height = mark.at
        return Rectangle((x, y), width, height, **looks)
    if mark.shape == "disc":
        x, y, radius = mark.at
        return Circle((x, y), radius, **looks)
    return Polygon([*zip(mark.at[::2], mark.at[1::2], strict=True)], **looks)


class Frame(NamedTuple):
    """A drawing of a film. Where a reader may stop, `words` are its verdict, the words for who does not see it, and its
    numbers as a table; between stops they are empty. The way to the next frame takes `millis` milliseconds. Of another
    film that stop comes up which has the same `act`, if the settings change."""

    drawing: Drawing
    words: tuple[str, ...] = ()
    millis: int = 1100
    act: str = ""

    def picture(self) -> Picture:
        """A stop as a picture."""
        verdict, alt, table = self.words
        return Picture(self.drawing.figure(), table, alt, verdict)


def merged(frames: Sequence[Frame]) -> Frame:
    """Stops upon each other as one, on the canvas of the first; what they say follows each other."""
    first = frames[0].drawing
    drawing = Drawing(first.width, first.height, first.scale)
    for frame in frames:
        drawing.marks |= frame.drawing.marks
    said = [frame.words for frame in frames if frame.words]
    verdict, alt, table = (" ".join(filter(None, parts)) for parts in zip(*said, strict=True))
    return frames[0]._replace(drawing=drawing, words=(verdict, alt, table))
