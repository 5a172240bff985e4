"""Tables and a picture of what was measured."""

from __future__ import annotations

import os
import platform
import statistics
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version

import torch
from matplotlib.figure import Figure

from benchmarks.peers.contenders import OURS, PARTS, RIVALS
from benchmarks.peers.workload import WORKLOADS


@dataclass
class Case:
    """All that was measured of one workload on so many ranks."""

    workload: str
    rows: int
    ranks: int
    device: str = "cpu"
    seconds: dict[str, list[list[float]]] = field(default_factory=dict)
    """By contender and round: the slowest rank's time of each step."""
    waited: dict[str, list[list[float]]] = field(default_factory=dict)
    """How long ranks slept in it, in the mean."""
    losses: dict[str, list[float]] = field(default_factory=dict)
    peak: dict[str, int] = field(default_factory=dict)
    sent: dict[str, int] = field(default_factory=dict)

    def rounds(self, name: str) -> list[float]:
        """The figure of each round."""
        return [statistics.median(steps) for steps in self.seconds[name]]

    def waits(self, name: str) -> list[float]:
        return [statistics.median(steps) for steps in self.waited[name]]

    def floor(self, stage: int) -> list[float]:
        """What a stage cannot do without, in each round."""
        # Read and written, in whole tensors: a copy moves two, see the module of shared memory for the others.
        share = 1 / self.ranks
        reduce_scatter, all_gather, all_reduce = 1 + share, 2 * (1 - share), 2.0
        moved = [all_reduce, reduce_scatter + all_gather, reduce_scatter + all_gather, reduce_scatter + 2 * 2.0][stage]
        update = "update, whole" if stage == 0 else "update, share"
        parts = zip(self.rounds("compute"), self.rounds(update), self.rounds("copy"), strict=True)
        return [compute + step + moved * copy / 2 for compute, step, copy in parts]


def tables(case: Case) -> str:
    """Markdown: steps, memory and traffic of all; then our stages beside each rival and their floor."""
    trained = [name for name in case.seconds if name not in PARTS]
    lines = [
        f"\n### {WORKLOADS[case.workload](case.rows).what}; {case.ranks} ranks\n",
        "| | step, ms | / DDP | peak, MB a rank | sent, MB a rank | loss at the end |",
        "|---|---|---|---|---|---|",
    ]
    ddp = case.rounds("DDP") if "DDP" in case.seconds else []
    for name in trained:
        own = case.rounds(name)
        sent = f"{case.sent[name] / 1e6:.1f}" if name in case.sent else "not counted"
        lines.append(
            f"| {name} | {1e3 * statistics.median(own):.1f} | {ratio(own, ddp or own)} | {case.peak[name] / 1e6:.0f} "
            f"| {sent} | {case.losses[name][-1]:.5f} |"
        )
    parts = ", ".join(f"{name} {1e3 * statistics.median(case.rounds(name)):.1f}" for name in PARTS)
    lines += [f"\nAlone, in ms: {parts}.\n", "| | beside | step | peak |", "|---|---|---|---|"]
    for name in OURS:
        for rival in RIVALS[name]:
            if rival in case.seconds:
                step = ratio(case.rounds(name), case.rounds(rival))
                lines.append(f"| {name} | {rival} | {step} | {case.peak[name] / case.peak[rival]:.2f} |")
        lines.append(f"| {name} | its floor | {ratio(case.rounds(name), case.floor(int(name[-1])))} | |")
    return "\n".join([*lines, "", *above_the_floor(case)])


def above_the_floor(case: Case) -> list[str]:
    """Markdown: of what the steps consist, in ms, medians over the rounds."""
    lines = [
        "| | step, ms | floor | copy of gradients | waits | left | step / floor and copy |",
        "|---|---|---|---|---|---|---|",
    ]
    copied = case.rounds("copy")
    for name in OURS:
        step, floor, waits = case.rounds(name), case.floor(int(name[-1])), case.waits(name)
        left = [a - b - c - d for a, b, c, d in zip(step, floor, copied, waits, strict=True)]
        parts = [f"{1e3 * statistics.median(part):.1f}" for part in (step, floor, copied, waits, left)]
        known = [a + b for a, b in zip(floor, copied, strict=True)]
        lines.append(f"| {name} | {' | '.join(parts)} | {ratio(step, known)} |")
    return lines


def ratio(these: list[float], those: list[float]) -> str:
    ratios = [a / b for a, b in zip(these, those, strict=True)]
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def machine(rounds: int, steps: int, device: str = "cpu") -> str:
    """Where and with what it was measured."""
    try:
        deepspeed = f"DeepSpeed {version('deepspeed')}"
    except PackageNotFoundError:
        deepspeed = "no DeepSpeed"
    with open("/proc/cpuinfo") as info:
        processor = next((line.split(":")[1].strip() for line in info if line.startswith("model name")), "")
    gpus = f"{torch.cuda.device_count()} x {torch.cuda.get_device_name()}; " if device == "cuda" else ""
    return (
        f"\n{gpus}{processor} ({platform.machine()}), {os.cpu_count()} cores; Python {platform.python_version()}, "
        f"torch {version('torch')}, {deepspeed}; {rounds} rounds of {steps} steps"
    )


def draw(case: Case) -> Figure:
    """Step times as bars, ours apart from the others."""
    names = [name for name in case.seconds if name not in PARTS][::-1]
    values = [[1e3 * each for each in case.rounds(name)] for name in names]
    figure = Figure(figsize=(8, 0.34 * len(names) + 1.3), layout="constrained")
    axes = figure.subplots()
    medians = [statistics.median(value) for value in values]
    errors = [
        [median - min(value) for median, value in zip(medians, values, strict=True)],
        [max(value) - median for median, value in zip(medians, values, strict=True)],
    ]
    ours = [name.startswith("zerolab") for name in names]
    bars = axes.barh(names, medians, xerr=errors, color=["#0072B2" if own else "#BBBBBB" for own in ours], height=0.7)
    for bar, own in zip(bars, ours, strict=True):
        bar.set_hatch("" if own else "//")
        bar.set_edgecolor("#444444")
    for place, median in enumerate(medians):
        axes.text(median, place + 0.02, f"  {median:.0f}", va="bottom", fontsize=8)
    axes.set_xlabel("a training step, ms (median and range over the rounds)")
    axes.set_title(f"{WORKLOADS[case.workload](case.rows).what}; {case.ranks} ranks", fontsize=10, loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    return figure
