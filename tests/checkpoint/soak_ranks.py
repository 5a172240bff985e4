"""Launches, collectives and saves by the thousand, with kills at random moments: nothing is left and nothing is lost.

    python tests/checkpoint/soak_ranks.py --launches 1000 --saves 1000 --seed 0          what docs/checkpoints.md quotes
    python tests/checkpoint/soak_ranks.py --minutes 5                                    as much as fits

A launch has 1 to 4 ranks, which run thirteen collectives of drawn sizes and dtypes by drawn implementations, with the
result held to plain torch; in one of five a rank is killed, raises or leaves on the way. A save goes on from the newest
checkpoint, trains a step and saves; ranks are killed at a drawn call to the system or after a drawn time, and what is
found afterwards is held, bit by bit, to an undisturbed run. At the end: processes, threads, descriptors, temporary
folders, shared memory and this process's own memory beside what they were after the first launches.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
import torch
from checkpoint_cases import Run, Way, differing, launch_saving, values_of

from zerolab.checkpoint import Checkpoints, checkpoints_in, find_latest
from zerolab.collectives import Collectives
from zerolab.errors import RankError
from zerolab.ranks import launch
from zerolab.train.progress import Bar

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.int32)
STEPS = 12
CALLS = 100


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--launches", type=int, default=0)
    parser.add_argument("--saves", type=int, default=0, help="saves that are killed")
    parser.add_argument("--minutes", type=float, default=None, help="stop after so many, half of them for each")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write what was seen to this file")
    options = parser.parse_args()
    if options.minutes is not None:
        options.launches = options.launches or 10**9
        options.saves = options.saves or 10**9
    drawn = random.Random(options.seed)
    seen: Counter[str] = Counter()
    half = None if options.minutes is None else 30 * options.minutes
    with tempfile.TemporaryDirectory() as folder:
        # What others do in the common one does not count.
        os.environ["TMPDIR"] = tempfile.tempdir = folder
        saves = Saves(Path(folder), drawn, seen)
        for _ in range(5):
            one_launch(drawn, Counter())
        before, begun = held(), time.perf_counter()
        faults = soak(options.launches, half, "launches", lambda: one_launch(drawn, seen))
        faults += soak(options.saves, half, "kills in saves", saves.one, lambda: seen["kills in saves"])
        after = held()
    print(f"seed {options.seed}, {time.perf_counter() - begun:.0f} s: {dict(sorted(seen.items()))}")
    print("held before and after:", {name: (before[name], after[name]) for name in before})
    faults += [f"{name} grew from {before[name]} to {after[name]}" for name in LEFT if after[name] > before[name]]
    if after["MB"] > before["MB"] + 100:
        faults.append(f"memory grew from {before['MB']} to {after['MB']} MB")
    print("\n".join(faults) or "no fault")
    if options.json:
        options.json.write_text(json.dumps({"seen": seen, "before": before, "after": after, "faults": faults}))
    return bool(faults)


def soak(count: int, seconds: float | None, what: str, one: Any, done: Any = None) -> list[str]:
    """Do `one` until `count` are done, or so many seconds have passed; the faults that it tells."""
    faults: list[str] = []
    begun = time.perf_counter()
    number = 0
    with Bar(total=count if count < 10**9 else None, desc=what, file=sys.stderr) as bar:
        while number < count and (seconds is None or time.perf_counter() - begun < seconds):
            faults += one()
            now = number + 1 if done is None else done()
            bar.update(now - number)
            number = now
    return faults


# Launches and their collectives.


def one_launch(drawn: random.Random, seen: Counter[str]) -> list[str]:
    ranks = drawn.randint(1, 4)
    calls = [
        (
            drawn.choice(("all_reduce", "reduce_scatter", "all_gather", "broadcast")),
            drawn.choice((0, 1, 3, drawn.randint(2, 100), drawn.randint(100, 30_000))),
            drawn.randrange(len(DTYPES)),
            drawn.randrange(ranks),
        )
        for _ in range(13)
    ]
    impl = drawn.choice(("shared", "ring", "torch"))
    trouble = drawn.choice(("killed", "raised", "left")) if drawn.random() < 0.2 else ""
    victim, at = drawn.randrange(ranks), drawn.randrange(13)
    seen["launches"] += 1
    try:
        for faults in launch(collect, calls, trouble, victim, at, ranks=ranks, collectives=impl, timeout=60):
            if faults:
                return [f"{impl}, {ranks} ranks: {fault}" for fault in faults]
        seen["collectives"] += len(calls)
    except RankError as error:
        seen[f"launches in which a rank {trouble or 'failed'}"] += 1
        if not trouble or f"rank {victim}" not in str(error):
            return [f"{impl}, {ranks} ranks, {trouble or 'no trouble'}: {error}"]
    return []


def collect(comm: Collectives, calls: list[Any], trouble: str, victim: int, at: int) -> list[str]:
    """Run collectives on this rank and hold them to what all ranks' tensors give; or come to grief."""
    faults = []
    for number, (name, numel, dtype, src) in enumerate(calls):
        if trouble and comm.rank == victim and number == at:
            if trouble == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            if trouble == "left":
                os._exit(3)
            raise ValueError("meant to fail")
        length = -(-numel // comm.size) * comm.size
        of_ranks = [
            torch.randint(-9, 9, (length,), generator=torch.Generator().manual_seed(100 * number + rank))
            for rank in range(comm.size)
        ]
        own, share = of_ranks[comm.rank].to(DTYPES[dtype]), slice(comm.rank * length // comm.size, None)
        share = slice(share.start, share.start + length // comm.size)
        total = torch.stack(of_ranks).sum(0)
        if name == "all_reduce":
            got, wanted = comm.all_reduce(own), total
        elif name == "reduce_scatter":
            got, wanted = comm.reduce_scatter(own), total[share]
        elif name == "all_gather":
            got, wanted = (
                comm.all_gather(own[share].clone()),
                torch.cat([of[r * length // comm.size :][: length // comm.size] for r, of in enumerate(of_ranks)]),
            )
        else:
            got, wanted = comm.broadcast(own, src), of_ranks[src]
        if not torch.equal(got, wanted.to(got.dtype)):
            faults.append(f"{name} of {length} {DTYPES[dtype]} differs")
    return faults


# Saves.


class Saves:
    """A folder whose run is killed again and again."""

    def __init__(self, folder: Path, drawn: random.Random, seen: Counter[str]) -> None:
        self.root, self.drawn, self.seen = folder, drawn, seen
        launch(undisturbed, folder / "expected", ranks=2, world="lockstep")
        self.expected = {step: values_of(folder / "expected" / f"step-{step:08d}") for step in range(1, STEPS + 1)}
        self._anew()

    def _anew(self) -> None:
        self.number = getattr(self, "number", -1) + 1
        self.folder, self.last = self.root / f"run-{self.number}", 0

    def one(self) -> list[str]:
        """A launch that is killed, and what it leaves."""
        drawn = self.drawn
        victims = drawn.choice(((0,), (1,), (0, 1)))
        at = drawn.randrange(1, CALLS)
        by_clock = drawn.random() < 0.3
        stop = min(self.last + drawn.randint(1, 3), STEPS)
        killer = None
        if by_clock:
            killer = threading.Timer(drawn.uniform(0.02, 0.3), kill_ranks)
            killer.start()
        try:
            launch(
                launch_saving, self.folder, stop, () if by_clock else victims, at, drawn.random() < 0.5,
                ranks=2, timeout=60,
            )  # fmt: skip
            self.seen["saves that were done"] += 1
        except RankError as error:
            if "SIGKILL" not in str(error):
                return [f"run {self.number} ended otherwise: {error}"]
            self.seen["kills in saves"] += 1
        finally:
            if killer is not None:
                killer.cancel()
                killer.join()
        found = find_latest(self.folder) if self.folder.exists() else None
        if found is None:
            return [f"no checkpoint is left of run {self.number}, which had step {self.last}"] if self.last else []
        step = int(found.name[-8:])
        faults = []
        if step < self.last:
            faults.append(f"run {self.number} went back from step {self.last} to {step}")
        if wrong := differing(values_of(found), self.expected[step]):
            faults.append(f"step {step} of run {self.number} differs in {wrong[0]}")
        self.last = step
        if step >= STEPS:
            left = {path.name for path in self.folder.iterdir()} - {path.name for path in checkpoints_in(self.folder)}
            self.seen["runs that came to their end"] += 1
            if len(left) > 4:
                faults.append(f"run {self.number} left {sorted(left)}")
            self._anew()
        return faults


def undisturbed(comm: Collectives, folder: Path) -> None:
    run = Run(comm, Way(3))
    with Checkpoints(folder) as checkpoints:
        for step in range(1, STEPS + 1):
            run.train(step - 1, step)
            checkpoints.save(run.engine, step, scheduler=run.scheduler)


def kill_ranks() -> None:
    """All ranks that are there now: children of the fork server."""
    for child in psutil.Process().children(recursive=True):
        try:
            if child.parent() is not None and child.parent().ppid() == os.getpid():
                child.kill()
        except psutil.Error:
            continue


# What is left.

LEFT = ("descriptors", "threads", "processes", "folders", "shared memory")


def held() -> dict[str, int]:
    gc.collect()
    time.sleep(0.5)
    own = psutil.Process()
    return {
        "descriptors": own.num_fds(),
        "threads": own.num_threads(),
        "processes": len(own.children(recursive=True)),
        "folders": sum(path.name.startswith("zerolab-") for path in Path(tempfile.gettempdir()).iterdir()),
        # Ours are anonymous; torch's begin so.
        "shared memory": len(list(Path("/dev/shm").glob("torch_*"))),
        "MB": own.memory_info().rss // 10**6,
    }


if __name__ == "__main__":
    sys.exit(main())
