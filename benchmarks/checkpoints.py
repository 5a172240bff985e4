"""What a save costs: how long training stands still, how much slower steps are meanwhile, how fast bytes reach a disk.

    python -m benchmarks.checkpoints
    python -m benchmarks.checkpoints --ranks 2 --stage 3 --rounds 7 --json checkpoints.json
    python -m benchmarks.checkpoints --account                     where the time of a save goes

Method. Ranks train equal linear layers and save to a folder, with everything synced to the disk. Each round, in turn:

  1  steps without a save; `save(wait=False)`, and steps until the checkpoint is there; as many steps without a save
     as before                                                          stall: how long the call takes
  2  `save(wait=True)`
  3  the same as 1 with torch's `dcp.async_save` of the same tensors    (its future is asked after each step)
  4  raw writes of as many bytes: each rank one file, in pieces of 8 MiB, synced; and the same with each piece sent to
     the disk as soon as it is written, which is the quickest that goes through the page cache

A ratio is of one round: the mean step while a save is under way over the mean step before and after it; for the
bandwidth, the seconds of the raw writes over those of the save. Given are the median of the rounds, and the smallest
and largest. The slowest rank counts. Files are removed after each part, outside the clock; the checkpoint that a save
replaces is removed once the save has returned.

`--account` has rank 0's parts of a save that is waited for (they sum to it), and the CPU time of the thread that writes
while training goes on: functions are wrapped, each counts without those inside of it; medians of the rounds.
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
import threading
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
    parser.add_argument("--steps", type=int, default=3, help="steps without a save before and after each")
    parser.add_argument("--folder", type=Path, help="where to write (default: the temporary folder)")
    parser.add_argument("--json", type=Path, help="write every measurement to this file")
    parser.add_argument("--account", action="store_true", help="the parts of a save in place of all else")
    options = parser.parse_args()
    if options.account:
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            parts = launch(
                account, Path(folder), options.stage, options.rounds,
                ranks=options.ranks, device="cpu", timeout=600, prints="quiet",
            )  # fmt: skip
        print(account_table(parts[0]))
        return
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
    with Checkpoints(folder / "ours", keep=1) as checkpoints:
        # Once before the clock: what a first save imports and makes does not count.
        checkpoints.save(engine, 1)
        found = beside_steps(
            "our", step, steps, comm,
            lambda: checkpoints.save(engine, 2, wait=False),
            lambda: (folder / "ours" / "step-00000002").exists(),
            checkpoints.wait,
        )  # fmt: skip
        comm.barrier()
        begun = time.perf_counter()
        path = checkpoints.save(engine, 3)
        found["our save"] = time.perf_counter() - begun
        assert path is not None
        found["bytes"] = sum(file.stat().st_size for file in path.iterdir())
    found |= measure_dcp(comm, engine, step, steps, folder)
    nbytes = int(found["bytes"]) // comm.size
    for name, early in (("raw write", False), ("early write", True)):
        found[name] = statistics.mean(raw_write(comm, folder, nbytes, early) for _ in range(2))
    comm.barrier()
    if comm.rank == 0:
        shutil.rmtree(folder / "ours")
    return found


def beside_steps(
    who: str,
    step: Callable[[], float],
    steps: int,
    comm: Collectives,
    save: Callable[[], Any],
    done: Callable[[], bool],
    wait: Callable[[], Any],
) -> Figures:
    """A save that is not waited for, the steps until it is done, and as many without one before as after it."""
    without = [step() for _ in range(steps)]
    comm.barrier()
    begun = time.perf_counter()
    save()
    found = {f"{who} stall": time.perf_counter() - begun}
    during = steps_until(step, comm, done)
    found[f"{who} step"], found[f"{who} steps"] = statistics.mean(during), len(during)
    found[f"{who} to the disk"] = time.perf_counter() - begun
    wait()
    found[f"{who} step without"] = statistics.mean([*without, *(step() for _ in range(steps))])
    return found


class Account:
    """Seconds, and seconds of CPU, of wrapped functions by what they do, without those inside; of either thread."""

    def __init__(self) -> None:
        self.seconds: dict[tuple[bool, str], list[float]] = {}
        self._inside = threading.local()

    def wrap(self, owner: Any, name: str, what: str) -> None:
        function = getattr(owner, name)

        def timed(*arguments: Any, **named: Any) -> Any:
            stack = self._inside.__dict__.setdefault("stack", [])
            begun = time.perf_counter(), time.thread_time()
            stack.append([0.0, 0.0])
            try:
                return function(*arguments, **named)
            finally:
                whole = time.perf_counter() - begun[0], time.thread_time() - begun[1]
                inner = stack.pop()
                key = threading.current_thread() is threading.main_thread(), what
                found = self.seconds.setdefault(key, [0.0, 0.0])
                for at in range(2):
                    found[at] += whole[at] - inner[at]
                    if stack:
                        stack[-1][at] += whole[at]

        setattr(owner, name, timed)


def account(comm: Collectives, folder: Path, stage: int, rounds: int) -> list[tuple[Figures, Figures]]:
    """Of each round: what a save that is waited for takes, and what CPU the thread of one that is not."""
    save, tensors = (sys.modules[f"zerolab.checkpoint.{name}"] for name in ("save", "tensors"))
    clock = Account()
    for owner, name, what in (
        (Checkpoints, "hold", "ranks agree on what to save"),
        (save.Save, "begin", "ranks agree on what to save"),
        (save.Save, "_take", "find tensors and their bytes"),
        (tensors, "crc32", "checksums"),
        (os, "pwrite", "copy to the page cache"),
        (os, "posix_fadvise", "send it to the disk meanwhile"),
        (save.Save, "_write_files", "other work on files"),
        (os, "fsync", "sync files and folders"),
        (save.Save, "_commit", "wait for notes, manifest, renames"),
        (save, "discard", "remove the checkpoint before"),
    ):
        clock.wrap(owner, name, what)
    work = linear(ROWS)
    engine = ZeroEngine(work.model(), comm, stage, lr=1e-4)
    step, found = stepper(engine, work, comm), []
    step()
    with Checkpoints(folder / "ours", keep=1) as checkpoints:
        for number in range(2 * rounds + 2):
            waits = number % 2 == 0
            checkpoints.wait()
            comm.barrier()
            clock.seconds.clear()
            begun = time.perf_counter()
            checkpoints.save(engine, number, wait=waits)
            whole = time.perf_counter() - begun
            if waits:
                both: Figures = {}
                for (_, what), (seconds, _) in clock.seconds.items():
                    both[what] = both.get(what, 0.0) + seconds
                both["hear that all is done"] = whole - sum(both.values())
            else:
                steps_until(step, comm, lambda number=number: (folder / "ours" / f"step-{number:08d}").exists())
                checkpoints.wait()
                found.append((both, {what: cpu for (main, what), (_, cpu) in clock.seconds.items() if not main}))
    return found[1:]


def account_table(rounds: list[tuple[Figures, Figures]]) -> str:
    names = list(dict.fromkeys(name for both in rounds for figures in both for name in figures))
    lines = ["| ms | a save that is waited for | CPU of one meanwhile |", "|---|--:|--:|"]
    sums = [0.0, 0.0]
    for name in names:
        values = [1e3 * statistics.median(both[at].get(name, 0.0) for both in rounds) for at in range(2)]
        sums = [sums[at] + values[at] for at in range(2)]
        lines.append(f"| {name} | {values[0]:.1f} | {values[1]:.1f} |")
    return "\n".join([*lines, f"| all | {sums[0]:.1f} | {sums[1]:.1f} |"])


def measure_dcp(comm: Collectives, engine: ZeroEngine, step: Callable[[], float], steps: int, folder: Path) -> Figures:
    """torch's asynchronous save of this rank's shards, with what its optimizer keeps of them."""
    tensors = {f"rank{comm.rank}/model/{at}": bucket.shard for at, bucket in enumerate(engine.buckets)}
    for at, state in enumerate(engine.optimizer.state.values()):
        tensors |= {f"rank{comm.rank}/{name}/{at}": value for name, value in state.items()}
    # As with ours, the first does not count; an asynchronous one, which makes what the second needs.
    first: Any = dcp.async_save(tensors, checkpoint_id=folder / "dcp-1")
    first.result()
    under_way: list[Any] = []
    found = beside_steps(
        "dcp", step, steps, comm,
        lambda: under_way.append(dcp.async_save(tensors, checkpoint_id=folder / "dcp-2")),
        lambda: under_way[0].done(),
        lambda: under_way[0].result(),
    )  # fmt: skip
    comm.barrier()
    if comm.rank == 0:
        for number in (1, 2):
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


def raw_write(comm: Collectives, folder: Path, nbytes: int, early: bool) -> float:
    path, data = folder / f"raw-{comm.rank}", os.urandom(AT_ONCE)
    comm.barrier()
    begun = time.perf_counter()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    for start in range(0, nbytes, AT_ONCE):
        os.write(descriptor, data[: nbytes - start])
        if early:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
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
    step = cell(lambda figures: 1e3 * figures["our step without"], ".0f")
    lines = [
        f"\n### {LAYERS} linear layers, {WIDTH} wide; {ranks} ranks, stage {stage}; {size:.0f} MB a checkpoint; a step "
        f"without a save {step} ms\n",
        "| | zerolab | torch's dcp.async_save |",
        "|---|---|---|",
    ]
    for title, form, value in (
        ("training stands still, ms", ".0f", lambda of, who: 1e3 * of[f"{who} stall"]),
        ("a step meanwhile, over one without", ".2f", lambda of, who: of[f"{who} step"] / of[f"{who} step without"]),
        ("the stall and steps meanwhile, over so many steps without", ".2f", _with_stall),
        (
            "until it is on the disk, ms",
            ".0f",
            lambda of, who: 1e3 * of[f"{who} to the disk"],
        ),
    ):
        cells = [cell(lambda of, who=who, value=value: value(of, who), form) for who in ("our", "dcp")]
        lines.append(f"| {title} | {cells[0]} | {cells[1]} |")
    lines += ["", "| waited for | MB/s | the save's, over it |", "|---|---|---|"]
    for title, name in (
        ("a save", "our save"),
        ("raw writes", "raw write"),
        ("raw writes, each sent to the disk at once", "early write"),
    ):
        speed = cell(lambda of, name=name: of["bytes"] / of[name] / 1e6, ".0f")
        lines.append(f"| {title} | {speed} | {cell(lambda of, name=name: of[name] / of['our save'], '.2f')} |")
    return "\n".join(lines)


def _with_stall(figures: Figures, who: str) -> float:
    steps = figures[f"{who} steps"]
    return (figures[f"{who} stall"] + steps * figures[f"{who} step"]) / (steps * figures[f"{who} step without"])


if __name__ == "__main__":
    main()
