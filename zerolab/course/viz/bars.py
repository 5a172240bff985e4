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
    sorts = {kind: measured} | ({"formula": formula} if formula else {})
    if tall:
        head = ["", *sorts]
        rows = [
            [f"{place}, {named(name)}", *(f"{of[name][at]:g}" if name in of else "" for of in sorts.values())]
            for at, place in enumerate(places)
            for name in measured
        ]
    else:
        columns = [(name, what) for name in measured for what in sorts if name in sorts[what]]
        head = ["", *(f"{named(name)}, {what}" for name, what in columns)]
        rows = [[place, *(f"{sorts[what][name][at]:g}" for name, what in columns)] for at, place in enumerate(places)]
    said = "; ".join(f"{named(name)} {course(places, values)}" for name, values in measured.items())
    return Picture(figure, text_table(head, rows), f"Bars, {unit or kind}: {said}.")


def course(places: Sequence[str], values: Sequence[float]) -> str:
    """Such as "from 1.5 at 2 ranks to 3 at 4 ranks"."""
    if len(places) == 1:
        return f"{values[0]:g} at {places[0]}"
    return f"from {values[0]:g} at {places[0]} to {values[-1]:g} at {places[-1]}"
