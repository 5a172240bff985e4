"""Rows of a sweep as lines by stage over bandwidth, where two cross, and pictures with their numbers."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from zerolab.apps.sweep.cases import title_of
from zerolab.apps.sweep.rows import DONE, Row, write_file

ALONG = ("zero_stage", "gbit_per_s")
Points = dict[float, float]
"""A figure by bandwidth, in gigabits a second; that without a link is at infinity."""


@dataclass(frozen=True)
class MeasuredCrossing:
    """Below `gbit_per_s` the stage `below` has more of a figure, above it `above`; there both have `value`. It may be
    infinite; `over` is the next bandwidth below."""

    below: int
    above: int
    over: float
    gbit_per_s: float
    value: float


def groups_of(rows: Sequence[Row], along: Sequence[str] = ALONG) -> dict[str, list[Row]]:
    """Finished rows that differ in the settings `along` alone, by the settings in which groups differ."""
    done = [row for row in rows if row["status"] == DONE]
    rests = [{name: value for name, value in row["settings"].items() if name not in along} for row in done]
    names = dict.fromkeys(name for rest in rests for name in rest)
    differing = [name for name in names if len({json.dumps(rest.get(name)) for rest in rests}) > 1]
    found: dict[str, list[Row]] = {}
    for row, rest in zip(done, rests, strict=True):
        title = title_of({name: rest.get(name) for name in differing}) if differing else ""
        found.setdefault(title, []).append(row)
    return found


def by_stage(rows: Sequence[Row], figure: str) -> dict[int, Points]:
    """A figure of the rows that have it, by stage and bandwidth, both ascending."""
    found: dict[int, Points] = {}
    for row in rows:
        stage, gbit = row["settings"]["zero_stage"], row["settings"].get("gbit_per_s")
        if row.get(figure) is not None:
            found.setdefault(stage, {})[math.inf if gbit is None else gbit] = row[figure]
    return {stage: dict(sorted(points.items())) for stage, points in sorted(found.items())}


def crossings(lines: Mapping[int, Points]) -> list[MeasuredCrossing]:
    """Where two stages' lines cross, by bandwidth; over its logarithm a line is straight between two points."""
    found = []
    for one, other in combinations(sorted(lines), 2):
        both = sorted(lines[one].keys() & lines[other].keys())
        ahead = [(place, gap) for place in both if (gap := lines[one][place] - lines[other][place])]
        for (left, before), (right, after) in pairwise(ahead):
            if (before > 0) == (after > 0):
                continue
            share = before / (before - after)
            gbit = right
            if right < math.inf:
                gbit = math.exp((1 - share) * math.log(left) + share * math.log(right))
            value = (1 - share) * lines[one][left] + share * lines[one][right]
            first, second = (one, other) if before > 0 else (other, one)
            found.append(MeasuredCrossing(first, second, left, gbit, value))
    return sorted(found, key=lambda crossing: crossing.gbit_per_s)


COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7")
LOOKS = [
    {"color": color, "marker": marker, "linestyle": line}
    for color, marker, line in zip(COLORS, "os^D", ("-", "--", "-.", ":"), strict=True)
]
"""Of each stage: who sees no colours has markers and lines."""
LEGEND = {"frameon": False, "loc": "outside upper right", "fontsize": 9}
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
            yield draw("throughput", group, title)
            yield draw("communication", group, title)
    for title, group in groups_of(rows, (*SAME_LOSS, "ranks")).items():
        yield draw("memory", group, title)
    for title, group in groups_of(rows, SAME_LOSS).items():
        if computed := [row for row in group if None not in row["loss"]]:
            yield draw("loss", computed, title)


def write_plots(rows: Sequence[Row], folder: Path) -> list[Path]:
    """Write each picture as PNG, and its numbers as text, into a folder; their paths."""
    written = []
    for plot in plots_of(rows):
        path = folder / f"{plot.name}.png"
        write_file(path.with_suffix(".txt"), plot.text)
        FigureCanvasAgg(plot.figure).print_png(str(path))
        written.append(path)
    return written


def draw(name: str, rows: Sequence[Row], title: str = "") -> Plot:
    """One of `PLOTS` of these rows."""
    panels, paint = PLOTS[name]
    figure = Figure(figsize=(5.6 * panels, 3.8), layout="constrained")
    figure.suptitle(f"{name}: {title}" if title else name, x=0.01, ha="left", fontsize=10)
    text = paint(rows, *(figure.add_subplot(1, panels, place + 1) for place in range(panels)))
    stem = re.sub(r"[^\w.]+", "-", f"{name} {title}".strip()).strip("-")[:120]
    return Plot(stem, figure, text)


def paint_throughput(rows: Sequence[Row], axes: Any) -> str:
    """Tokens a second over bandwidth; what was predicted is thin."""
    lines = by_stage(rows, "tokens_per_s")
    text = paint_lines(axes, lines, "tokens a second")
    said = [row for row in rows if row.get("step_seconds_predicted")]
    ratios = [row["step_seconds"] / row["step_seconds_predicted"] for row in said]
    rates = [{**row, "rate": row["tokens_per_s"] * ratio} for row, ratio in zip(said, ratios, strict=True)]
    expected = by_stage(rates, "rate")
    text += make_table("predicted", expected) if expected else ""
    for stage, points in expected.items():
        axes.plot(*find_linked(points), color=LOOKS[stage]["color"], linewidth=0.8, alpha=0.7)
    found = crossings(lines)
    for one in found:
        where, (below, above) = f"somewhere above {one.over:g}", (one.below, one.above)
        if one.gbit_per_s < math.inf:
            where = f"at {one.gbit_per_s:.3g}"
            axes.plot(one.gbit_per_s, one.value, marker="x", color="black", markersize=9, linestyle="")
        text += f"stages {below} and {above} cross {where} Gbit/s: "
        text += f"below it stage {below} is faster, above it stage {above}\n"
    return text + ("" if found else "no two stages cross\n")


def paint_communication(rows: Sequence[Row], left: Any, right: Any) -> str:
    """Collectives' share of a step, and how much of that is hidden."""
    shares, hidden = by_stage(rows, "communication_share"), by_stage(rows, "overlap_share")
    text = paint_lines(left, shares, "share of the step with collectives under way", 1.05)
    return text + paint_lines(right, hidden, "share of these that computing hides", 1.05)


def paint_memory(rows: Sequence[Row], axes: Any) -> str:
    """Predicted bytes are outlined, measured ones filled. Links change neither."""
    cases = {(row["settings"]["zero_stage"], row["settings"]["ranks"]): row for row in reversed(rows)}
    text = "MB (10^6 bytes) of the rank that has most: predicted / measured\n"
    several = len({ranks for _, ranks in cases}) > 1
    names = {case: f"{case[0]}, {case[1]} ranks" if several else f"{case[0]}" for case in sorted(cases)}
    for place, (case, name) in enumerate(names.items()):
        for what, label, offset, look in (
            ("state", "states", -0.2, {"facecolor": "#9ecae1"}),
            ("peak", "peak of a step", 0.2, {"facecolor": "#e5e5e5", "hatch": "//"}),
        ):
            predicted, measured = (cases[case][f"{what}_bytes{end}"] / 1e6 for end in ("_predicted", ""))
            axes.bar(place + offset, measured, 0.36, **look, label=None if place else label)
            outlined = None if place or what == "state" else "predicted"
            axes.bar(place + offset, predicted, 0.36, fill=False, edgecolor="black", linewidth=1.4, label=outlined)
            text += f"stage {name}, {label}: {predicted:.3f} / {measured:.3f}\n"
    axes.set_xticks(range(len(names)), [name.replace(", ", "\n") for name in names.values()])
    axes.set(xlabel="stage", ylabel="MB")
    axes.figure.legend(**LEGEND, ncols=3)
    return text


def paint_loss(rows: Sequence[Row], axes: Any) -> str:
    """Each curve is thinner than the one beneath, so that equal ones are all seen."""
    stages = dict(sorted({row["settings"]["zero_stage"]: row["loss"] for row in reversed(rows)}.items()))
    text = f"step  {'  '.join(f'stage {stage}' for stage in stages)}\n"
    for number, (stage, loss) in enumerate(stages.items()):
        look = {**LOOKS[stage], "marker": "", "linewidth": 7 - 2 * number}
        axes.plot(range(1, len(loss) + 1), loss, **look, label=f"stage {stage}")
    for step, values in enumerate(zip(*stages.values(), strict=False), 1):
        text += f"{step:>4}  {'  '.join(f'{value:>7.4f}' for value in values)}\n"
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set(xlabel="step", ylabel="loss")
    axes.figure.legend(**LEGEND, ncols=4)
    by_step = zip(*(row["loss"] for row in rows), strict=False)
    apart = max((max(step) - min(step) for step in by_step), default=0.0)
    same = "" if len({row["parameters_sha256"] for row in rows}) == 1 else "not "
    return text + (
        f"{len(rows)} runs; at no step two losses are further apart than {apart:.3g}; "
        f"the parameters at the end are {same}the same to the bit\n"
    )


PLOTS: dict[str, tuple[int, Callable[..., str]]] = {
    "throughput": (1, paint_throughput),
    "communication": (2, paint_communication),
    "memory": (1, paint_memory),
    "loss": (1, paint_loss),
}
"""By name, of how many panels a picture is, and what paints them and says their numbers."""


def paint_lines(axes: Any, lines: Mapping[int, Points], what: str, top: float | None = None) -> str:
    """A line for each stage; what has no link is apart, at the right. The same as a table."""
    places = {place for points in lines.values() for place in points if place < math.inf}
    ticks = {place: f"{place:g}" for place in sorted(places)}
    apart = 4 * max(ticks, default=0.25)
    for stage, points in lines.items():
        axes.plot(*find_linked(points), **LOOKS[stage], label=f"stage {stage}")
        if math.inf in points:
            axes.plot([apart], [points[math.inf]], **{**LOOKS[stage], "linestyle": ""})
            ticks[apart] = "no link"
    axes.set(xscale="log", xlabel="Gbit/s", ylabel=what, ylim=(0, top))
    axes.set_xticks([*ticks], [*ticks.values()])
    axes.minorticks_off()
    axes.legend(frameon=False, fontsize=9)
    return make_table(what, lines)


def find_linked(points: Points) -> tuple[list[float], list[float]]:
    """Bandwidths of those that have a link, and their figures."""
    places = [place for place in points if place < math.inf]
    return places, [points[place] for place in places]


def make_table(what: str, lines: Mapping[int, Points]) -> str:
    """A line a bandwidth, a column a stage."""
    table = [["Gbit/s", *(f"stage {stage}" for stage in lines)]]
    for place in sorted({place for points in lines.values() for place in points}):
        cells = [f"{points[place]:.4g}" if place in points else "" for points in lines.values()]
        table.append(["no link" if place == math.inf else f"{place:g}", *cells])
    rows = [f"{first:>8}" + "".join(f"{cell:>12}" for cell in rest) for first, *rest in table]
    return "\n".join([what, *rows, "", ""])
