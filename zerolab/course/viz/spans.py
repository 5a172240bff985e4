"""What is busy when: bars on rows over time, panel beneath panel on one time axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from matplotlib.figure import Figure

from zerolab.course.viz.looks import Look
from zerolab.course.viz.picture import BACKDROP, legend, panels

INCHES, LETTER = 6.3, 0.07
"""About as long as the time axis is, and a letter of a label, for deciding which labels fit."""


class Bar(NamedTuple):
    """`row` is busy from `start` to `stop`. A thin one only waits."""

    row: int
    look: Look
    start: float
    stop: float
    label: str = ""
    thin: bool = False


def draw_spans(runs: Mapping[str, Sequence[Bar]], rows: Sequence[str], across: str, looks: Sequence[Look]) -> Figure:
    """A panel for each run, by its title, with a line at its end; in each panel the same rows. `looks` are explained
    above."""
    figure, found = panels(len(runs), (0.33 * len(rows) + 0.38) * len(runs) + 0.75)
    total = max(bar.stop for bars in runs.values() for bar in bars)
    for axes, (title, bars) in zip(found, runs.items(), strict=True):
        for bar in bars:
            width, middle = bar.stop - bar.start, (bar.start + bar.stop) / 2
            axes.barh(
                bar.row, width, 0.04 if bar.thin else 0.72, left=bar.start, color=bar.look.colour,
                hatch=bar.look.hatch, edgecolor="black", linewidth=0.5,
            )  # fmt: skip
            if bar.label and LETTER * (len(bar.label) + 1) < width / total * INCHES:
                axes.text(middle, bar.row, bar.label, ha="center", va="center", fontsize=8, bbox=BACKDROP)
        axes.axvline(max(bar.stop for bar in bars), color="black", linewidth=1)
        axes.set_title(title, loc="left", fontsize=10)
        axes.set(yticks=range(len(rows)), yticklabels=rows, ylim=(len(rows) - 0.5, -0.5))
    found[-1].set(xlim=(0, 1.005 * total), xlabel=across)
    if looks:
        legend(figure, looks, 6)
    return figure
