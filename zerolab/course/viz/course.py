"""Live bytes over time, for several runs on one axis: a hill beside a staircase."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from zerolab.course.viz.looks import MEMORY, PALE, ink, named
from zerolab.course.viz.picture import Picture, blank, text_table
from zerolab.errors import InputError
from zerolab.memory import KINDS, Sample
from zerolab.memory.timeline import by_time

DASHES = ("-", (0, (5, 2)), (0, (2, 1.5)), "-.", (0, (1, 1)))
MOST_RUNS = len(DASHES)


def memory_course(
    runs: Mapping[str, Sequence[Sample]],
    kinds: Sequence[str] | None = None,
    unit: str = "MB",
    split: bool = False,
    without: Sequence[str] = (),
) -> Picture:
    """Live bytes of each run from its first sample to its last, each with its peak named.

        with Tracker(labels) as tracker:
            ...
        viz.memory_course({"careless": careless.samples, "in time": in_time.samples})

    runs    by name, what `zerolab.memory.Tracker(...).samples` holds at the end (return it from the rank function);
            a tracker with a clock gives time as the axis, without one it is the count of operations
    kinds   only these of `zerolab.memory.KINDS` are added up; by default all that lie on the device
    unit    "MB" or "kB"
    split   a panel for each run, one beneath the other on the same two axes, instead of lines in one panel
    without  in place of `kinds`: all that lie on the device but these

    Raises:
        InputError: no runs or more than five, a run without samples, an unknown kind or unit, both kinds and without,
            or runs of which some have times and some have not.
    """
    clock = _checked(runs, kinds, without, unit)
    scale = {"MB": 1e6, "kB": 1e3}[unit]
    figure = blank(7.6, 1.5 * len(runs) + 0.9 if split else 3.3)
    count = len(runs) if split else 1
    panels = figure.subplots(count, 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    rows, said, ends = [], [], []
    highest = 0.0
    for number, (name, samples) in enumerate(runs.items()):
        samples = by_time(samples)
        live = [_live(sample, kinds, without) / scale for sample in samples]
        times = [1e3 * sample.time if clock else float(sample.order) for sample in samples]
        if not clock:  # From its own first operation on: what ran before the tracker was entered does not count.
            times = [time - times[0] for time in times]
        colour = ink(PALE[number])
        axes = panels[number if split else 0]
        axes.plot(
            times, live, drawstyle="steps-post", color=colour, linestyle=DASHES[number], linewidth=1.8, label=name
        )
        axes.fill_between(times, live, step="post", color=PALE[number], alpha=0.35, linewidth=0)
        at = int(np.argmax(live))
        highest = max(highest, live[at])
        ends.append(times[-1])
        _name_peak(axes, f"{name}: {live[at]:,.2f} {unit}", times, at, live[at], number if not split else 0)
        rows.append([name, f"{live[at]:,.2f}", f"{live[-1]:,.2f}"])
        said.append(f"{name} peaks at {live[at]:,.2f} {unit} and ends with {live[-1]:,.2f} {unit}")
    what = " and ".join(map(named, kinds)) if kinds else "all that is live"
    what += f" but {' and '.join(map(named, without))}" if without else ""
    for axes in panels:
        axes.set_ylim(0, highest * (1.22 + (0 if split else 0.1 * (len(runs) - 1))))
        axes.set_xlim(0, max([*ends, 1e-9]))
        axes.set_ylabel(unit)
        axes.spines[["top", "right"]].set_visible(False)
    panels[-1].set_xlabel(f"{'milliseconds' if clock else 'operations'} since the start; bytes of {what}")
    if len(runs) > 1 and not split:
        figure.legend(frameon=False, loc="outside upper center", ncols=min(3, len(runs)), fontsize=9)
    table = text_table([f"{what}, {unit}", "at the peak", "at the end"], rows)
    return Picture(figure, table, f"Memory over time: {'; '.join(said)}.")


def _live(sample: Sample, kinds: Sequence[str] | None, without: Sequence[str]) -> int:
    if kinds is not None:
        return sum(sample.bytes.get(kind, 0) for kind in kinds)
    return sample.total - sum(sample.bytes.get(kind, 0) for kind in without)


def _checked(
    runs: Mapping[str, Sequence[Sample]], kinds: Sequence[str] | None, without: Sequence[str], unit: str
) -> bool:
    """Whether the runs have times."""
    if not 1 <= len(runs) <= MOST_RUNS:
        raise InputError(f"there are {len(runs)} runs to draw; give 1 to {MOST_RUNS}")
    if unit not in ("MB", "kB"):
        raise InputError(f"the unit is {unit!r}; choose MB or kB")
    if kinds is not None and without:
        raise InputError(f"both kinds and without are given ({list(kinds)}, {list(without)}); give one of the two")
    for kind in (*(kinds or ()), *without):
        if kind not in MEMORY:
            raise InputError(f"there is no kind of memory {kind!r}; choose of {', '.join(KINDS)}")
    timed = []
    for name, samples in runs.items():
        if not samples:
            raise InputError(f"{name!r} has no samples; give those of a tracker that saw something")
        timed.append(any(sample.time for sample in samples))
    if len(set(timed)) > 1:
        raise InputError("some runs have times and some have not; give all trackers a clock, or none")
    return timed[0]


def _name_peak(axes: Any, label: str, times: Sequence[float], at: int, height: float, lift: int) -> None:
    place = times[at] / max(times[-1], 1e-9)
    side = "left" if place < 0.25 else "right" if place > 0.75 else "center"
    axes.plot([times[at]], [height], "o", color="black", markersize=4, zorder=4)
    axes.annotate(
        label, (times[at], height), xytext=(0, 6 + 13 * lift), textcoords="offset points", ha=side, va="bottom",
        fontsize=9, zorder=5,
        bbox={"boxstyle": "round,pad=0.1", "facecolor": "white", "edgecolor": "none", "alpha": 0.9},
    )  # fmt: skip
