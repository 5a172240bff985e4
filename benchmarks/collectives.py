"""How fast our ring is beside torch's own collectives (gloo), on the CPU.

    python -m benchmarks.collectives                       16 MB on 2 and on 4 ranks
    python -m benchmarks.collectives --ranks 3 --megabytes 64 --rounds 20 --json ring.json

Method. One launch for each number of ranks; in it, `RingCollectives` and `TorchCollectives` use the same processes,
the same gloo connections and the same tensors, which are filled and touched beforehand. Both write their results into
memory that is given (`out=`), and are called once before they are timed. Then come rounds: in each, for every
collective, both implementations run one after the other, in turned order every other round, so that what else the
machine does falls on both. A barrier goes before each call, and a call lasts as long as on its slowest rank. The table
gives medians over the rounds with the smallest and largest in brackets; the ratio is that of a round, so it compares
neighbours in time. Each rank has its share of the cores. A tensor of M megabytes (10^6 bytes, fp32) is the whole: what
an all-reduce sums, what a reduce-scatter takes and what an all-gather gives.
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

from zerolab.collectives import Collectives, build
from zerolab.collectives.transport import Transport
from zerolab.flat import chunk_sizes
from zerolab.ranks import launch

COLLECTIVES = ("reduce_scatter", "all_gather", "all_reduce")
IMPLEMENTATIONS = ("ring", "torch")

Seconds = dict[str, dict[str, list[float]]]
"""By collective and implementation, of each round."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--megabytes", type=float, default=16.0)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", metavar="FILE", help="write every measurement to a file, too")
    options = parser.parse_args()

    numel = int(options.megabytes * 1e6 / 4)
    measured: dict[int, Seconds] = {}
    for ranks in options.ranks:
        print(f"{ranks} ranks: {options.rounds} rounds of {', '.join(COLLECTIVES)} ...", file=sys.stderr)
        by_rank = launch(
            measure, numel, options.rounds, ranks=ranks, collectives="transport", device="cpu", timeout=600
        )
        measured[ranks] = slowest(by_rank)
    print(table(measured, options.megabytes, options.rounds))
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"megabytes": options.megabytes, "seconds": measured}, file)


def measure(transport: Transport, numel: int, rounds: int) -> Seconds:
    """This rank's seconds."""
    comms = {name: build(transport, name) for name in IMPLEMENTATIONS}
    calls = {collective: prepare(collective, numel, transport.size, transport.rank) for collective in COLLECTIVES}
    seconds: Seconds = {collective: {name: [] for name in IMPLEMENTATIONS} for collective in COLLECTIVES}
    for at in range(-1, rounds):
        for collective, call in calls.items():
            for name in IMPLEMENTATIONS[:: 1 if at % 2 else -1]:
                dist.barrier()
                start = time.perf_counter()
                call(comms[name])
                if at >= 0:
                    seconds[collective][name].append(time.perf_counter() - start)
    return seconds


def prepare(collective: str, numel: int, size: int, rank: int) -> Callable[[Collectives], Any]:
    """A call on tensors that are there already. A sum of zeros, so that it may be repeated for ever."""
    whole, chunk = torch.zeros(numel), torch.zeros(chunk_sizes(numel, size)[rank])
    if collective == "reduce_scatter":
        return lambda comm: comm.reduce_scatter(whole, out=chunk)
    if collective == "all_gather":
        return lambda comm: comm.all_gather(chunk, out=whole)
    return lambda comm: comm.all_reduce(whole)


def slowest(by_rank: list[Seconds]) -> Seconds:
    return {
        collective: {
            name: [max(times) for times in zip(*(of_rank[collective][name] for of_rank in by_rank), strict=True)]
            for name in IMPLEMENTATIONS
        }
        for collective in COLLECTIVES
    }


def table(measured: dict[int, Seconds], megabytes: float, rounds: int) -> str:
    """Markdown: milliseconds of both, and the ratio."""
    lines = [
        f"torch {torch.__version__}, Python {platform.python_version()}, {platform.machine()}, {os.cpu_count()} cores; "
        f"{megabytes:g} MB, {rounds} rounds",
        "",
        "| ranks | collective | ring, ms | torch (gloo), ms | torch / ring |",
        "|---|---|---|---|---|",
    ]
    for ranks, seconds in measured.items():
        for collective, of in seconds.items():
            ratios = [torchs / ring for ring, torchs in zip(of["ring"], of["torch"], strict=True)]
            ring, torchs = (spread([1e3 * second for second in of[name]], 1) for name in IMPLEMENTATIONS)
            lines.append(f"| {ranks} | {collective} | {ring} | {torchs} | **{spread(ratios, 2)}** |")
    return "\n".join(lines)


def spread(values: list[float], digits: int) -> str:
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


if __name__ == "__main__":
    main()
