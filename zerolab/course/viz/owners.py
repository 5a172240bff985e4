"""Which rank keeps which part of what, stage by stage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.patches import Rectangle

from zerolab.course.viz.looks import MEMORY
from zerolab.course.viz.picture import Picture, blank, text_table
from zerolab.errors import InputError
from zerolab.memory import predict_states
from zerolab.memory.states import SHARDED_FROM

KINDS = ("parameters", "gradients", "optimizer_states")
MOST_RANKS = 8


def owners(ranks: int = 4, stages: Sequence[int] = (0, 1, 2, 3), precision: str = "fp32") -> Picture:
    """A panel for each stage, in it a row for each rank and a box for each of the three states, cut into as many parts
    as there are ranks: filled are the parts that the rank keeps, white those that it does not. A panel's title sums up
    the bytes a parameter that one rank keeps in `precision`.

        viz.owners()                                # four ranks, all four stages, fp32
        viz.owners(ranks=2, stages=(0, 1))          # the first two, on two ranks
        viz.owners(precision="bf16")                # 2 + 2 + 12 bytes a parameter

    Raises:
        InputError: ranks outside 2 to 8, no stage, or a stage or precision that there is not.
    """
    if isinstance(ranks, bool) or not isinstance(ranks, int) or not 2 <= ranks <= MOST_RANKS:
        raise InputError(f"the parts of {ranks!r} ranks cannot be drawn; take 2 to {MOST_RANKS}")
    if not stages:
        raise InputError("there are no stages to draw; choose some of 0, 1, 2 and 3")
    sizes = {stage: predict_states(ranks, ranks, stage, precision) for stage in stages}
    columns = min(2, len(sizes))
    lines = -(-len(sizes) // columns)
    figure = blank(3.95 * columns, (0.62 + 0.27 * ranks) * lines + 0.1)
    panels = figure.subplots(lines, columns, squeeze=False).flatten()
    figure.get_layout_engine().set(wspace=0.04, hspace=0.04)  # type: ignore[call-arg, union-attr]
    rows = []
    for panel, (stage, size) in zip(panels, sizes.items(), strict=False):
        total = sum(size.values()) / ranks
        _panel(panel, stage, ranks)
        panel.set_title(f"stage {stage}: {_sum(stage, ranks, precision)}", loc="left", fontsize=9)
        rows += [
            [f"stage {stage}, rank {rank}", *(_kept(kind, stage, rank, ranks) for kind in KINDS), f"{total:g}"]
            for rank in range(ranks)
        ]
    for panel in panels[len(sizes) :]:
        panel.set_visible(False)
    table = text_table(["keeps", *(MEMORY[kind].name for kind in KINDS), "bytes a parameter"], rows)
    return Picture(figure, table, _alt(sizes, ranks))


def _kept(kind: str, stage: int, rank: int, ranks: int) -> str:
    return f"part {rank}" if stage >= SHARDED_FROM[kind] else f"all {ranks} parts"


def _sum(stage: int, ranks: int, precision: str) -> str:
    """Such as "4 + 4 + 8/4 = 10 bytes a parameter"."""
    whole = predict_states(ranks, 1, stage, precision)
    cut = {kind: f"{whole[kind] / ranks:g}" + (f"/{ranks}" if stage >= SHARDED_FROM[kind] else "") for kind in KINDS}
    total = sum(predict_states(ranks, ranks, stage, precision).values()) / ranks
    return f"{' + '.join(cut.values())} = {total:g} bytes a parameter"


def _alt(sizes: dict[int, dict[str, float]], ranks: int) -> str:
    said = []
    for stage, size in sizes.items():
        cut = [MEMORY[kind].name for kind in KINDS if stage >= SHARDED_FROM[kind]]
        kept = f"one part in {ranks} of {' and '.join(cut) if len(cut) < len(KINDS) else 'all three'}"
        kept = kept if cut else "all of everything"
        said.append(f"at stage {stage} a rank keeps {kept}, {sum(size.values()) / ranks:g} bytes a parameter")
    return f"Who keeps which part of the states on {ranks} ranks: {'; '.join(said)}."


def _panel(axes: Any, stage: int, ranks: int) -> None:
    width, gap = 1.0, 0.12
    for column, kind in enumerate(KINDS):
        _, colour, hatch = MEMORY[kind]
        for rank in range(ranks):
            for part in range(ranks):
                left = column * (width + gap) + part * width / ranks
                kept = stage < SHARDED_FROM[kind] or part == rank
                box = (left, rank - 0.36), width / ranks, 0.72
                if kept:
                    axes.add_patch(Rectangle(*box, facecolor=colour, hatch=hatch, edgecolor="white", linewidth=0))
                axes.add_patch(Rectangle(*box, fill=False, edgecolor="black" if kept else "#999999", linewidth=0.6))
    axes.set_xlim(-0.02, len(KINDS) * (width + gap) - gap + 0.02)
    axes.set_ylim(ranks - 0.55, -0.45)
    middles = [column * (width + gap) + width / 2 for column in range(len(KINDS))]
    axes.set_xticks(middles, [MEMORY[kind].name for kind in KINDS], fontsize=8)
    axes.set_yticks(range(ranks), [f"rank {rank}" for rank in range(ranks)], fontsize=8)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
