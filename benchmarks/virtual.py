"""What a virtual world costs, and what it says: `python -m benchmarks.virtual`.

One rank of `--ranks` trains a model for two steps on tensors without values, at each of `--stages`, each in a process
of its own; other flags are handed on to `zerolab train`. A row for each: what it took here (seconds, and memory of that
process at its highest), and what it found for the rank (memory at the peak of a step, bytes sent a step)."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple


class Row(NamedTuple):
    stage: int
    seconds: float
    megabytes: float
    peak: int
    kinds: dict[str, int]
    sent: int


def measure(stage: int, ranks: int, model_size: str, flags: list[str]) -> Row:
    with tempfile.TemporaryDirectory() as folder:
        profile = Path(folder) / "profile.json"
        command = [sys.executable, "-m", "zerolab", "train", "--world", "virtual", "--ranks", str(ranks)]
        command += ["--zero-stage", str(stage), "--bf16", "--model", "gpt2", "--model-size", model_size]
        command += ["--max-steps", "2", "--profile-json", str(profile), *flags]
        start = time.perf_counter()
        megabytes = peak_of(command)
        seconds = time.perf_counter() - start
        found = json.loads(profile.read_text())
    kinds = {kind: of_rank[0] for kind, of_rank in found["memory"]["peak"].items()}
    sent = sum(of_rank[0] for of_rank in found["traffic"]["measured"].values())
    return Row(stage, seconds, megabytes, sum(kinds.values()), kinds, sent)


def peak_of(command: list[str]) -> float:
    """Run a command; the most memory that its process had resident, in MB."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    # Nobody else may wait for it any more.
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return usage.ru_maxrss * 1024 / 1e6


def table(rows: list[Row]) -> str:
    lines = [
        "| stage | seconds here | MB here | GB of the rank at the peak | GB sent a step |",
        "|--:|--:|--:|--:|--:|",
    ]
    lines += [
        f"| {row.stage} | {row.seconds:.0f} | {row.megabytes:.0f} | {row.peak / 1e9:,.1f} | {row.sent / 1e9:,.1f} |"
        for row in rows
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.virtual", description=__doc__)
    parser.add_argument("--ranks", type=int, default=1024)
    parser.add_argument("--model-size", default="gpt3-175b")
    parser.add_argument("--stages", default="3")
    options, flags = parser.parse_known_args()
    stages = [int(stage) for stage in options.stages.split(",")]
    rows = [measure(stage, options.ranks, options.model_size, flags) for stage in stages]
    print(f"{options.model_size}, {options.ranks} ranks, bf16 {' '.join(flags)}".rstrip())
    print(table(rows))


if __name__ == "__main__":
    main()
