"""Lines over one axis, each named where it ends: a cost against a size, a loss against steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from zerolab.course.viz.looks import PALE, ink
from zerolab.course.viz.picture import Picture, blank, figures, text_table
from zerolab.errors import InputError

STYLES = (("-", "o"), ((0, (5, 2)), "s"), ((0, (2, 1.5)), "^"), ("-.", "D"), ((0, (1, 1)), "v"))
MOST_ROWS = 24
MOST_MARKERS = 30


def curve(
    places: Sequence[float],
    lines: Mapping[str, Sequence[float]],
    across: str,
    up: str,
    log: bool = False,
    marked: Mapping[str, float] | None = None,
) -> Picture:
    """A line for each name, its values above `places`.

        viz.curve(sizes, {"step": times}, "elements of a bucket", "ms", log=True, marked={"one unit": 50_000})

    places      ascending; the same for all lines
    across, up  what the two axes say, units included
    log         whether `places` are drawn by their powers (they must be above 0)
    marked      places by name at which a dotted line stands

    Raises:
        InputError: no place, places that do not ascend, no lines or more than five, or a line with another count of
            values than there are places.
    """
    if not places or any(after <= before for before, after in pairwise(places)):
        raise InputError(f"the places are {list(places)}; give one or more, each larger than the one before")
    if log and places[0] <= 0:
        raise InputError(f"{places[0]!r} has no place on a logarithmic axis; give places above 0, or log=False")
    if not 1 <= len(lines) <= len(STYLES):
        raise InputError(f"there are {len(lines)} lines to draw; give 1 to {len(STYLES)}")
    for name, values in lines.items():
        if len(values) != len(places):
            raise InputError(f"{name!r} has {len(values)} values for {len(places)} places; give one each")
    figure = blank(7.4, 3.2)
    axes = figure.add_subplot()
    for number, (name, values) in enumerate(lines.items()):
        # The first is wide, so that it is seen where another lies on it.
        style, marker = STYLES[number]
        axes.plot(
            places, values, linestyle=style, marker=marker if len(places) <= MOST_MARKERS else "", markersize=5,
            color=ink(PALE[number]), linewidth=1.6 if number else 3.4, label=name,
        )  # fmt: skip
    if log:
        axes.set_xscale("log")
    low, high = min(map(min, lines.values())), max(map(max, lines.values()))
    if low >= 0:
        axes.set_ylim(0, 1.12 * high or 1)
    for name, place in (marked or {}).items():
        axes.axvline(place, color="black", linewidth=1, linestyle=":", zorder=0.5)
        axes.annotate(
            name, (place, 1), xycoords=("data", "axes fraction"), xytext=(3, -2), textcoords="offset points",
            fontsize=8, va="top",
            bbox={"boxstyle": "round,pad=0.1", "facecolor": "white", "edgecolor": "none", "alpha": 0.9},
        )  # fmt: skip
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    axes.spines[["top", "right"]].set_visible(False)
    if len(lines) > 1:
        figure.legend(frameon=False, loc="outside upper center", ncols=3, fontsize=9)
    said = [
        f"{name} goes from {figures(values[0])} at {figures(places[0])} to {figures(values[-1])} at "
        f"{figures(places[-1])}, {figures(min(values))} at the least" for name, values in lines.items()
    ]  # fmt: skip
    every = -(-len(places) // MOST_ROWS)
    shown = sorted({*range(0, len(places), every), len(places) - 1})
    rows = [[f"{places[at]:,g}", *(figures(values[at]) for values in lines.values())] for at in shown]
    return Picture(figure, text_table([across, *(f"{name}, {up}" for name in lines)], rows), f"{'; '.join(said)}.")
