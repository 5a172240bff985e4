"""The seven configurations that guides to ZeRO rank by speed and memory, measured: stages, and states on host or disk.

    python -m benchmarks.tiers                          4 ranks, LLaMA tiny
    python -m benchmarks.tiers --ranks 2 --rounds 5 --folder /mnt/fast --json tiers.json
    zerolab sweep benchmarks/tiers.yaml --out sweeps/tiers       the same runs once, a row each

Method. As in `benchmarks.stages`: all train the same model on the same batches from the same seed, one after the other
in `--rounds` rounds; bytes are those that `zerolab train` measures, the most of any rank; step time is the median of a
run's untracked steps as a ratio to stage 0 of the same round: the median over the rounds, smallest and largest.

The device here is a CPU, so "host" and "device" are one memory and only the ledgers part them: what the host costs is
copies and a step apart, without the wire to a GPU. The disk is real.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from tqdm import tqdm

from benchmarks.stages import MEGABYTE, most_sent
from zerolab.memory.kinds import OFFLOADED
from zerolab.run import RunSpec
from zerolab.train import Report, train

OPTIMIZER, BOTH = {"offload_optimizer": "host"}, {"offload_optimizer": "host", "offload_param": "host"}
DISK = {"offload_optimizer": "disk", "offload_param": "disk"}
RUNS: dict[str, dict[str, Any]] = {
    "0": {"zero_stage": 0},
    "1": {"zero_stage": 1},
    "2": {"zero_stage": 2},
    "2, optimizer on the host": {"zero_stage": 2, **OPTIMIZER},
    "3": {"zero_stage": 3},
    "3, optimizer and parameters on the host": {"zero_stage": 3, **BOTH},
    "3, optimizer and parameters on the disk": {"zero_stage": 3, **DISK},
}
"""Row by row of the guides' table."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--model-size", default="tiny")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="where swap files go (default: the temporary folder)")
    parser.add_argument("--json", type=Path, help="write every report to this file")
    options = parser.parse_args()
    rounds = []
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        for _ in tqdm(range(options.rounds), desc="rounds", file=sys.stderr):
            rounds.append({name: measured(settings, options, folder) for name, settings in RUNS.items()})
    print(table(rounds))
    if options.json:
        texts = [{name: report.as_json() for name, report in reports.items()} for reports in rounds]
        options.json.write_text(json.dumps(texts))


def measured(settings: dict[str, Any], options: argparse.Namespace, folder: str) -> Report:
    place = {"offload_path": folder} if "disk" in settings.values() else {}
    return train(
        RunSpec(**settings, **place, ranks=options.ranks, model_size=options.model_size, max_steps=options.steps)
    )


def table(rounds: list[dict[str, Report]]) -> str:
    """Markdown; megabytes of 10^6 bytes, of the rank that has most."""
    first = rounds[0]
    run = first["0"].config
    lines = [
        f"{run.model} {run.model_size}, {run.ranks} ranks, {os.cpu_count()} cores; MB a rank",
        "",
        "| stage | device at the peak | host | disk | sent a step | step time |",
        "|---|---|---|---|---|---|",
    ]
    for name, report in first.items():
        ratios = [reports[name].median_step_seconds / reports["0"].median_step_seconds for reports in rounds]
        spread = "1" if name == "0" else f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        cells = [held(report.peak, ""), *(held(report.memory_measured, place) for place in OFFLOADED)]
        lines.append(f"| {name} | " + " | ".join(f"{cell / MEGABYTE:.2f}" for cell in [*cells, most_sent(report)]))
        lines[-1] += f" | {spread} |"
    same = len({report.parameters_sha256 for reports in rounds for report in reports.values()}) == 1
    return "\n".join([*lines, "", f"parameters bitwise equal over all rows: {same}"])


def held(kinds: dict[str, list[int]], place: str) -> int:
    """The most that a rank has in a place, "host:" or "disk:", or on its device ("")."""
    wanted = [sizes for kind, sizes in kinds.items() if (kind.startswith(place) if place else ":" not in kind)]
    return max((sum(of_rank) for of_rank in zip(*wanted, strict=True)), default=0)


if __name__ == "__main__":
    main()
