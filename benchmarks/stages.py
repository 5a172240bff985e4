"""The stages side by side: memory, traffic and step time of one training run each.

    python -m benchmarks.stages                         4 ranks, LLaMA tiny, the table of the README
    python -m benchmarks.stages --picture docs/stages.png

Method. All stages train the same model on the same batches from the same seed, one after the other in `--rounds`
rounds, so that what else the machine does falls on all of them. Bytes are those of `zerolab train`: memory of live
storages (the most that any rank holds) and messages counted where they are sent; they are the same in every round
and on every machine with the same torch. Step time is the median of a run's untracked steps, given as a ratio to
stage 0 of the same round: the median over the rounds, and the smallest and largest.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from pathlib import Path

from zerolab.course.viz.looks import MEMORY
from zerolab.course.viz.picture import Picture, blank, text_table
from zerolab.run import RunSpec
from zerolab.train import Report, train

MEGABYTE = 10**6
STATES = ("parameters", "gradients", "optimizer_states")
PASSING = ("gathered_units", "gradient_buffers", "communication_buffers", "activations", "other")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--model-size", default="tiny")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--picture", type=Path, help="draw the memory of the stages to this PNG")
    parser.add_argument("--json", type=Path, help="write every report to this file")
    options = parser.parse_args()
    rounds = [
        [
            train(
                RunSpec(zero_stage=stage, ranks=options.ranks, model_size=options.model_size, max_steps=options.steps)
            )
            for stage in range(4)
        ]
        for _ in range(options.rounds)
    ]
    print(table(rounds))
    if options.picture:
        options.picture.write_bytes(draw(rounds[0]).png())
        print(f"\npicture written to {options.picture}", file=sys.stderr)
    if options.json:
        options.json.write_text(json.dumps([[report.as_json() for report in reports] for reports in rounds]))


def table(rounds: list[list[Report]]) -> str:
    """Markdown, the most of any rank in megabytes of 10^6 bytes."""
    first = rounds[0]
    run = first[0].config
    lines = [
        f"{run.model} {run.model_size}, {run.ranks} ranks, {os.cpu_count()} cores; MB a rank",
        "",
        "| stage | parameters | gradients | optimizer | all states | peak of a step | sent a step | step time |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for stage, report in enumerate(first):
        states = [max(report.memory_measured[kind]) for kind in STATES]
        cells = [*states, sum(states), max_total(report), most_sent(report)]
        ratios = [reports[stage].median_step_seconds / reports[0].median_step_seconds for reports in rounds]
        spread = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})" if stage else "1"
        lines.append(f"| {stage} | " + " | ".join(f"{cell / MEGABYTE:.2f}" for cell in cells) + f" | {spread} |")
    agree = all(
        report.memory_predicted[kind] == report.memory_measured[kind] for report in first for kind in STATES
    ) and all(report.traffic_predicted == report.traffic_measured for report in first)
    same = len({report.parameters_sha256 for reports in rounds for report in reports}) == 1
    lines += ["", f"predicted bytes equal measured bytes: {agree}; parameters bitwise equal over the stages: {same}"]
    return "\n".join(lines)


def max_total(report: Report) -> int:
    return max(sum(of_rank) for of_rank in zip(*report.peak.values(), strict=True))


def most_sent(report: Report) -> int:
    return max(sum(of_rank) for of_rank in zip(*report.traffic_measured.values(), strict=True))


def draw(reports: list[Report]) -> Picture:
    """What rank 0 holds at the peak of a step, by kind, for each stage."""
    figure = blank(8, 3.2)
    axes = figure.add_subplot()
    rows = []
    for stage, report in enumerate(reports):
        sizes = {kind: report.peak.get(kind, [0])[0] / MEGABYTE for kind in (*STATES, *PASSING)}
        left = 0.0
        for kind, size in sizes.items():
            name, colour, hatch = MEMORY[kind]
            label = None if stage else name
            axes.barh(stage, size, left=left, color=colour, hatch=hatch, edgecolor="black", linewidth=0.5, label=label)
            left += size
        axes.text(left + 1, stage, f"{left:.0f} MB", va="center")
        rows.append([f"stage {stage}", *(f"{size:.2f}" for size in sizes.values()), f"{left:.2f}"])
    axes.set_yticks(range(4), [f"stage {stage}" for stage in range(4)])
    axes.invert_yaxis()
    run = reports[0].config
    axes.set_xlabel(f"MB on rank 0 of {reports[0].ranks} at the peak of a step ({run.model} {run.model_size}, fp32)")
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside upper center", ncols=4, frameon=False, fontsize=9)
    return Picture(figure, text_table(["MB", *(MEMORY[kind].name for kind in (*STATES, *PASSING)), "all"], rows))


if __name__ == "__main__":
    main()
