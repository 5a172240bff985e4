"""A figure with the same numbers as text, made without pyplot, so that no figure stays behind in a global list."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from math import inf, isfinite
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from PIL import Image

from zerolab.course.viz.looks import Look
from zerolab.errors import InputError

DPI = 96
"""Dots an inch at which a picture is shown, as CSS counts them."""
SHARPER = 2
"""Dots stored for each dot shown, along each side: screens of today have two or more."""
PALETTE = 256
"""Colours of a stored picture. Areas keep theirs exactly; the file is half as large as with all of them."""
ROOM, LINE = 560, 17
"""Dots down the page for a figure and its numbers, and for a line of these: a table for which there is no room left
waits behind a line to click on."""
BACKDROP = {"boxstyle": "round,pad=0.1", "facecolor": "white", "edgecolor": "none", "alpha": 0.9}
"""What text stands on where bars or lines may lie beneath it."""
MOST_RANKS = 8


class Picture:
    """What a pure function from settings to a figure returns.

    figure   drawn, and not yet rendered
    verdict  what it comes to, in a sentence or two; shown above the figure
    table    the verdict, and the numbers that the figure shows
    alt      a sentence or two for those who do not see the figure, with the numbers that matter
    """

    def __init__(self, figure: Figure, table: str, alt: str = "", verdict: str = "") -> None:
        self.figure = figure
        self.verdict = verdict
        self.numbers = table
        self.table = f"{verdict}\n{table}" if verdict else table
        self.alt = alt or verdict or table.split("\n", 1)[0]
        self._png = b""

    def png(self) -> bytes:
        """The figure as PNG on an opaque white ground, with SHARPER dots a dot. Drawn once: matplotlib's layout may
        move a little when it is drawn again."""
        self._png = self._png or self._drawn()
        return self._png

    def _drawn(self) -> bytes:
        canvas = FigureCanvasAgg(self.figure)
        self.figure.set_facecolor("white")
        self.figure.set_dpi(DPI * SHARPER)
        canvas.draw()
        self.figure.set_dpi(DPI)
        pixels = Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")
        buffer = io.BytesIO()
        pixels.quantize(PALETTE, Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE).save(buffer, format="png")
        return buffer.getvalue()

    def html(self, faded: bool = False) -> str:
        """The verdict, the figure at its own size or as wide as there is room, and the numbers: a part of a page that
        needs no kernel and no script. `faded` marks it as one of other settings than those of now."""
        # A long line of the table scrolls; it must not make the figure wider than the page (contain).
        source = base64.b64encode(self.png()).decode()
        width, height = (round(DPI * side) for side in self.figure.get_size_inches())
        said = escape(self.verdict).replace("\n", "<br>")
        above = f'<p style="margin: 0.3em 0; line-height: 1.4"><b>{said}</b></p>' if said else ""
        fade = "opacity: 0.35; filter: grayscale(1); " if faded else ""
        return (
            f'<figure style="{fade}margin: 0; contain: inline-size">{above}'
            f'<img alt="{escape(self.alt)}" width="{width}" height="{height}" '
            'style="display: block; max-width: 100%; height: auto" '
            f'src="data:image/png;base64,{source}">{folded(self.numbers, ROOM - height)}</figure>'
        )

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        return {"text/html": self.html(), "text/plain": self.table}

    def __repr__(self) -> str:
        return self.table


def preformatted(text: str) -> str:
    """Text as HTML that scrolls sideways where it is wider than the page."""
    # A page made by nbconvert shows it in the font around it unless told otherwise.
    style = "overflow-x: auto; white-space: pre; font-family: monospace; margin: 0.4em 0"
    return f'<pre style="{style}">{escape(text)}</pre>'


def folded(numbers: str, room: float) -> str:
    """A table as HTML; one that is higher than `room`, in dots, opens when its first line is clicked on."""
    count = numbers.count("\n") + 1
    if LINE * count <= room or count == 1:
        return preformatted(numbers)
    return f"<details><summary>The same in numbers ({count} lines)</summary>{preformatted(numbers)}</details>"


def blank(width: float, height: float) -> Figure:
    """An empty figure of `width` x `height` inches."""
    return Figure(figsize=(width, height), layout="constrained")


def panels(count: int, height: float, **options: Any) -> tuple[Figure, list[Any]]:
    """A figure with panels beneath each other on one axis, without frames."""
    figure = blank(7.4, height)
    found = figure.subplots(count, 1, sharex=True, squeeze=False, **options)[:, 0]
    for axes in found:
        axes.spines[["top", "right"]].set_visible(False)
    return figure, [*found]


def legend(figure: Figure, looks: Sequence[Look] = (), columns: int = 4) -> None:
    """Above the panels: these looks, or all that was drawn with a label."""
    patches = [Patch(facecolor=look.colour, hatch=look.hatch, edgecolor="black", label=look.name) for look in looks]
    place = {"loc": "outside upper center", "ncols": columns, "fontsize": 9}
    figure.legend(handles=patches or None, frameon=False, **place)


def check_ranks(ranks: int, least: int = 1) -> None:
    if isinstance(ranks, bool) or not isinstance(ranks, int) or not least <= ranks <= MOST_RANKS:
        raise InputError(f"{ranks!r} ranks cannot be drawn; take {least} to {MOST_RANKS}")


def check_finite(values: Mapping[str, Iterable[float]]) -> None:
    for name, numbers in values.items():
        for one in numbers:
            if not isfinite(one):
                raise InputError(f"{name} has {one}, which lies on no axis; give finite numbers")


def check_times(**times: float) -> None:
    """Not all of them may be 0."""
    for name, time in times.items():
        if not 0 <= time < inf:
            raise InputError(f"{name} takes {time} ms; give a finite time of at least 0")
    if not any(times.values()):
        raise InputError(f"no time is above 0 among {', '.join(times)}, so there is nothing to draw; give one")


def text_table(head: Sequence[Any], rows: Sequence[Sequence[Any]]) -> str:
    """Rows as aligned text: the first column to the left, all others to the right."""
    lines = [[str(cell) for cell in row] for row in (head, *rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    shown = []
    for line in lines:
        cells = [cell.rjust(width) for cell, width in zip(line, widths, strict=True)]
        cells[0] = line[0].ljust(widths[0])
        shown.append("  ".join(cells).rstrip())
    return "\n".join(shown)


def figures(value: float) -> str:
    """Three significant figures, such as 0.123, 12.3 and 12,345; below 0.0001 with an exponent."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
