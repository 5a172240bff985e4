"""Pictures of a sweep, as pure functions from rows to a figure with the same numbers as text."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from zerolab.apps.sweep.crossings import Points, by_stage, crossings, groups_of
from zerolab.apps.sweep.rows import Row, write_file

LOOKS = [
    {"color": "#0072b2", "marker": "o", "linestyle": "-"},
    {"color": "#d55e00", "marker": "s", "linestyle": "--"},
    {"color": "#009e73", "marker": "^", "linestyle": "-."},
    {"color": "#cc79a7", "marker": "D", "linestyle": ":"},
]
"""Of each stage: who sees no colours has markers and lines."""
SAME_LOSS = ("zero_stage", "gbit_per_s", "latency_us", "wire", "hosts", "world", "gflop_per_s", "gbyte_per_s")
"""Settings that change how a run is carried out, and not what it computes."""


@dataclass(frozen=True)
class Plot:
    """A drawn figure, and its numbers as text."""

    name: str
    figure: Figure
    text: str


def plots_of(rows: Sequence[Row]) -> Iterator[Plot]:
    """All pictures that these rows make; a virtual world computes no losses."""
    for title, group in groups_of(rows).items():
        if len({row["settings"]["gbit_per_s"] for row in group}) > 1:
            yield throughput(group, title)
            yield communication(group, title)
    for title, group in groups_of(rows, (*SAME_LOSS, "ranks")).items():
        yield memory(group, title)
    for title, group in groups_of(rows, SAME_LOSS).items():
        if computed := [row for row in group if None not in row["loss"]]:
            yield losses(computed, title)


def write_plots(rows: Sequence[Row], folder: Path) -> list[Path]:
    """Write each picture as PNG, and its numbers as text, into a folder; their paths."""
    written = []
    for plot in plots_of(rows):
        path = folder / f"{plot.name}.png"
        write_file(path.with_suffix(".txt"), plot.text)
        FigureCanvasAgg(plot.figure).print_png(str(path))
        written.append(path)
    return written


def throughput(rows: Sequence[Row], title: str = "") -> Plot:
    """Tokens a second over bandwidth; what was predicted is thin."""
    lines = by_stage(rows, "tokens_per_s")
    figure, (axes,) = blank("throughput", title, 1)
    text = draw_lines(axes, lines, "tokens a second")
    said = [
        {**row, "predicted": row["step_seconds"] * row["tokens_per_s"] / row["step_seconds_predicted"]}
        for row in rows
        if row.get("step_seconds_predicted")
    ]
    if expected := by_stage(said, "predicted"):
        text += table("predicted", expected)
    for stage, points in expected.items():
        axes.plot(*linked(points), color=LOOKS[stage]["color"], linewidth=0.8, alpha=0.7)
    found = crossings(lines)
    for one in found:
        where = f"somewhere above {one.over:g}"
        if one.gbit_per_s < math.inf:
            where = f"at {one.gbit_per_s:.3g}"
            axes.plot(one.gbit_per_s, one.value, marker="x", color="black", markersize=9, linestyle="")
        text += (
            f"stages {one.below} and {one.above} cross {where} Gbit/s: below it stage {one.below} is "
            f"faster, above it stage {one.above}\n"
        )
    return Plot(named("throughput", title), figure, text + ("" if found else "no two stages cross\n"))


def communication(rows: Sequence[Row], title: str = "") -> Plot:
    """Collectives' share of a step, and how much of that is hidden."""
    figure, (left, right) = blank("communication", title, 2)
    shares = by_stage(rows, "communication_share"), by_stage(rows, "overlap_share")
    text = draw_lines(left, shares[0], "share of the step with collectives under way", 1.05)
    text += draw_lines(right, shares[1], "share of these that computing hides", 1.05)
    return Plot(named("communication", title), figure, text)


def memory(rows: Sequence[Row], title: str = "") -> Plot:
    """Predicted bytes are outlined, measured ones filled. Links change neither, so the first row of each counts."""
    cases = {(row["settings"]["zero_stage"], row["settings"]["ranks"]): row for row in reversed(rows)}
    figure, (axes,) = blank("memory", title, 1)
    text = "MB (10^6 bytes) of the rank that has most: predicted / measured\n"
    several = len({ranks for _, ranks in cases}) > 1
    names = [f"{stage}, {ranks} ranks" if several else str(stage) for stage, ranks in sorted(cases)]
    for place, (name, case) in enumerate(zip(names, sorted(cases), strict=True)):
        for what, label, offset, look in (
            ("state", "states", -0.2, {"facecolor": "#9ecae1"}),
            ("peak", "peak of a step", 0.2, {"facecolor": "#e5e5e5", "hatch": "//"}),
        ):
            predicted, measured = (cases[case][f"{what}_bytes{end}"] / 1e6 for end in ("_predicted", ""))
            axes.bar(place + offset, measured, 0.36, **look, label=None if place else label)
            outlined = None if place or what == "state" else "predicted"
            axes.bar(place + offset, predicted, 0.36, fill=False, edgecolor="black", linewidth=1.4, label=outlined)
            text += f"stage {name}, {label}: {predicted:.3f} / {measured:.3f}\n"
    axes.set_xticks(range(len(names)), [name.replace(", ", "\n") for name in names])
    axes.set(xlabel="stage", ylabel="MB")
    figure.legend(frameon=False, loc="outside upper right", ncols=3, fontsize=9)
    return Plot(named("memory", title), figure, text)


def losses(rows: Sequence[Row], title: str = "") -> Plot:
    """Each curve is thinner than the one beneath, so that equal ones are all seen."""
    figure, (axes,) = blank("loss", title, 1)
    stages = {row["settings"]["zero_stage"]: row["loss"] for row in reversed(rows)}
    text = f"step  {'  '.join(f'stage {stage}' for stage in sorted(stages))}\n"
    for number, (stage, loss) in enumerate(sorted(stages.items())):
        look = {**LOOKS[stage], "marker": "", "linewidth": 7 - 2 * number}
        axes.plot(range(1, len(loss) + 1), loss, **look, label=f"stage {stage}")
    for step, values in enumerate(zip(*(stages[stage] for stage in sorted(stages)), strict=False), 1):
        text += f"{step:>4}  {'  '.join(f'{value:>7.4f}' for value in values)}\n"
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set(xlabel="step", ylabel="loss")
    figure.legend(frameon=False, loc="outside upper right", ncols=4, fontsize=9)
    apart = max((max(step) - min(step) for step in zip(*(row["loss"] for row in rows), strict=False)), default=0.0)
    same = len({row["parameters_sha256"] for row in rows}) == 1
    text += (
        f"{len(rows)} runs; at no step two losses are further apart than {apart:.3g}; "
        f"the parameters at the end are {'the same to the bit' if same else 'not the same to the bit'}\n"
    )
    return Plot(named("loss", title), figure, text)


def draw_lines(axes: Any, lines: Mapping[int, Points], what: str, top: float | None = None) -> str:
    """A line for each stage; what has no link is apart, at the right. The same as a table."""
    places = {place for points in lines.values() for place in points}
    ticks = {place: f"{place:g}" for place in sorted(places - {math.inf})}
    apart = 4 * max(ticks, default=0.25)
    for stage, points in lines.items():
        axes.plot(*linked(points), **LOOKS[stage], label=f"stage {stage}")
        if math.inf in points:
            axes.plot([apart], [points[math.inf]], **{**LOOKS[stage], "linestyle": ""})
            ticks[apart] = "no link"
    axes.set(xscale="log", xlabel="Gbit/s", ylabel=what, ylim=(0, top))
    axes.set_xticks([*ticks], [*ticks.values()])
    axes.minorticks_off()
    axes.legend(frameon=False, fontsize=9)
    return table(what, lines)


def linked(points: Points) -> tuple[list[float], list[float]]:
    """Bandwidths of those that have a link, and their figures."""
    places = [place for place in points if place < math.inf]
    return places, [points[place] for place in places]


def blank(name: str, title: str, panels: int) -> tuple[Figure, Sequence[Any]]:
    figure = Figure(figsize=(5.6 * panels, 3.8), layout="constrained")
    figure.suptitle(f"{name}: {title}" if title else name, x=0.01, ha="left", fontsize=10)
    return figure, [figure.add_subplot(1, panels, place + 1) for place in range(panels)]


def table(what: str, lines: Mapping[int, Points]) -> str:
    """A line a bandwidth, a column a stage."""
    text = f"{what}\n{'Gbit/s':>8}" + "".join(f"{f'stage {stage}':>12}" for stage in lines) + "\n"
    for place in sorted({place for points in lines.values() for place in points}):
        cells = [points.get(place) for points in lines.values()]
        text += f"{'no link' if place == math.inf else f'{place:g}':>8}"
        text += "".join(f"{'' if cell is None else f'{cell:.4g}':>12}" for cell in cells) + "\n"
    return text + "\n"


def named(what: str, title: str) -> str:
    """A file's name."""
    return re.sub(r"[^\w.]+", "-", f"{what} {title}".strip()).strip("-")[:120]
