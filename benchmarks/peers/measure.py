"""Rank functions: a contender trains, alone in its processes, and is timed, or watched from outside."""

from __future__ import annotations

import gc
import os
import threading
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.peers.contenders import CONTENDERS
from benchmarks.peers.workload import WORKLOADS, Workload
from zerolab.collectives.shared import peers
from zerolab.collectives.transport import Transport
from zerolab.ranks import forkserver, launch

WARM_UP = 3


def keep_freed_memory(keeps: bool) -> None:
    """Whether ranks of the next launches keep what they free. They are born with that, so their server starts anew."""
    asked = "1" if keeps else "0"
    if os.environ.get("ZEROLAB_KEEP_FREED_MEMORY") != asked:
        forkserver.end_server()
        os.environ["ZEROLAB_KEEP_FREED_MEMORY"] = asked
        # So that its imports are done when the next launch begins.
        launch(lambda comm: None, ranks=1, device="cpu", prints="quiet")


def timed(transport: Transport, workload: tuple[Any, ...], name: str, steps: int) -> dict[str, list[float]]:
    """This rank's seconds in each step, a barrier before each, those of them in which it slept until it heard from
    others (known of ranks that share memory), and its losses. The first steps only warm up. A workload is its name and
    what its maker takes."""
    work = WORKLOADS[workload[0]](*workload[1:])
    batches = batches_of(work, transport, WARM_UP + steps)
    step = CONTENDERS[name](work, transport)
    slept = count_sleep()
    seconds, waited, losses = [], [], []
    for batch in batches:
        settle(transport)
        dist.barrier()
        settle(transport)
        slept[0] = 0.0
        start = time.perf_counter()
        losses.append(step(*batch))
        settle(transport)
        seconds.append(time.perf_counter() - start)
        waited.append(slept[0])
    dist.barrier()
    return {"seconds": seconds[WARM_UP:], "waited": waited[WARM_UP:], "losses": losses}


def count_sleep() -> list[float]:
    """From here on this rank's seconds asleep in collectives of shared memory are added up, in the list's one place."""
    total, sleep = [0.0], peers.wait_for

    def timed_sleep(*events: tuple[int, int], seconds: float | None = None) -> None:
        start = time.perf_counter()
        sleep(*events, seconds=seconds)
        total[0] += time.perf_counter() - start

    peers.wait_for = timed_sleep
    return total


def batches_of(work: Workload, transport: Transport, steps: int) -> list[tuple[torch.Tensor, ...]]:
    """This rank's batches, where it computes."""
    return [tuple(part.to(transport.device) for part in work.batch(at, transport.rank)) for at in range(steps)]


def settle(transport: Transport) -> None:
    """Wait for a GPU, which works on after the host's calls have returned."""
    if transport.device.type == "cuda":
        torch.cuda.synchronize(transport.device)


def allocated(transport: Transport, workload: tuple[str, int], name: str, steps: int) -> dict[str, int]:
    """On a GPU, where torch's allocator tells the most that a contender holds: the bytes beyond those before its model
    was built."""
    work, small = WORKLOADS[workload[0]](workload[1]), WORKLOADS["nothing"](1)
    CONTENDERS[name](small, transport)(*batches_of(small, transport, 1)[0])
    batches = batches_of(work, transport, steps)
    gc.collect()
    settle(transport)
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    step = CONTENDERS[name](work, transport)
    for batch in batches:
        step(*batch)
    settle(transport)
    return {"peak": torch.cuda.max_memory_allocated() - before}


def watched(transport: Transport, workload: tuple[str, int], name: str, steps: int, folder: str) -> dict[str, float]:
    """Train under the eyes of a `Watcher`. Returns the bytes held before the model was built, and the bytes that all
    ranks together sent in a step."""
    work = WORKLOADS[workload[0]](workload[1])
    batches = [work.batch(at, transport.rank) for at in range(steps)]
    # What a first use imports or opens does not count.
    small = WORKLOADS["nothing"](1)
    CONTENDERS[name](small, transport)(*small.batch(0, transport.rank))
    before = held_bytes(os.getpid())
    Path(folder, f"{os.getpid()}-{transport.rank}").touch()
    step = CONTENDERS[name](work, transport)
    for batch in batches[:2]:
        step(*batch)
    dist.barrier()
    sent = sent_bytes()
    dist.barrier()
    for batch in batches[2:]:
        step(*batch)
    dist.barrier()
    sent = (sent_bytes() - sent) // (steps - 2)
    time.sleep(0.1)
    return {"before": before, "sent": sent}


def held_bytes(pid: int) -> int:
    """What a process holds: its private pages, and those of its arena of shared memory, an anonymous file that bears
    its number. Pages that others own and it only maps, of a library or of a peer's arena, are not counted."""
    held = arena = 0
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            held = 1024 * int(line.split()[1])
    for descriptor in os.scandir(f"/proc/{pid}/fd"):
        try:
            if os.readlink(descriptor.path).startswith(f"/memfd:zerolab-{pid} "):
                arena = 512 * os.stat(descriptor.path).st_blocks
        except FileNotFoundError:
            continue
    return held + arena


def sent_bytes() -> int:
    """What this machine has sent over its loopback interface."""
    lines = Path("/proc/net/dev").read_text().splitlines()
    fields = next(line.split(":")[1].split() for line in lines if line.strip().startswith("lo:"))
    return int(fields[8])


class Watcher:
    """Reads, from another process, what each rank holds, every two milliseconds; `peaks` has the most by rank."""

    def __init__(self, folder: str) -> None:
        self.peaks: dict[int, int] = {}
        self._folder = Path(folder)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Watcher:
        self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(0.002):
            for found in self._folder.iterdir():
                pid, rank = map(int, found.name.split("-"))
                try:
                    self.peaks[rank] = max(self.peaks.get(rank, 0), held_bytes(pid))
                except (FileNotFoundError, ProcessLookupError, PermissionError):
                    continue
