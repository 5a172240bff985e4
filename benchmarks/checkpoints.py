"""What a save costs: how long training stands still, how much slower steps are meanwhile, how fast bytes reach a disk.

    python -m benchmarks.checkpoints
    python -m benchmarks.checkpoints --ranks 2 --stage 3 --rounds 7 --json checkpoints.json

Method. Ranks train equal linear layers and save to a folder, with everything synced to the disk. Each round, in turn:

  1  steps without a save
  2  `save(wait=False)`, and steps until the checkpoint is there        stall: how long the call takes
  3  the same with torch's `dcp.async_save` of the same tensors         (its future is asked after each step)
  4  `save(wait=True)`
  5  raw writes of as many bytes: each rank one file, in pieces of 8 MiB, synced

A ratio is of one round: the mean step while a save is under way over the mean step without one; for the bandwidth, the
seconds of the raw writes over those of the save. Given are the median of the rounds, and the smallest and largest. The
slowest rank counts. Files are removed after each part, outside the clock.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from tqdm import tqdm

from benchmarks.peers.report import machine
from benchmarks.resident import LAYERS, WIDTH, linear
from zerolab.checkpoint import Checkpoints
from zerolab.collectives import Collectives
from zerolab.ranks import launch
from zerolab.zero import ZeroEngine

ROWS = 256
AT_ONCE = 1 << 23
Figures = dict[str, float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--stage", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=8, help="steps without a save in each round")
    parser.add_argument("--folder", type=Path, help="where to write (default: the temporary folder)")
    parser.add_argument("--json", type=Path, help="write every measurement to this file")
    options = parser.parse_args()
    rounds = []
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        for _ in tqdm(range(options.rounds), desc="rounds", file=sys.stderr):
            by_rank = launch(
                measure, Path(folder), options.stage, options.steps,
                ranks=options.ranks, device="cpu", timeout=600, prints="quiet",
            )  # fmt: skip
            # A step, a stall and a save are as long as on the slowest rank.
            rounds.append({name: max(of[name] for of in by_rank) for name in by_rank[0]})
    print(table(rounds, options.ranks, options.stage))
    print(machine(options.rounds, options.steps))
    print("CRC-32: " + ", ".join(f"{name} {speed:.1f} GB/s" for name, speed in checksum_speeds(1 << 26).items()))
    if options.json:
        options.json.write_text(json.dumps(rounds))


def checksum_speeds(nbytes: int, rounds: int = 5) -> Figures:
    """GB/s of Python's CRC-32 and, where it is installed, of isal's: the best of some rounds on random bytes."""
    data, speeds = os.urandom(nbytes), {}
    for name in ("zlib", "isal"):
        try:
            crc32 = importlib.import_module("zlib" if name == "zlib" else "isal.isal_zlib").crc32
        except ModuleNotFoundError:
            continue
        seconds = []
        for _ in range(rounds):
            start = time.perf_counter()
            crc32(data)
            seconds.append(time.perf_counter() - start)
        speeds[name] = nbytes / min(seconds) / 1e9
    return speeds


def measure(comm: Collectives, folder: Path, stage: int, steps: int) -> Figures:
    """One round on this rank: seconds, and bytes."""
    work = linear(ROWS)
    engine = ZeroEngine(work.model(), comm, stage, lr=1e-4)
    step = stepper(engine, work, comm)
    for _ in range(3):
        step()
    found: Figures = {"bytes": 0.0}
    found["step"] = statistics.mean(step() for _ in range(steps))
    with Checkpoints(folder / "ours", keep=1) as checkpoints:
        # Once before the clock: what a first save imports and makes does not count.
        checkpoints.save(engine, 1)
        comm.barrier()
        begun = time.perf_counter()
        checkpoints.save(engine, 2, wait=False)
        found["our stall"] = time.perf_counter() - begun
        during = steps_until(step, comm, lambda: (folder / "ours" / "step-00000002").exists())
        found["our step"], found["our steps"] = statistics.mean(during), len(during)
        found["our to the disk"] = time.perf_counter() - begun
        checkpoints.wait()
        comm.barrier()
        begun = time.perf_counter()
        path = checkpoints.save(engine, 3)
        found["our save"] = time.perf_counter() - begun
        assert path is not None
        found["bytes"] = sum(file.stat().st_size for file in path.iterdir())
    found |= measure_dcp(comm, engine, step, folder)
    found["raw write"] = statistics.mean(raw_write(comm, folder, int(found["bytes"]) // comm.size) for _ in range(2))
    comm.barrier()
    if comm.rank == 0:
        shutil.rmtree(folder / "ours")
    return found


def measure_dcp(comm: Collectives, engine: ZeroEngine, step: Callable[[], float], folder: Path) -> Figures:
    """torch's asynchronous save of this rank's shards, with what its optimizer keeps of them."""
    tensors = {f"rank{comm.rank}/model/{at}": bucket.shard for at, bucket in enumerate(engine.buckets)}
    for at, state in enumerate(engine.optimizer.state.values()):
        tensors |= {f"rank{comm.rank}/{name}/{at}": value for name, value in state.items()}
    found: Figures = {}
    for number in range(2):
        comm.barrier()
        begun = time.perf_counter()
        future: Any = dcp.async_save(tensors, checkpoint_id=folder / f"dcp-{number}")
        found["dcp stall"] = time.perf_counter() - begun
        during = steps_until(step, comm, future.done)
        found["dcp step"], found["dcp steps"] = statistics.mean(during), len(during)
        found["dcp to the disk"] = time.perf_counter() - begun
        future.result()
        comm.barrier()
    if comm.rank == 0:
        for number in range(2):
            shutil.rmtree(folder / f"dcp-{number}")
    return found


def stepper(engine: ZeroEngine, work: Any, comm: Collectives) -> Callable[[], float]:
    batch = work.batch(0, comm.rank)

    def step() -> float:
        begun = time.perf_counter()
        engine.backward(engine(*batch))
        engine.step()
        return time.perf_counter() - begun

    return step


def steps_until(step: Callable[[], float], comm: Collectives, done: Callable[[], bool]) -> list[float]:
    """The seconds of steps until all ranks see that something is done; at least one."""
    seconds = []
    while True:
        seconds.append(step())
        if comm.all_reduce(torch.tensor([float(done())])).item() == comm.size:
            return seconds


def raw_write(comm: Collectives, folder: Path, nbytes: int) -> float:
    path, data = folder / f"raw-{comm.rank}", os.urandom(AT_ONCE)
    comm.barrier()
    begun = time.perf_counter()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    for start in range(0, nbytes, AT_ONCE):
        os.write(descriptor, data[: nbytes - start])
    os.fsync(descriptor)
    os.close(descriptor)
    comm.barrier()
    seconds = time.perf_counter() - begun
    path.unlink()
    return seconds


def table(rounds: list[Figures], ranks: int, stage: int) -> str:
    def cell(value: Callable[[Figures], float], form: str) -> str:
        values = [value(figures) for figures in rounds]
        return f"{statistics.median(values):{form}} ({min(values):{form}} to {max(values):{form}})"

    size = statistics.median(figures["bytes"] for figures in rounds) / 1e6
    step = cell(lambda figures: 1e3 * figures["step"], ".0f")
    lines = [
        f"\n### {LAYERS} linear layers, {WIDTH} wide; {ranks} ranks, stage {stage}; {size:.0f} MB a checkpoint; a step "
        f"without a save {step} ms\n",
        "| | zerolab | torch's dcp.async_save |",
        "|---|---|---|",
    ]
    for title, form, value in (
        ("training stands still, ms", ".0f", lambda of, who: 1e3 * of[f"{who} stall"]),
        ("a step meanwhile, over one without", ".2f", lambda of, who: of[f"{who} step"] / of["step"]),
        ("the stall and steps meanwhile, over so many steps without", ".2f", _with_stall),
        (
            "until it is on the disk, ms",
            ".0f",
            lambda of, who: 1e3 * of[f"{who} to the disk"],
        ),
    ):
        cells = [cell(lambda of, who=who, value=value: value(of, who), form) for who in ("our", "dcp")]
        lines.append(f"| {title} | {cells[0]} | {cells[1]} |")
    ratio = cell(lambda of: of["raw write"] / of["our save"], ".2f")
    speed = cell(lambda of: of["bytes"] / of["our save"] / 1e6, ".0f")
    lines += ["", f"Bandwidth of a save that is waited for, over raw writes: {ratio}; {speed} MB/s."]
    return "\n".join(lines)


def _with_stall(figures: Figures, who: str) -> float:
    steps = figures[f"{who} steps"]
    return (figures[f"{who} stall"] + steps * figures[f"{who} step"]) / (steps * figures["step"])


if __name__ == "__main__":
    main()
