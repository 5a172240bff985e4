"""One number in several formats: the numbers beside it on a line, its bits, and the rounding error."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite, isinf, isnan
from typing import Any

from matplotlib.patches import Patch, Rectangle

from zerolab.course.formats import FORMATS, between, bits, find, neighbours, number
from zerolab.course.viz.looks import PALE
from zerolab.course.viz.picture import Picture, blank, text_table
from zerolab.errors import InputError

MOST_TICKS = 150
"""More numbers than that in one stretch are a band."""
FIELDS = {"sign": PALE[3], "exponent": PALE[0], "mantissa": PALE[5]}
ROUNDED = "#A34700"
GAP = 0.5
"""Between the boxes of two fields, in boxes."""
WHITE = {"boxstyle": "round,pad=0.12", "facecolor": "white", "edgecolor": "none", "alpha": 0.9}


def number_line(value: float, formats: Sequence[str] = tuple(FORMATS), zoom: str | None = None) -> Picture:
    """`value` among the numbers of each format. The stretch shown has room for the neighbours that `value` has in
    format `zoom`, by default the coarsest; formats much finer than that are a band, much coarser ones lie outside."""
    formats = list(dict.fromkeys(formats))
    if not formats:
        raise InputError(f"there are no formats to draw; choose from {', '.join(FORMATS)}")
    beside = {name: neighbours(value, name) for name in formats}
    if not isfinite(value):
        raise InputError(f"the value is {float(value)}, which lies on no line; give a finite number")
    value = float(value)
    half = _half(value, [beside[name] for name in formats] if zoom is None else [neighbours(value, find(zoom).name)])
    figure = blank(7.6, 1.5 + 0.57 * len(formats))
    line, boxes = figure.subplots(2, 1, gridspec_kw={"height_ratios": [0.46 * len(formats) + 0.2, 0.24 * len(formats)]})
    for row, name in enumerate(formats):
        _row(line, row, name, value, half, beside[name])
        _boxes(boxes, row, name, value, beside[name][1])
    # The value itself, row by row: a line through all of them would strike out what is written between.
    for row in range(len(formats)):
        line.plot([0, 0], [row - 0.34, row + 0.17], color="black", zorder=2.5)
    line.set_title(f"{value:.9g} and the numbers beside it", fontsize=10)
    line.set_xlim(-1, 1)
    line.set_ylim(len(formats) - 0.4, -0.45)
    line.set_yticks(range(len(formats)), formats)
    line.set_xticks([-1, -0.5, 0, 0.5, 1], [_signed(place * half) for place in (-1, -0.5, 0, 0.5, 1)], fontsize=8)
    line.set_xlabel(f"distance from {value:.9g}, the tall line; thick: the rounding error", fontsize=9)
    line.spines[["top", "right", "left"]].set_visible(False)
    line.tick_params(axis="y", length=0)
    widest = max(find(name).bits for name in formats)
    boxes.set_xlim(0, widest + 2 * GAP + 14)
    boxes.set_ylim(len(formats) - 0.4, -0.6)
    boxes.set_yticks(range(len(formats)), formats)
    boxes.set_xticks([])
    boxes.tick_params(axis="y", length=0)
    boxes.spines[:].set_visible(False)
    # The fields stand apart and in this order, so that they can be told without colour.
    patches = [
        Patch(facecolor=colour, edgecolor="black", label=f"{name}, {place}")
        for (name, colour), place in zip(FIELDS.items(), ("first", "second", "last"), strict=True)
    ]
    boxes.legend(handles=patches, ncols=3, frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(0, 0.02))
    stretch = f"{value:.9g}; the stretch shown is {2 * half:.3g} wide"
    errors = ", ".join(f"{at:.9g} in {name}" for name, (_, at, _) in beside.items())
    return Picture(figure, f"{stretch}\n{_table(value, beside)}", f"{value:.9g} among the numbers beside it: {errors}.")


def _half(value: float, beside: Sequence[tuple[float, float, float]]) -> float:
    """Half the width of a stretch in which the widest of these neighbours have room. A value that is beyond a
    format's largest lies between no two of its numbers."""
    gaps = [
        max(value - below, above - value)
        for below, at, above in beside
        if isfinite(below) and isfinite(above) and below < value < above
    ]
    return 1.25 * max(gaps) if gaps else abs(value) / 2


def _row(axes: Any, row: int, name: str, value: float, half: float, beside: tuple[float, float, float]) -> None:
    """A format's numbers in the stretch, the one that the value is rounded to, and the way there."""
    low, high = value - half, value + half
    places = between(low, high, name)
    axes.plot([-1, 1], [row, row], color="#999999", linewidth=0.6, zorder=0.4)
    if len(places) > MOST_TICKS:
        axes.add_patch(
            Rectangle((-1, row - 0.17), 2, 0.34, facecolor="#e4e4e4", hatch="||||", edgecolor="#aaaaaa", linewidth=0)
        )
        axes.text(-0.98, row, f"{len(places):,} numbers", fontsize=8, va="center", bbox=WHITE)
    else:
        ticks = [(number(place, name) - value) / half for place in places]
        axes.vlines(ticks, row - 0.17, row + 0.17, color="black", linewidth=0.8)
    at = beside[1]
    if not low <= at <= high:
        side = "inf: too large for it" if isinf(at) else f"{at:.9g}, {'left' if at < low else 'right'} of here"
        axes.text(0.98, row, f"rounded to {side}", fontsize=8, va="center", ha="right", bbox=WHITE)
        return
    place = (at - value) / half
    axes.plot([0, place], [row, row], color=ROUNDED, linewidth=3, solid_capstyle="butt", zorder=2)
    axes.plot([place], [row], "o", color=ROUNDED, markeredgecolor="black", markersize=6, zorder=3)
    axes.text(place, row + 0.24, f"{at:.9g}", fontsize=8, va="top", ha="center", color=ROUNDED, bbox=WHITE)
    for other in (beside[0], beside[2]):
        where = (other - value) / half
        if isfinite(other) and abs(where) < 0.97 and abs(where - place) > _room(at, other):
            axes.text(where, row + 0.24, f"{other:.9g}", fontsize=8, va="top", ha="center", bbox=WHITE)


def _room(one: float, other: float) -> float:
    """How far apart two labels must stand, in half widths of the line: it is about 6.6 inches long."""
    letters = (len(f"{one:.9g}") + len(f"{other:.9g}")) / 2
    return 0.02 + letters * 8 * 0.64 / 72 / (6.6 / 2)


def _boxes(axes: Any, row: int, name: str, value: float, at: float) -> None:
    """A box for each bit, and what they mean together."""
    left = 0.0
    for text, colour in zip(bits(value, name).split(), FIELDS.values(), strict=True):
        for bit in text:
            axes.add_patch(Rectangle((left, row - 0.36), 1, 0.72, facecolor=colour, edgecolor="black", linewidth=0.6))
            digit = axes.text(left + 0.5, row + 0.02, bit, fontsize=8, ha="center", va="center")
            digit.set_in_layout(False)  # it lies within its box, and 72 of them take long to lay out
            left += 1
        left += GAP
    axes.text(left + 0.2, row + 0.02, f"= {at:.9g}", fontsize=8, va="center")


def _table(value: float, beside: dict[str, tuple[float, float, float]]) -> str:
    """A line for each format: bits, neighbours and errors."""
    rows = []
    for name, (below, at, above) in beside.items():
        error = at - value
        relative = f"{abs(error / value):.2g}" if value else "0"
        rows.append([name, bits(value, name), *map(_short, (below, at, above)), f"{error:.3g}", relative])
    return text_table(["format", "bits", "below", "rounded to", "above", "error", "relative"], rows)


def _short(value: float) -> str:
    return "none" if isnan(value) else f"{value:.9g}"


def _signed(distance: float) -> str:
    return f"{distance:+.3g}" if distance else "0"
