"""What the system sees of a rank beside what the ledger says: resident memory, stage by stage.

    python -m benchmarks.resident                                  both workloads, 2 and 4 ranks, stages 0 to 3
    python -m benchmarks.resident --workload linear --ranks 2 --rounds 3 --json resident.json

Method. Each case (workload, ranks, stage) has two launches, each in fresh processes. In one a rank first trains a model
of two small layers, so that what a first use imports or opens does not count; notes what it holds ("before"); builds
the model and the engine; and then trains `--steps` steps, while the parent reads every two milliseconds what it holds.
The most of it is the peak. In the other launch the same steps run under a `Tracker`, whose peak is the ledger. Each
figure is that of the rank which peaks highest; with several rounds the median, and the smallest and largest peak.

What a rank holds is its private anonymous pages, as RssAnon in /proc/PID/status has them, and the pages of its arena,
an anonymous file that it shares with the others. `top` shows more under RES: pages of libraries, which all processes
of the machine have in common, and those pages of the peers' arenas that this rank has looked at, which would count
once for each rank. Here each page of an arena counts once, for the rank that owns it, so that the sum over ranks is
what the machine gives them. (That is what Pss comes to where ranks do alike: half of what a peer maps of mine is taken
from me, and half of what I map of his is added.) Pages that a rank has in common with the server that forked it are in
"before" and stay there, whether it writes to them later or not; so "before" is mostly what torch's import takes, once
for all ranks, and "over the ledger" says how large the surplus is beside the ledger alone. RES is given, too, as VmHWM
has it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from tqdm import tqdm

from benchmarks.peers.measure import Watcher, held_bytes
from benchmarks.peers.report import machine
from benchmarks.peers.workload import LEARNING_RATE, WORKLOADS, Workload, generator
from zerolab.collectives import Collectives
from zerolab.memory import Tracker
from zerolab.ranks import launch
from zerolab.zero import ZeroEngine, engine_labels

LAYERS, WIDTH = 24, 768
MEGABYTE = 10**6
Figures = dict[str, float]
"""Bytes: before, ledger, peak and RES of one case in one round."""


class Layers(nn.Module):
    """Equal linear layers, 14 million parameters: 57 MB, and 226 MB with gradients and optimizer states."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = F.gelu(layer(x))
        return F.mse_loss(x, target)


def linear(rows: int) -> Workload:
    def batch(step: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.randn(rows, WIDTH, generator=generator(step, rank))
        return x, x.roll(1, dims=1)

    what = f"{LAYERS} linear layers, {WIDTH} wide, {rows} rows a rank"
    return Workload(what, Layers, lambda model: list(model.get_submodule("layers").children()), batch)


ALL: dict[str, tuple[Callable[[int], Workload], int]] = {
    "linear": (linear, 32),
    "llama": (WORKLOADS["llama"], 2),
    "stack": (WORKLOADS["stack"], 32),
}
"""Workloads, and the rows or sequences a rank."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", choices=list(ALL), nargs="+", default=["linear", "llama"])
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--stages", type=int, nargs="+", default=[0, 1, 2, 3])
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write every measurement to this file")
    options = parser.parse_args()

    found: dict[str, list[Figures]] = {}
    turns = [
        (workload, ranks, stage)
        for _ in range(options.rounds)
        for workload in options.workload
        for ranks in options.ranks
        for stage in options.stages
    ]
    for workload, ranks, stage in tqdm(turns, desc="workloads, ranks and stages", file=sys.stderr):
        figures = measure(workload, ranks, stage, options.steps)
        found.setdefault(f"{workload}, {ranks} ranks, stage {stage}", []).append(figures)
    for workload in options.workload:
        for ranks in options.ranks:
            rows = {stage: found[f"{workload}, {ranks} ranks, stage {stage}"] for stage in options.stages}
            print(table(workload, ranks, rows))
    print(machine(options.rounds, options.steps))
    if options.json:
        options.json.write_text(json.dumps(found))


def measure(workload: str, ranks: int, stage: int, steps: int) -> Figures:
    start: Callable[..., list[Any]] = partial(launch, ranks=ranks, device="cpu", timeout=300, prints="quiet")
    with tempfile.TemporaryDirectory() as folder, Watcher(folder) as watcher:
        by_rank = start(watched, workload, stage, steps, folder)
        peaks = watcher.peaks
    most = max(peaks, key=lambda rank: peaks[rank] - by_rank[rank]["before"])
    ledger = max(start(tracked, workload, stage, min(steps, 3)))
    return {**by_rank[most], "ledger": ledger, "peak": peaks[most]}


def watched(comm: Collectives, workload: str, stage: int, steps: int, folder: str) -> Figures:
    """Train under the eyes of a `Watcher`."""
    make, rows = ALL[workload]
    batches = [make(rows).batch(at, comm.rank) for at in range(steps)]
    small = WORKLOADS["nothing"](1)
    train(ready(comm, small, stage), [small.batch(0, comm.rank)])
    before = held_bytes(os.getpid())
    engine = ready(comm, make(rows), stage)
    Path("/proc/self/clear_refs").write_text("5")
    Path(folder, f"{os.getpid()}-{comm.rank}").touch()
    train(engine, batches)
    comm.barrier()
    return {"before": before, "RES": resident()}


def tracked(comm: Collectives, workload: str, stage: int, steps: int) -> int:
    """The ledger's peak of the same steps."""
    make, rows = ALL[workload]
    batches = [make(rows).batch(at, comm.rank) for at in range(steps)]
    engine = ready(comm, make(rows), stage)
    with Tracker(engine_labels(engine), samples=False) as tracker:
        train(engine, batches)
    return sum(tracker.peak.values())


def ready(comm: Collectives, work: Workload, stage: int) -> ZeroEngine:
    return ZeroEngine(work.model(), comm, stage, lr=LEARNING_RATE)


def train(engine: ZeroEngine, batches: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
    for batch in batches:
        engine.backward(engine(*batch))
        engine.step()


def resident() -> int:
    """The most that this process had resident since its peak was reset."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


def table(workload: str, ranks: int, by_stage: dict[int, list[Figures]]) -> str:
    make, rows = ALL[workload]
    lines = [
        f"\n### {make(rows).what}; {ranks} ranks; MB of the rank that peaks highest\n",
        "| stage | before | ledger | before + ledger | peak | error, % | over the ledger, % | RES |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for stage, rounds in by_stage.items():
        before, ledger, peak, res = (
            statistics.median(figures[name] for figures in rounds) / MEGABYTE
            for name in ("before", "ledger", "peak", "RES")
        )
        peaks = [figures["peak"] / MEGABYTE for figures in rounds]
        spread = f" ({min(peaks):.0f} to {max(peaks):.0f})" if len(rounds) > 1 else ""
        error = 100 * (peak / (before + ledger) - 1)
        lines.append(
            f"| {stage} | {before:.0f} | {ledger:.0f} | {before + ledger:.0f} | {peak:.0f}{spread} | {error:+.1f} "
            f"| {100 * (peak - before - ledger) / ledger:+.1f} | {res:.0f} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
