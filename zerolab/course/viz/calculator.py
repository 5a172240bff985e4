"""The memory calculator: what one rank needs at each stage, against the GPUs that there are."""

from __future__ import annotations

from zerolab.apps.plan import GB, advice, gpu_bytes, predict_peak
from zerolab.apps.plan.footprint import DEVICE, at_stage, name_changes
from zerolab.apps.plan.mixture import parameter_count
from zerolab.course.viz.looks import MEMORY
from zerolab.course.viz.picture import Picture, blank, figures, text_table
from zerolab.errors import InputError
from zerolab.precision import Precision
from zerolab.run import RunSpec

GPUS = {"16 GB": 16, "24 GB": 24, "40 GB": 40, "80 GB": 80, "141 GB": 141}
"""Gigabytes (10^9) of memory; such as a T4, an RTX 4090, an A100 of either size, an H200."""


def memory_calculator(run: RunSpec, gpu: str = "80 GB") -> Picture:
    """A stacked bar for each stage of `run`, its own marked, with a line for the GPU, and a sentence on what fits.

    Raises InputError for a GPU that is not in `GPUS`.
    """
    if gpu not in GPUS:
        raise InputError(f"there is no GPU of {gpu!r}; choose one of {', '.join(GPUS)}")
    runs = [at_stage(run, stage) for stage in (run.dtypes or Precision()).stages]
    books = [predict_peak(one) for one in runs]
    figure = blank(7.6, 3.2)
    axes = figure.add_subplot()
    bottoms = [0.0] * len(runs)
    kinds = [kind for kind in DEVICE if any(book[kind] for book in books)]
    for kind in kinds:
        name, colour, hatch = MEMORY[kind]
        heights = [book[kind] / GB for book in books]
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
    axes.set_ylim(0, 1.16 * max(*bottoms, GPUS[gpu]))
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(frameon=False, fontsize=9, loc="outside lower center", ncols=5, columnspacing=1.2, handlelength=1.6)
    axes.set_title(
        f"{run.model_name}, {parameter_count(run.architecture) / GB:.3g} billion parameters, {run.ranks} ranks",
        fontsize=10,
    )
    said, alt, table = calculator_text(run, gpu)
    return Picture(figure, table, alt, said)


def calculator_text(run: RunSpec, gpu: str) -> tuple[str, str, str]:
    """What the calculator comes to, in a sentence; the same for who does not see it; and its numbers as a table."""
    runs = [at_stage(run, stage) for stage in (run.dtypes or Precision()).stages]
    books = [predict_peak(one) for one in runs]
    # What no stage has is neither drawn nor listed.
    kinds = [kind for kind in DEVICE if any(book[kind] for book in books)]
    totals = [gpu_bytes(one) for one in runs]
    head = ["GB a rank", *(f"stage {one.stage}" for one in runs)]
    rows = [[MEMORY[kind].name, *(f"{book[kind] / GB:.2f}" for book in books)] for kind in kinds]
    rows.append(["one GPU", *(f"{total / GB:.2f}" for total in totals)])
    rows.append(["host", *(f"{book['host'] / GB:.2f}" for book in books)])
    rows.append(["all GPUs", *(f"{total * run.ranks / GB:.2f}" for total in totals)])
    said = verdict(run, GPUS[gpu] * GB, gpu)
    needed = ", ".join(
        f"{figures(total / GB)} GB at stage {one.stage}" for one, total in zip(runs, totals, strict=True)
    )
    return said, f"What one of {run.ranks} ranks needs for {run.model_name}: {needed}. {said}", text_table(head, rows)


def verdict(run: RunSpec, limit: float, gpu: str) -> str:
    """Whether the run fits, and the smallest change that would make it fit."""
    found = advice(run, limit)
    if found == run:
        return f"Stage {run.stage} fits into a GPU of {gpu}: {gpu_bytes(run) / GB:.1f} GB."
    short = f"Stage {run.stage} needs {gpu_bytes(run) / GB:.1f} GB, more than a GPU of {gpu} has"
    if found is None:
        return f"{short}, and no stage on up to 8192 ranks makes it fit."
    return f"{short}; it fits with {' and '.join(name_changes(run, found))}: {gpu_bytes(found) / GB:.1f} GB."
