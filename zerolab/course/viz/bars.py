"""Bars for measured values, with a mark where a formula says that they end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from zerolab.course.viz.looks import look_of, named
from zerolab.course.viz.picture import BACKDROP, Picture, blank, text_table
from zerolab.errors import InputError

Values = Mapping[str, Sequence[float]]


def bars(
    places: Sequence[str],
    measured: Mapping[str, Sequence[float]],
    formula: Mapping[str, Sequence[float]] | None = None,
    unit: str = "",
    kind: str = "measured",
    tall: bool = False,
) -> Picture:
    """A group of bars for each place, one bar for each name of `measured`; `formula` marks the same names. `kind` is
    what the table calls the bars' values, for those that nobody measured. With `tall` each bar has a row of the table,
    not a column, so that it stays narrow whatever the names."""
    formula = formula or {}
    for name, values in [*measured.items(), *formula.items()]:
        if len(values) != len(places):
            raise InputError(f"{name!r} has {len(values)} values for {len(places)} places; give one each")
    if unknown := set(formula) - set(measured):
        raise InputError(f"the formula of {min(unknown)!r} belongs to no bar; name one of {', '.join(measured)}")
    figure = blank(7.2, 3.2)
    axes = figure.add_subplot()
    width = 0.8 / len(measured)
    for number, (name, values) in enumerate(measured.items()):
        middles = [place + (number - (len(measured) - 1) / 2) * width for place in range(len(places))]
        look = look_of(name, number)
        axes.bar(
            middles, values, width * 0.92,
            color=look.colour, hatch=look.hatch, edgecolor="black", linewidth=0.5, label=look.name,
        )  # fmt: skip
        for middle, value in zip(middles, values, strict=True):
            axes.annotate(
                f"{value:g}", (middle, value), xytext=(0, 4), textcoords="offset points", ha="center", fontsize=9,
                bbox={**BACKDROP, "pad": 0.5}, zorder=3,
            )  # fmt: skip
        if name in formula:
            axes.plot(middles, formula[name], "_", color="black", markersize=300 * width / len(places))
    axes.set_xticks(range(len(places)), places)
    axes.set_ylabel(unit)
    axes.margins(y=0.12)
    axes.spines[["top", "right"]].set_visible(False)
    if formula:
        axes.plot([], [], "_", color="black", markersize=12, label="formula")
    figure.legend(frameon=False, loc="outside upper center", ncols=4)
    table = _tall(places, measured, formula, kind) if tall else _wide(places, measured, formula, kind)
    said = [f"{named(name)} {_course(places, values)}" for name, values in measured.items()]
    alt = f"Bars, {unit or kind}: {'; '.join(said)}."
    return Picture(figure, table, alt)


def _wide(places: Sequence[str], measured: Values, formula: Values, kind: str) -> str:
    head = ["", *(f"{named(name)}, {of}" for name in measured for of in _kinds(name, formula, kind))]
    columns = [
        column
        for name in measured
        for column in ([measured[name], formula[name]] if name in formula else [measured[name]])
    ]
    return text_table(head, [[place, *(f"{column[at]:g}" for column in columns)] for at, place in enumerate(places)])


def _tall(places: Sequence[str], measured: Values, formula: Values, kind: str) -> str:
    rows = [
        [f"{place}, {named(name)}", f"{values[at]:g}", *([f"{formula[name][at]:g}"] if name in formula else [])]
        for at, place in enumerate(places)
        for name, values in measured.items()
    ]
    head = ["", kind, *(["formula"] if formula else [])]
    return text_table(head, [row + [""] * (len(head) - len(row)) for row in rows])


def _course(places: Sequence[str], values: Sequence[float]) -> str:
    """Such as "1.5 at 2 ranks to 3 at 4 ranks"."""
    if len(places) == 1:
        return f"{values[0]:g} at {places[0]}"
    return f"from {values[0]:g} at {places[0]} to {values[-1]:g} at {places[-1]}"


def _kinds(name: str, formula: Values, kind: str) -> list[str]:
    return [kind, "formula"] if name in formula else [kind]
