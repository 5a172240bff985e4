"""The memory calculator: what one rank needs at each stage, against the GPUs that there are."""

from __future__ import annotations

from dataclasses import replace

from zerolab.course.viz.looks import MEMORY
from zerolab.course.viz.picture import Picture, blank, figures, text_table
from zerolab.memory.states import RECIPES
from zerolab.plan import GB, Run, advice

GPUS = {"16 GB": 16, "24 GB": 24, "40 GB": 40, "80 GB": 80, "141 GB": 141}
"""Gigabytes (10^9) of memory; such as a T4, an RTX 4090, an A100 of either size, an H200."""

KINDS = ("parameters", "gradients", "optimizer_states", "gathered_units", "activations")


def memory_calculator(run: Run, gpu: str = "80 GB") -> Picture:
    """A stacked bar for each stage of `run`, its own marked, with a line for the GPU, and a sentence on what fits."""
    limit = GPUS[gpu] * GB
    stages = [stage for stage in range(4) if stage in RECIPES[run.recipe].stages]
    runs = [replace(run, stage=stage, offload=run.offload if stage == 3 else lesser(run.offload)) for stage in stages]
    needs = [one.needs() for one in runs]
    figure = blank(7.6, 3.3)
    axes = figure.add_subplot()
    bottoms = [0.0] * len(runs)
    for kind in KINDS:
        name, colour, hatch = MEMORY[kind]
        heights = [need[kind] / GB for need in needs]
        axes.bar(
            range(len(runs)), heights, 0.6, bottom=bottoms, color=colour, hatch=hatch, edgecolor="black",
            linewidth=0.5, label=name,
        )  # fmt: skip
        bottoms = [bottom + height for bottom, height in zip(bottoms, heights, strict=True)]
    for place, (one, total) in enumerate(zip(runs, bottoms, strict=True)):
        mark = " (yours)" if one.stage == run.stage else ""
        axes.annotate(
            f"{figures(total)} GB{mark}", (place, total), xytext=(0, 4), textcoords="offset points", ha="center",
            fontweight="bold" if mark else "normal", bbox={"facecolor": "white", "edgecolor": "none", "pad": 1},
        )  # fmt: skip
    axes.axhline(GPUS[gpu], color="black", linewidth=1.2, linestyle="--")
    # Beside the axes, where no bar is.
    axes.annotate(
        f"a GPU of\n{gpu}", (1, GPUS[gpu]), xycoords=("axes fraction", "data"), xytext=(4, 0),
        textcoords="offset points", ha="left", va="center", fontsize=9,
    )  # fmt: skip
    axes.set_xticks(range(len(runs)), [f"stage {one.stage}" for one in runs])
    axes.set_xlim(-0.6, len(runs) - 0.4)
    axes.set_ylabel("GB on one rank")
    axes.margins(y=0.14)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(frameon=False, fontsize=9, loc="outside lower center", ncols=5, columnspacing=1.2, handlelength=1.6)
    axes.set_title(
        f"{run.shape.name}, {run.shape.parameters / GB:.3g} billion parameters, {run.ranks} ranks", fontsize=10
    )
    head = ["GB a rank", *(f"stage {one.stage}" for one in runs)]
    rows = [[MEMORY[kind].name, *(f"{need[kind] / GB:.2f}" for need in needs)] for kind in KINDS]
    rows.append(["one GPU", *(f"{one.gpu_bytes() / GB:.2f}" for one in runs)])
    rows.append(["host", *(f"{need['host'] / GB:.2f}" for need in needs)])
    rows.append(["all GPUs", *(f"{one.gpu_bytes() * one.ranks / GB:.2f}" for one in runs)])
    said = verdict(run, limit, gpu)
    needed = ", ".join(f"{figures(total)} GB at stage {one.stage}" for one, total in zip(runs, bottoms, strict=True))
    alt = f"What one of {run.ranks} ranks needs for {run.shape.name}: {needed}. {said}"
    return Picture(figure, text_table(head, rows), alt, said)


def lesser(offload: str) -> str:
    """What of an offload is possible below stage 3."""
    return "nothing" if offload == "nothing" else "optimizer"


def verdict(run: Run, limit: float, gpu: str) -> str:
    """Whether the run fits, and the smallest change that would make it fit."""
    found = advice(run, limit)
    if found == run:
        return f"Stage {run.stage} fits into a GPU of {gpu}: {run.gpu_bytes() / GB:.1f} GB."
    short = f"Stage {run.stage} needs {run.gpu_bytes() / GB:.1f} GB, more than a GPU of {gpu} has"
    if found is None:
        return f"{short}, and no stage on up to 8192 ranks makes it fit."
    changed = []
    if found.stage != run.stage:
        changed.append(f"stage {found.stage}")
    if found.checkpointing != run.checkpointing:
        changed.append("activation checkpointing")
    if found.batch != run.batch:
        changed.append(f"a batch of {found.batch} a rank")
    if found.offload != run.offload:
        changed.append("the optimizer on the host")
    if found.ranks != run.ranks:
        changed.append(f"{found.ranks} ranks")
    return f"{short}; it fits with {' and '.join(changed)}: {found.gpu_bytes() / GB:.1f} GB."
