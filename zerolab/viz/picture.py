"""A figure with the same numbers as text, made without pyplot, so that no figure stays behind in a global list."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

# Okabe and Ito's colours, and Tol's wine, which people with any colour vision can tell apart; black is kept for text.
# Yellow, the faintest on white, comes late. No picture relies on colour alone: labels or HATCHES say the same.
COLOURS = ("#56B4E9", "#E69F00", "#009E73", "#CC79A7", "#0072B2", "#D55E00", "#F0E442", "#999999", "#882255")
HATCHES = ("", "//", "..", "xx", "\\\\", "oo", "++", "--", "**")
DPI = 96


class Picture:
    """What a pure function from settings to a figure returns: `figure`, and `table` with the numbers it shows."""

    def __init__(self, figure: Figure, table: str) -> None:
        self.figure = figure
        self.table = table

    def png(self) -> bytes:
        """The figure as PNG on an opaque white ground."""
        FigureCanvasAgg(self.figure)
        buffer = io.BytesIO()
        # No version of matplotlib inside, so that an upgrade alone changes no byte of the header.
        self.figure.savefig(buffer, format="png", dpi=DPI, facecolor="white", metadata={"Software": None})
        return buffer.getvalue()

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        return {"image/png": self.png(), "text/plain": self.table}

    def __repr__(self) -> str:
        return self.table


def blank(width: float, height: float) -> Figure:
    """An empty figure of `width` x `height` inches."""
    return Figure(figsize=(width, height), layout="constrained")


def ink(colour: str) -> tuple[float, float, float]:
    """A darker shade, for lines that must be seen on white: a contrast of 3 to 1 or more for all COLOURS."""
    red, green, blue = to_rgb(colour)
    return 0.64 * red, 0.64 * green, 0.64 * blue


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
