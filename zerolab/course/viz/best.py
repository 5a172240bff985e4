"""Which stage is the quickest that fits: a map over models and numbers of GPUs."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.patches import Rectangle

from zerolab.apps.plan.best import Best
from zerolab.course.viz.looks import PALE, WHITE
from zerolab.course.viz.picture import Picture, blank, text_table
from zerolab.errors import InputError

STAGES = (PALE[0], PALE[2], PALE[5], PALE[1])


def best_map(cells: Sequence[Sequence[Best]], gpu: str) -> Picture:
    """What `best_runs` of the planner found, a row a model and a column a number of GPUs: the stage by colour and
    number, sequences of a micro-batch ("r" where layers are recomputed), and the share of the GPU's peak."""
    if not cells or not all(len(row) == len(cells[0]) > 0 for row in cells):
        raise InputError(f"the map has rows of {[len(row) for row in cells]} cells; give rows of one length, above 0")
    wide, high = len(cells[0]), len(cells)
    figure = blank(1.6 + 1.15 * wide, 0.9 + 0.55 * high)
    axes = figure.add_subplot()
    for y, row in enumerate(cells):
        for x, cell in enumerate(row):
            colour = WHITE if cell.run is None else STAGES[cell.run.stage]
            axes.add_patch(Rectangle((x, y), 1, 1, facecolor=colour, edgecolor="black", linewidth=0.8))
            axes.text(x + 0.5, y + 0.5, label(cell), ha="center", va="center", fontsize=9, color="black")
    axes.set_xlim(0, wide)
    axes.set_ylim(high, 0)
    axes.set_xticks([x + 0.5 for x in range(wide)], [f"{cell.ranks:,}" for cell in cells[0]])
    axes.set_yticks([y + 0.5 for y in range(high)], [row[0].shape.name for row in cells])
    axes.tick_params(length=0)
    axes.set_xlabel(f"GPUs ({gpu})")
    axes.spines[:].set_visible(False)
    rows = [[cell.shape.name, f"{cell.ranks:,}", *told(cell)] for row in cells for cell in row]
    head = ["model", "GPUs", "stage", "batch", "recomputes", "tokens/s and GPU", "MFU", "waits"]
    alt = (
        f"The quickest run that fits, for {high} models from {cells[0][0].shape.name} to {cells[-1][0].shape.name} on "
        f"{cells[0][0].ranks:,} to {cells[0][-1].ranks:,} GPUs: {summary(cells)}."
    )
    return Picture(figure, text_table(head, rows), alt, summary(cells))


def label(cell: Best) -> str:
    if cell.run is None or cell.step is None:
        return "too large"
    again = "r" if cell.run.checkpoint_activations else ""
    share = "" if cell.step.mfu is None else f"\n{cell.step.mfu:.0%}"
    return f"stage {cell.run.stage}, {cell.run.micro_batch_size}{again}{share}"


def told(cell: Best) -> list[str]:
    if cell.run is None or cell.step is None:
        return ["none fits", "", "", "", "", ""]
    return [
        str(cell.run.stage),
        str(cell.run.micro_batch_size),
        "yes" if cell.run.checkpoint_activations else "no",
        f"{cell.step.tokens_per_s / cell.ranks:,.0f}",
        "" if cell.step.mfu is None else f"{cell.step.mfu:.1%}",
        f"{cell.step.exposed / cell.step.seconds:.1%}",
    ]


def summary(cells: Sequence[Sequence[Best]]) -> str:
    """How often each stage is the best."""
    flat = [cell.run.stage for row in cells for cell in row if cell.run is not None]
    counts = [f"stage {stage} in {flat.count(stage)}" for stage in range(4) if stage in flat]
    left = sum(len(row) for row in cells) - len(flat)
    return ", ".join([*counts, *([f"none fits in {left}"] if left else [])]) + " cells"
