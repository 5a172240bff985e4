"""Bars for measured values, with a mark where a formula says that they end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from zerolab.course.viz.looks import look_of, named
from zerolab.course.viz.picture import BACKDROP, Picture, check_finite, legend, panels, text_table
from zerolab.errors import InputError

Values = Mapping[str, Sequence[float]]


def bars(
    places: Sequence[str],
    measured: Values,
    formula: Values | None = None,
    unit: str = "",
    kind: str = "measured",
    tall: bool = False,
) -> Picture:
    """A group of bars for each place, one bar for each name of `measured`; `formula` marks the same names. `kind` is
    what the table calls the bars' values. With `tall` each bar has a row of the table, so that it stays narrow."""
    formula = formula or {}
    if unknown := formula.keys() - measured.keys():
        raise InputError(f"the formula of {min(unknown)!r} marks no bar; name some of {', '.join(measured)}")
    check_finite(measured)
    check_finite(formula)
    figure, (axes,) = panels(1, 3.2)
    width = 0.8 / len(measured)
    for number, (name, values) in enumerate(measured.items()):
        middles = [place + (number - (len(measured) - 1) / 2) * width for place in range(len(places))]
        look = look_of(name, number)
        drawn = axes.bar(
            middles, values, width * 0.92,
            color=look.colour, hatch=look.hatch, edgecolor="black", linewidth=0.5, label=look.name,
        )  # fmt: skip
        axes.bar_label(drawn, fmt="{:g}", padding=4, fontsize=9, bbox=BACKDROP)
        if name in formula:
            axes.plot(middles, formula[name], "_", color="black", markersize=300 * width / len(places))
    axes.set_xticks(range(len(places)), places)
    axes.set_ylabel(unit)
    axes.margins(y=0.12)
    if formula:
        axes.plot([], [], "_", color="black", markersize=12, label="formula")
    legend(figure)
    # A column for each kind of value of each name.
    columns = [
        (name, what, [f"{value:g}" for value in of[name]])
        for name in measured
        for what, of in ((kind, measured), ("formula", formula))
        if name in of
    ]
    if tall:
        found = {(name, what): values for name, what, values in columns}
        head = ["", *dict.fromkeys(what for _, what, _ in columns)]
        rows = [
            [f"{place}, {named(name)}", *(found.get((name, what), [""] * (at + 1))[at] for what in head[1:])]
            for at, place in enumerate(places)
            for name in measured
        ]
    else:
        head = ["", *(f"{named(name)}, {what}" for name, what, _ in columns)]
        rows = [[place, *(values[at] for _, _, values in columns)] for at, place in enumerate(places)]
    said = "; ".join(f"{named(name)} {course(places, values)}" for name, values in measured.items())
    return Picture(figure, text_table(head, rows), f"Bars, {unit or kind}: {said}.")


def course(places: Sequence[str], values: Sequence[float]) -> str:
    """Such as "from 1.5 at 2 ranks to 3 at 4 ranks"."""
    if len(places) == 1:
        return f"{values[0]:g} at {places[0]}"
    return f"from {values[0]:g} at {places[0]} to {values[-1]:g} at {places[-1]}"
