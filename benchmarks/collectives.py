"""How fast our collectives are beside torch's own (gloo), on the CPU, and beside what the memory allows.

    python -m benchmarks.collectives                       16 and 64 MB on 2 and on 4 ranks
    python -m benchmarks.collectives --ranks 3 --megabytes 32 --rounds 20 --json collectives.json

Method. One launch for each number of ranks and size; in it, `SharedMemoryCollectives`, `RingCollectives` and
`TorchCollectives` use the same processes and cores. Each has tensors from its own `allocate`, which are filled and
touched beforehand, writes its results into memory that is given (`out=`), and is called once before it is timed. Then
come rounds: in each, for every collective, the implementations run one after the other, in turned order every other
round, so that what else the machine does falls on all. A barrier goes before each call, and a call lasts as long as on
its slowest rank. The table gives medians over the rounds with the smallest and largest in brackets; a ratio is that of
a round, so it compares neighbours in time. Each rank has its share of the cores. A tensor of M megabytes (10^6 bytes,
fp32) is the whole: what an all-reduce sums, what a reduce-scatter takes and what an all-gather gives.

The bound is the bytes that a rank must read and write (`least_bytes`), over the bandwidth at which all ranks at once
copy tensors of that size in the same rounds, reading and writing counted.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from tqdm import tqdm

from zerolab.collectives import Collectives, build
from zerolab.collectives.transport import Transport
from zerolab.flat import chunk_sizes
from zerolab.ranks import launch

COLLECTIVES = ("reduce_scatter", "all_gather", "all_reduce")
IMPLEMENTATIONS = ("shared", "ring", "torch")
COPY = "copy"

Seconds = dict[str, dict[str, list[float]]]
"""By collective and implementation, in each round; under "copy" what a plain copy of the whole took."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--megabytes", type=float, nargs="+", default=[16.0, 64.0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", metavar="FILE", help="write every measurement to a file, too")
    options = parser.parse_args()

    measured: list[tuple[int, float, Seconds]] = []
    cases = [(ranks, megabytes) for megabytes in options.megabytes for ranks in options.ranks]
    for ranks, megabytes in tqdm(cases, desc="ranks and sizes", file=sys.stderr):
        numel = int(megabytes * 1e6 / 4)
        by_rank = launch(
            measure, numel, options.rounds, ranks=ranks, collectives="transport", device="cpu", timeout=600
        )
        measured.append((ranks, megabytes, slowest(by_rank)))
    print(table(measured, options.rounds))
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump([{"ranks": r, "megabytes": m, "seconds": seconds} for r, m, seconds in measured], file)


def measure(transport: Transport, numel: int, rounds: int) -> Seconds:
    """This rank's seconds."""
    comms = {name: build(transport, name) for name in IMPLEMENTATIONS}
    calls = {name: prepare(comm, numel) for name, comm in comms.items()}
    one, other = torch.zeros(numel), torch.zeros(numel)
    calls[COPY] = {COPY: lambda: one.copy_(other)}
    seconds: Seconds = {collective: {name: [] for name in IMPLEMENTATIONS} for collective in COLLECTIVES}
    seconds[COPY] = {COPY: []}
    for at in range(-1, rounds):
        for collective, of in seconds.items():
            for name in list(of)[:: 1 if at % 2 else -1]:
                dist.barrier()
                start = time.perf_counter()
                calls[name][collective]()
                elapsed = time.perf_counter() - start
                if at >= 0:
                    of[name].append(elapsed)
    dist.barrier()
    for comm in comms.values():
        comm.close()
    return seconds


def prepare(comm: Collectives, numel: int) -> dict[str, Callable[[], Any]]:
    """Calls on tensors that are there already. Sums of zeros, so that they may be repeated for ever."""
    whole, chunk = comm.allocate(numel).zero_(), comm.allocate(chunk_sizes(numel, comm.size)[comm.rank]).zero_()
    return {
        "reduce_scatter": lambda: comm.reduce_scatter(whole, out=chunk),
        "all_gather": lambda: comm.all_gather(chunk, out=whole),
        "all_reduce": lambda: comm.all_reduce(whole),
    }


def least_bytes(collective: str, nbytes: int, ranks: int) -> float:
    """What a rank must read and write, at least, for a tensor of `nbytes`: a reduce-scatter reads its chunk N times
    and writes it once, an all-gather reads and writes the whole; an all-reduce does both, but for the chunk that it
    has written already."""
    chunk = nbytes / ranks
    return {
        "reduce_scatter": nbytes + chunk,
        "all_gather": 2 * nbytes,
        "all_reduce": 2 * nbytes,
        COPY: 2 * nbytes,
    }[collective]


def slowest(by_rank: list[Seconds]) -> Seconds:
    """Each call as long as on its slowest rank."""

    def longest(collective: str, name: str) -> list[float]:
        return [max(times) for times in zip(*(of_rank[collective][name] for of_rank in by_rank), strict=True)]

    return {collective: {name: longest(collective, name) for name in of} for collective, of in by_rank[0].items()}


def table(measured: list[tuple[int, float, Seconds]], rounds: int) -> str:
    """Markdown: milliseconds of all, and the ratios."""
    lines = [
        f"torch {torch.__version__}, Python {platform.python_version()}, {platform.machine()}, {os.cpu_count()} cores; "
        f"{rounds} rounds",
        "",
        "| MB | ranks | collective | shared, ms | ring, ms | gloo, ms | gloo / shared | gloo / ring | shared / bound |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for ranks, megabytes, seconds in measured:
        for collective in COLLECTIVES:
            of = seconds[collective]
            times = [spread([1e3 * elapsed for elapsed in of[name]], 1) for name in IMPLEMENTATIONS]
            per_byte = [elapsed / least_bytes(COPY, 1, ranks) for elapsed in seconds[COPY][COPY]]
            bound = [each * least_bytes(collective, 1, ranks) for each in per_byte]
            ratios = [ratio(of["torch"], of["shared"]), ratio(of["torch"], of["ring"]), ratio(of["shared"], bound)]
            lines.append(f"| {megabytes:g} | {ranks} | {collective} | " + " | ".join([*times, *ratios]) + " |")
    return "\n".join(lines)


def ratio(these: list[float], those: list[float]) -> str:
    return f"**{spread([a / b for a, b in zip(these, those, strict=True)], 2)}**"


def spread(values: list[float], digits: int) -> str:
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


if __name__ == "__main__":
    main()
