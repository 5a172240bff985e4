"""The memory calculator: what one rank needs at each stage, against a GPU's memory. Its picture lies in layers, each of
which hangs on some of the settings only."""

from __future__ import annotations

from functools import lru_cache
from math import floor, log10

from zerolab.apps.plan import GB, advice, gpu_bytes, predict_peak
from zerolab.apps.plan.footprint import DEVICE, at_stage, name_changes
from zerolab.apps.plan.mixture import parameter_count
from zerolab.course.viz.drawing import Drawing, Frame, Style, filled, merged, words
from zerolab.course.viz.looks import MEMORY
from zerolab.course.viz.picture import Picture, figures, text_table
from zerolab.errors import InputError
from zerolab.precision import Precision
from zerolab.run import RunSpec

GPUS = {"16 GB": 16, "24 GB": 24, "40 GB": 40, "80 GB": 80, "141 GB": 141}
"""Gigabytes (10^9) of memory; such as a T4, an RTX 4090, an A100 of either size, an H200."""
WIDE, LEFT, RIGHT, ROW, BAR = 520, 8, 506, 56, 26
WALL = Style(line="black", width=1.6, dash=(6, 4))


def memory_calculator(run: RunSpec, gpu: str = "80 GB") -> Picture:
    """A bar for each stage of `run`, its own marked, with a line for the GPU, and a sentence on what fits.

    Raises InputError for a GPU that is not in `GPUS`.
    """
    if gpu not in GPUS:
        raise InputError(f"there is no GPU of {gpu!r}; choose one of {', '.join(GPUS)}")
    return merged([bars(run), wall(run, gpu), mark(run), judged(run, gpu)]).picture()


def runs_of(run: RunSpec) -> list[RunSpec]:
    """The run at each stage that its precision has."""
    return [at_stage(run, stage) for stage in (run.dtypes or Precision()).stages]


@lru_cache(maxsize=64)
def most(run: RunSpec) -> float:
    """Where the axis ends, in bytes: the next of 1, 2, 4 and 8 times a power of ten."""
    highest = max(map(gpu_bytes, runs_of(run)))
    power = 10.0 ** floor(log10(highest))
    return next(one * power for one in (1, 2, 4, 8, 10) if one * power >= highest)


def along(run: RunSpec, nbytes: float) -> float:
    return LEFT + (RIGHT - LEFT) * nbytes / most(run)


def bottom(run: RunSpec) -> float:
    """Where the axis is."""
    return 50 + ROW * len(runs_of(run))


def bars(run: RunSpec) -> Frame:
    """A bar for each stage, and their numbers."""
    runs = runs_of(run)
    books = [predict_peak(one) for one in runs]
    kinds = [kind for kind in DEVICE if any(book[kind] for book in books)]  # what no stage has is not shown
    low = bottom(run)
    drawing = Drawing(WIDE, low + 52 + 18 * (1 + (len(kinds) - 1) // 3))
    size = f"{parameter_count(run.architecture) / GB:.3g} billion parameters"
    drawing.text(LEFT, 16, f"{run.model_name}, {size}, {run.ranks:,} ranks", words(anchor="start"))
    for number, (one, book) in enumerate(zip(runs, books, strict=True)):
        top, done = 47 + ROW * number, 0.0
        said = f"stage {one.stage}: {figures(gpu_bytes(one) / GB)} GB"
        drawing.text(LEFT + 14, top + 14, said, words(anchor="start"), f"stage {one.stage}")
        for kind in kinds:
            start, done = done, done + book[kind]
            place = along(run, start), top + 21, along(run, done) - along(run, start), BAR
            drawing.box(*place, filled(MEMORY[kind]), f"bar {one.stage} {kind}")
    drawing.line((LEFT, low + 4, RIGHT, low + 4), Style(line="black", width=1))
    for tick in range(5):
        x, anchor = along(run, most(run) * tick / 4), ("start", "middle", "middle", "middle", "end")[tick]
        drawing.line((x, low + 4, x, low + 9), Style(line="black", width=1))
        drawing.text(
            x, low + 24, f"{figures(most(run) * tick / 4 / GB)}{' GB' if not tick else ''}", words(anchor=anchor)
        )
    drawing.legend([MEMORY[kind] for kind in kinds], LEFT, low + 40, 170, 3, size=14)
    alt, table = numbers(run, runs, books, kinds)
    return Frame(drawing, ("", alt, table))


def numbers(run: RunSpec, runs: list[RunSpec], books: list[dict[str, float]], kinds: list[str]) -> tuple[str, str]:
    """What the bars show: for who does not see them, and as a table."""
    totals = [gpu_bytes(one) for one in runs]
    head = ["GB a rank", *(f"stage {one.stage}" for one in runs)]
    rows = [[MEMORY[kind].name, *(f"{book[kind] / GB:.2f}" for book in books)] for kind in kinds]
    rows.append(["one GPU", *(f"{total / GB:.2f}" for total in totals)])
    rows.append(["host", *(f"{book['host'] / GB:.2f}" for book in books)])
    rows.append(["all GPUs", *(f"{total * run.ranks / GB:.2f}" for total in totals)])
    needed = [f"{figures(total / GB)} GB at stage {one.stage}" for one, total in zip(runs, totals, strict=True)]
    return f"What one of {run.ranks} ranks needs for {run.model_name}: {', '.join(needed)}.", text_table(head, rows)


def wall(run: RunSpec, gpu: str) -> Frame:
    """A line where a GPU's memory ends, if the axis is as long."""
    x, low = along(run, GPUS[gpu] * GB), bottom(run)
    drawing, further = Drawing(WIDE, low), " ends further right" * (x > RIGHT)
    if not further:
        drawing.line((x, 44, x, low + 4), WALL, "wall")
    anchor = words(anchor="start" if x < WIDE / 2 else "end")
    drawing.text(min(x, RIGHT), 38, f"a GPU of {gpu}{further}", anchor, "gpu")
    return Frame(drawing)


def mark(run: RunSpec) -> Frame:
    """A mark at the stage of the run."""
    drawing = Drawing(WIDE, bottom(run))
    top = 47 + ROW * [one.stage for one in runs_of(run)].index(run.stage)
    drawing.add("mark", "area", (LEFT, top + 2, LEFT + 9, top + 8.5, LEFT, top + 15), Style("black"))
    return Frame(drawing)


def judged(run: RunSpec, gpu: str) -> Frame:
    """A sentence, and nothing to see."""
    said = verdict(run, GPUS[gpu] * GB, gpu)
    return Frame(Drawing(WIDE, 0), (said, said, ""))


def verdict(run: RunSpec, limit: float, gpu: str) -> str:
    """Whether the run fits, and the smallest change that would make it fit."""
    found = advice(run, limit)
    if found == run:
        return f"Stage {run.stage} fits into a GPU of {gpu}: {gpu_bytes(run) / GB:.1f} GB."
    short = f"Stage {run.stage} needs {gpu_bytes(run) / GB:.1f} GB, more than a GPU of {gpu} has"
    if found is None:
        return f"{short}, and no stage on up to 8192 ranks makes it fit."
    return f"{short}; it fits with {' and '.join(name_changes(run, found))}: {gpu_bytes(found) / GB:.1f} GB."
