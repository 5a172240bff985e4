"""The memory calculator: what one rank needs at each stage, against the GPUs that there are."""

from __future__ import annotations

from dataclasses import replace

from zerolab.memory.states import RECIPES
from zerolab.plan import GB, Run, advice
from zerolab.viz.picture import COLOURS, HATCHES, Picture, blank, text_table

GPUS = {"16 GB": 16, "24 GB": 24, "40 GB": 40, "80 GB": 80, "141 GB": 141}
"""Gigabytes (10^9) of memory; such as a T4, an RTX 4090, an A100 of either size, an H200."""

KINDS = ("parameters", "gradients", "optimizer_states", "gathered_units", "activations")


def memory_calculator(run: Run, gpu: str = "80 GB") -> Picture:
    """A stacked bar for each stage of `run`, its own marked, with a line for the GPU, and a sentence on what fits."""
    limit = GPUS[gpu] * GB
    stages = [stage for stage in range(4) if stage in RECIPES[run.recipe].stages]
    runs = [replace(run, stage=stage, offload=run.offload if stage == 3 else lesser(run.offload)) for stage in stages]
    needs = [one.needs() for one in runs]
    figure = blank(7.2, 3.4)
    axes = figure.add_subplot()
    bottoms = [0.0] * len(runs)
    for number, kind in enumerate(KINDS):
        heights = [need[kind] / GB for need in needs]
        axes.bar(
            range(len(runs)), heights, 0.6, bottom=bottoms, color=COLOURS[number], hatch=HATCHES[number],
            edgecolor="white", linewidth=0, label=kind.replace("_", " "),
        )  # fmt: skip
        bottoms = [bottom + height for bottom, height in zip(bottoms, heights, strict=True)]
    for place, (one, total) in enumerate(zip(runs, bottoms, strict=True)):
        mark = " (yours)" if one.stage == run.stage else ""
        size = f"{total:,.0f}" if total >= 100 else f"{total:.3g}"
        axes.annotate(f"{size} GB{mark}", (place, total), xytext=(0, 3), textcoords="offset points", ha="center")
    axes.axhline(GPUS[gpu], color="black", linewidth=1.2, linestyle="--")
    # On white, since a bar may stand behind it.
    axes.annotate(
        f"GPU {gpu}", (len(runs) - 0.55, GPUS[gpu]), xytext=(0, 4), textcoords="offset points", ha="right",
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 1, "alpha": 0.85},
    )  # fmt: skip
    axes.set_xticks(range(len(runs)), [f"stage {one.stage}" for one in runs])
    axes.set_xlim(-0.6, len(runs) - 0.4)
    axes.set_ylabel("GB on one rank")
    axes.margins(y=0.14)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8, loc="upper right")
    figure.suptitle(f"{run.shape.name}, {run.shape.parameters / GB:.3g} billion parameters, {run.ranks} ranks")
    head = ["GB a rank", *(f"stage {one.stage}" for one in runs)]
    rows = [[kind.replace("_", " "), *(f"{need[kind] / GB:.2f}" for need in needs)] for kind in KINDS]
    rows.append(["one GPU", *(f"{one.gpu_bytes() / GB:.2f}" for one in runs)])
    rows.append(["host", *(f"{need['host'] / GB:.2f}" for need in needs)])
    rows.append(["all GPUs", *(f"{one.gpu_bytes() * one.ranks / GB:.2f}" for one in runs)])
    return Picture(figure, f"{text_table(head, rows)}\n\n{verdict(run, limit, gpu)}")


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
