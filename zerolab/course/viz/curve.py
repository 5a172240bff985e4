"""Lines over one axis: a cost against a size, a loss against steps, memory against operations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import prod

from zerolab.collectives import Link
from zerolab.course.viz.looks import MEMORY, PALE, ink, named
from zerolab.course.viz.picture import BACKDROP, Picture, check_finite, figures, legend, panels, text_table
from zerolab.errors import InputError
from zerolab.flat import lay_out, split_by_size
from zerolab.memory import KINDS, Sample

STYLES = (("-", "o"), ((0, (5, 2)), "s"), ((0, (2, 1.5)), "^"), ("-.", "D"), ((0, (1, 1)), "v"))
MOST_ROWS = 24
MOST_MARKERS = 30


def curve(
    places: Sequence[float],
    lines: Mapping[str, Sequence[float]],
    across: str,
    up: str,
    log: bool = False,
    marked: Mapping[str, float] | None = None,
) -> Picture:
    """A line for each of up to five names, its values above `places`.

        viz.curve(sizes, {"step": times}, "elements of a bucket", "ms", log=True, marked={"one unit": 50_000})

    places      ascending; the same for all lines
    across, up  what the two axes say, units included
    log         whether `places` are drawn by their powers (they must be above 0)
    marked      places by name at which a dotted line stands
    """
    check_finite({across: places, **lines})
    for before, after in pairwise(places):
        if before >= after:
            raise InputError(f"{after} comes after {before} on the axis {across!r}; give places that ascend")
    figure, (axes,) = panels(1, 3.2)
    for number, (name, values) in enumerate(lines.items()):
        # The first is wide, so that it is seen where another lies on it.
        style, marker = STYLES[number]
        axes.plot(
            places, values, linestyle=style, marker=marker if len(places) <= MOST_MARKERS else "", markersize=5,
            color=ink(PALE[number]), linewidth=1.6 if number else 3.4, label=name,
        )  # fmt: skip
    low, high = min(map(min, lines.values())), max(map(max, lines.values()))
    axes.set(xlabel=across, ylabel=up, xscale="log" if log else "linear")
    if low >= 0:
        axes.set_ylim(0, 1.12 * high or 1)
    for name, place in (marked or {}).items():
        axes.axvline(place, color="black", linewidth=1, linestyle=":", zorder=0.5)
        axes.annotate(
            name, (place, 1), xycoords=("data", "axes fraction"), xytext=(3, -2), textcoords="offset points",
            fontsize=8, va="top", bbox=BACKDROP,
        )  # fmt: skip
    if len(lines) > 1:
        legend(figure)
    said = [
        f"{name} goes from {figures(values[0])} at {figures(places[0])} to {figures(values[-1])} at "
        f"{figures(places[-1])}, {figures(min(values))} at the least" for name, values in lines.items()
    ]  # fmt: skip
    every = -(-len(places) // MOST_ROWS)
    shown = sorted({*range(0, len(places), every), len(places) - 1})
    rows = [[f"{places[at]:,.10g}", *(figures(values[at]) for values in lines.values())] for at in shown]
    table = text_table([across, *(f"{name}, {up}" for name in lines)], rows)
    return Picture(figure, table, f"{'; '.join(said)}.")


def memory_course(runs: Mapping[str, Sequence[Sample]], without: Sequence[str] = ()) -> Picture:
    """Live bytes of each run on one axis, from its first sample to its last, each with its peak marked.

        with Tracker(labels) as tracker:
            ...
        viz.memory_course({"careless": careless.samples, "in time": in_time.samples})

    runs     by name, what `zerolab.memory.Tracker(...).samples` holds at the end (return it from the rank function)
    without  kinds of memory, of `zerolab.memory.KINDS`, that are left out
    """
    if unknown := [kind for kind in without if kind not in KINDS]:
        raise InputError(f"{unknown[0]!r} is no kind of memory; give a list of some of {', '.join(KINDS)}")
    figure, (axes,) = panels(1, 3.3)
    rows, said, highest, longest = [], [], 0.0, 1
    for number, (name, samples) in enumerate(runs.items()):
        live = [(one.total - sum(one.bytes.get(kind, 0) for kind in without)) / 1e6 for one in samples]
        # From its own first operation on: what ran before the tracker was entered does not count.
        times = [one.order - samples[0].order for one in samples]
        peak, end = f"{max(live):,.2f}", f"{live[-1]:,.2f}"
        style = {"color": ink(PALE[number]), "linestyle": STYLES[number][0], "linewidth": 1.8}
        axes.plot(times, live, drawstyle="steps-post", label=f"{name}: at most {peak} MB", **style)
        axes.fill_between(times, live, step="post", color=PALE[number], alpha=0.35, linewidth=0)
        top = times[live.index(max(live))], max(live)
        axes.plot(*top, "o", color="black", markersize=4, zorder=4)
        highest, longest = max(highest, top[1]), max(longest, times[-1])
        rows.append([name, peak, end])
        said.append(f"{name} peaks at {peak} MB and ends with {end} MB")
    what = f"all that is live but {' and '.join(map(named, without))}" if without else "all that is live"
    axes.set(xlim=(0, longest), ylim=(0, 1.1 * highest), ylabel="MB")
    axes.set_xlabel(f"operations since the start; bytes of {what}")
    legend(figure)
    table = text_table([f"{what}, MB", "at the peak", "at the end"], rows)
    return Picture(figure, table, f"Memory over time: {'; '.join(said)}.")


SIZES = tuple(4**power for power in range(4, 13))
"""Elements, from 256 to 16.8 million."""


def bucket_explorer(
    shapes: Mapping[str, Sequence[int]], ranks: int, link: Link, bucket_numel: int, in_flight: int = 3
) -> Picture:
    """All-reducing fp32 gradients of `shapes` in buckets of at most so many elements: time on the link by the ring's
    cost, and bytes of `in_flight` buckets that are alive at once; the chosen size is marked."""
    found = {size: costs(shapes, ranks, link, size, in_flight) for size in SIZES}
    # Two panels: on one, the place where two lines of different units cross would look like a meaning.
    figure, axes = panels(2, 3.9)
    buffers, chosen = MEMORY["gradient_buffers"].colour, SIZES.index(bucket_numel)
    for panel, column, colour, marker, title in (
        (axes[0], 1, PALE[4], "o", "time on the link, ms"),
        (axes[1], 2, buffers, "s", "gradient buffers alive at once, MB"),
    ):
        values = [costs_of[column] for costs_of in found.values()]
        panel.plot(SIZES, values, f"{marker}-", color=ink(colour))
        panel.axvline(bucket_numel, color="black", linewidth=1, linestyle=":", zorder=0.5)
        at = bucket_numel, values[chosen]
        panel.plot(*at, "o", color="black", markersize=8, fillstyle="none", markeredgewidth=1.5)
        panel.set_ylim(0, 1.15 * max(values))
        panel.set_title(f"{title}: {figures(at[1])}", loc="left", fontsize=10)
    axes[1].set_xscale("log", base=4)
    axes[1].set_xlabel("elements of a bucket; dotted: the chosen size")
    axes[1].set_xticks(SIZES, map(short, SIZES), fontsize=8)
    axes[1].minorticks_off()
    rows = [
        [f"{size:,}{' (chosen)' * (size == bucket_numel)}", count, f"{millis:.2f}", f"{megabytes:.2f}"]
        for size, (count, millis, megabytes) in found.items()
    ]
    count, millis, megabytes = found[bucket_numel]
    verdict = f"At most {bucket_numel:,} elements a bucket: {count:,} bucket{'s' * (count > 1)}, {millis:.2f} ms "
    verdict += f"on the link, {megabytes:.2f} MB of them alive at once."
    least = min(found, key=lambda size: found[size][1])
    alt = f"{verdict} The least time, {found[least][1]:.2f} ms, is that of {least:,} elements."
    return Picture(figure, text_table(["elements", "buckets", "ms", "MB alive"], rows), alt, verdict)


def short(count: int) -> str:
    """Such as 256, 16.4k and 4.19M."""
    return f"{count / 1e6:.3g}M" if count >= 1e6 else f"{count / 1e3:.3g}k" if count >= 1e3 else str(count)


def costs(
    shapes: Mapping[str, Sequence[int]], ranks: int, link: Link, bucket_numel: int, in_flight: int
) -> tuple[int, float, float]:
    """Buckets, milliseconds and megabytes alive at once."""
    runs = split_by_size(((name, prod(shape)) for name, shape in shapes.items()), bucket_numel)
    lengths = [lay_out({name: shapes[name] for name in run}, ranks).numel for run in runs]
    seconds = sum(link.ring_seconds("all_reduce", length, 4, ranks) for length in lengths)
    alive = max(sum(lengths[at : at + in_flight]) for at in range(len(lengths)))
    return len(runs), 1e3 * seconds, 4 * alive / 1e6
