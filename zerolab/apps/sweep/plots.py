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
from zerolab.apps.sweep.rows import Row
from zerolab.files import write_whole

LOOKS = (("#0072b2", "o", "-"), ("#d55e00", "s", "--"), ("#009e73", "^", "-."), ("#cc79a7", "D", ":"))
"""Colour, marker and line of each stage: who sees no colours has the other two."""
SAME_LOSS = ("zero_stage", "gbit_per_s", "latency_us", "wire", "hosts", "world", "gflop_per_s", "gbyte_per_s")
"""Settings that change how a run is carried out, and not what it computes."""


@dataclass(frozen=True)
class Plot:
    """A drawn figure, and its numbers as text."""

    name: str
    figure: Figure
    text: str


def plots_of(rows: Sequence[Row]) -> Iterator[Plot]:
    """All pictures that these rows make. A virtual world computes no losses, so it has no curve of them."""
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
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for plot in plots_of(rows):
        path = folder / f"{plot.name}.png"
        FigureCanvasAgg(plot.figure).print_png(str(path))
        write_whole(path.with_suffix(".txt"), plot.text)
        written.append(path)
    return written


def throughput(rows: Sequence[Row], title: str = "") -> Plot:
    """Tokens a second by stage over bandwidth, with a mark where two stages cross; what was predicted is thin."""
    lines = by_stage(rows, "tokens_per_s")
    figure, axes = blank("throughput", title, 1)
    draw_lines(axes[0], lines, "tokens a second")
    tokens = {row["key"]: row["step_seconds"] * row["tokens_per_s"] for row in rows}
    said = [
        {**row, "predicted": tokens[row["key"]] / row["step_seconds_predicted"]}
        for row in rows
        if row.get("step_seconds_predicted")
    ]
    expected = by_stage(said, "predicted")
    for stage, points in expected.items():
        drawn = {place: value for place, value in points.items() if place < math.inf}
        axes[0].plot([*drawn], [*drawn.values()], color=LOOKS[stage][0], linewidth=0.8, alpha=0.7)
    found = crossings(lines)
    for crossing in found:
        if crossing.gbit_per_s < math.inf:
            axes[0].plot(crossing.gbit_per_s, crossing.value, marker="x", color="black", markersize=9, linestyle="")
    text = table("tokens a second", lines) + (table("predicted", expected) if expected else "")
    for crossing in found:
        exactly = crossing.gbit_per_s < math.inf
        where = f"at {crossing.gbit_per_s:.3g}" if exactly else f"somewhere above {crossing.over:g}"
        text += (
            f"stages {crossing.below} and {crossing.above} cross {where} Gbit/s: below it stage {crossing.below} is "
            f"faster, above it stage {crossing.above}\n"
        )
    return Plot(named("throughput", title), figure, text + ("" if found else "no two stages cross\n"))


def communication(rows: Sequence[Row], title: str = "") -> Plot:
    """Which share of a step collectives are under way, and which share of that the ranks compute meanwhile."""
    figure, axes = blank("communication", title, 2)
    text = ""
    for place, figure_of, what in (
        (axes[0], "communication_share", "share of the step with collectives under way"),
        (axes[1], "overlap_share", "share of these that computing hides"),
    ):
        lines = by_stage(rows, figure_of)
        draw_lines(place, lines, what)
        place.set_ylim(0, 1.05)
        text += table(what, lines)
    return Plot(named("communication", title), figure, text)


def memory(rows: Sequence[Row], title: str = "") -> Plot:
    """States and the peak of a step, predicted (outlined) and measured (filled), by stage and ranks: links change
    neither, so the first row of each counts."""
    cases = {(row["settings"]["zero_stage"], row["settings"]["ranks"]): row for row in reversed(rows)}
    figure, (axes,) = blank("memory", title, 1)
    lines = ["MB (10^6 bytes) of the rank that has most: predicted / measured"]
    ranks_differ = len({ranks for _, ranks in cases}) > 1
    for place, (stage, ranks) in enumerate(sorted(cases)):
        row, told = cases[stage, ranks], f"stage {stage}" + (f", {ranks} ranks" if ranks_differ else "")
        for offset, what in ((-0.2, "state"), (0.2, "peak")):
            predicted, measured = row[f"{what}_bytes_predicted"] / 1e6, row[f"{what}_bytes"] / 1e6
            hatch = "" if what == "state" else "//"
            colour = {"facecolor": "#9ecae1" if what == "state" else "#e5e5e5", "hatch": hatch}
            label = {"state": "states", "peak": "peak of a step"}[what]
            axes.bar(place + offset, measured, 0.36, **colour, label=label if not place else None)
            axes.bar(place + offset, predicted, 0.36, fill=False, edgecolor="black", linewidth=1.4,
                     label="predicted" if not place and what == "peak" else None)  # fmt: skip
            lines.append(f"{told}, {label}: {predicted:.3f} / {measured:.3f}")
    axes.set_xticks(
        range(len(cases)), [f"{stage}" + (f"\n{n} ranks" if ranks_differ else "") for stage, n in sorted(cases)]
    )
    axes.set_xlabel("stage")
    axes.set_ylabel("MB")
    figure.legend(frameon=False, loc="outside upper right", ncols=3, fontsize=9)
    return Plot(named("memory", title), figure, "\n".join(lines) + "\n")


def losses(rows: Sequence[Row], title: str = "") -> Plot:
    """Losses by step: one curve beneath another, each thinner than the one below, so that equal ones are all seen."""
    figure, (axes,) = blank("loss", title, 1)
    stages: dict[int, Row] = {}
    for row in rows:
        stages.setdefault(row["settings"]["zero_stage"], row)
    for number, (stage, row) in enumerate(sorted(stages.items())):
        colour, _, style = LOOKS[stage]
        steps = range(1, len(row["loss"]) + 1)
        axes.plot(steps, row["loss"], color=colour, linestyle=style, linewidth=7 - 2 * number, label=f"stage {stage}")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_xlabel("step")
    axes.set_ylabel("loss")
    figure.legend(frameon=False, loc="outside upper right", ncols=4, fontsize=9)
    apart = max((max(step) - min(step) for step in zip(*(row["loss"] for row in rows), strict=False)), default=0.0)
    same = len({row["parameters_sha256"] for row in rows}) == 1
    text = f"step  {'  '.join(f'stage {stage}' for stage in sorted(stages))}\n"
    for step, values in enumerate(zip(*(row["loss"] for _, row in sorted(stages.items())), strict=False), 1):
        text += f"{step:>4}  {'  '.join(f'{value:>7.4f}' for value in values)}\n"
    text += (
        f"{len(rows)} runs; at no step two losses are further apart than {apart:.3g}; "
        f"the parameters at the end are {'the same to the bit' if same else 'not the same to the bit'}\n"
    )
    return Plot(named("loss", title), figure, text)


def draw_lines(axes: Any, lines: Mapping[int, Points], what: str) -> None:
    """A line for each stage over bandwidths; what has no link stands apart at the right, named none."""
    finite = sorted({place for points in lines.values() for place in points if place < math.inf})
    nowhere = 4 * finite[-1] if finite else 1.0
    for stage, points in lines.items():
        colour, marker, style = LOOKS[stage]
        drawn = {place: value for place, value in points.items() if place < math.inf}
        axes.plot([*drawn], [*drawn.values()], color=colour, marker=marker, linestyle=style, label=f"stage {stage}")
        if math.inf in points:
            axes.plot([nowhere], [points[math.inf]], color=colour, marker=marker, linestyle="")
    axes.set_xscale("log")
    ticks = {place: f"{place:g}" for place in finite}
    if any(math.inf in points for points in lines.values()):
        ticks[nowhere] = "no link"
    axes.set_xticks([*ticks], [*ticks.values()])
    axes.minorticks_off()
    axes.set_xlabel("Gbit/s")
    axes.set_ylabel(what)
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, fontsize=9)


def blank(name: str, title: str, panels: int) -> tuple[Figure, Sequence[Any]]:
    figure = Figure(figsize=(5.6 * panels, 3.8), layout="constrained")
    figure.suptitle(f"{name}: {title}" if title else name, x=0.01, ha="left", fontsize=10)
    return figure, [figure.add_subplot(1, panels, place + 1) for place in range(panels)]


def table(what: str, lines: Mapping[int, Points]) -> str:
    """A line a bandwidth, a column a stage."""
    places = sorted({place for points in lines.values() for place in points})
    text = f"{what}\n{'Gbit/s':>8}" + "".join(f"{f'stage {stage}':>12}" for stage in lines) + "\n"
    for place in places:
        cells = [points.get(place) for points in lines.values()]
        text += f"{'no link' if place == math.inf else f'{place:g}':>8}"
        text += "".join(f"{'' if cell is None else f'{cell:.4g}':>12}" for cell in cells) + "\n"
    return text + "\n"


def named(what: str, title: str) -> str:
    """A file's name."""
    return re.sub(r"[^\w.]+", "-", f"{what} {title}".strip()).strip("-")[:120]
