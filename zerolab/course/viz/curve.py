"""Lines over one axis: a cost against a size, a loss against steps, memory against operations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from zerolab.course.viz.looks import PALE, ink, named
from zerolab.course.viz.picture import BACKDROP, Picture, figures, legend, panels, text_table
from zerolab.errors import InputError
from zerolab.memory import Sample

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
    rows = [[f"{places[at]:,g}", *(figures(values[at]) for values in lines.values())] for at in shown]
    return Picture(figure, text_table([across, *(f"{name}, {up}" for name in lines)], rows), f"{'; '.join(said)}.")


def memory_course(runs: Mapping[str, Sequence[Sample]], without: Sequence[str] = ()) -> Picture:
    """Live bytes of each run on one axis, from its first sample to its last, each with its peak named.

        with Tracker(labels) as tracker:
            ...
        viz.memory_course({"careless": careless.samples, "in time": in_time.samples})

    runs     by name, what `zerolab.memory.Tracker(...).samples` holds at the end (return it from the rank function)
    without  kinds of memory, of `zerolab.memory.KINDS`, that are left out
    """
    figure, (axes,) = panels(1, 3.3)
    rows, said, highest, longest = [], [], 0.0, 1
    for number, (name, samples) in enumerate(runs.items()):
        if not samples:
            raise InputError(f"{name!r} has no samples; give those of a tracker that saw something")
        live = [(one.total - sum(one.bytes.get(kind, 0) for kind in without)) / 1e6 for one in samples]
        # From its own first operation on: what ran before the tracker was entered does not count.
        times = [one.order - samples[0].order for one in samples]
        style = {"color": ink(PALE[number]), "linestyle": STYLES[number][0], "linewidth": 1.8}
        axes.plot(times, live, drawstyle="steps-post", label=name, **style)
        axes.fill_between(times, live, step="post", color=PALE[number], alpha=0.35, linewidth=0)
        peak, end = f"{max(live):,.2f}", f"{live[-1]:,.2f}"
        top = times[live.index(max(live))], max(live)
        place = top[0] / max(times[-1], 1)
        axes.plot(*top, "o", color="black", markersize=4, zorder=4)
        axes.annotate(
            f"{name}: {peak} MB", top, xytext=(0, 6 + 13 * number), textcoords="offset points",
            ha="left" if place < 0.25 else "right" if place > 0.75 else "center", fontsize=9, bbox=BACKDROP,
        )  # fmt: skip
        highest, longest = max(highest, top[1]), max(longest, times[-1])
        rows.append([name, peak, end])
        said.append(f"{name} peaks at {peak} MB and ends with {end} MB")
    what = f"all that is live but {' and '.join(map(named, without))}" if without else "all that is live"
    axes.set(xlim=(0, longest), ylim=(0, highest * (1.12 + 0.1 * len(runs))), ylabel="MB")
    axes.set_xlabel(f"operations since the start; bytes of {what}")
    legend(figure)
    return Picture(
        figure, text_table([f"{what}, MB", "at the peak", "at the end"], rows), f"Memory over time: {'; '.join(said)}."
    )
