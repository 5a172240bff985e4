"""How fast our ring is beside torch's own collectives (gloo), on the CPU.

    python -m benchmarks.collectives                       16 MB on 2 and on 4 ranks
    python -m benchmarks.collectives --ranks 3 --megabytes 64 --rounds 20 --json ring.json

Method. One launch for each number of ranks; in it, `RingCollectives` and `TorchCollectives` use the same processes,
the same gloo connections and the same tensors, which are filled and touched beforehand. Both write their results into
memory that is given (`out=`), and are called once before they are timed. Then come rounds: in each, for every
collective, both implementations run one after the other, in turned order every other round, so that what else the
machine does falls on both. A barrier goes before each call, and a call lasts as long as on its slowest rank. The table
gives medians over the rounds with the smallest and largest in brackets; the ratio is that of a round, so it compares
neighbours in time. Beside it stands the ratio of the processor time that all ranks together spend on the call and on
the barrier after it: what the ratio tends to where ranks keep all cores busy, whatever else the machine does. Each
rank has its share of the cores. A tensor of M megabytes (10^6 bytes, fp32) is the whole: what an all-reduce sums, what
a reduce-scatter takes and what an all-gather gives.
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

Seconds = dict[str, dict[str, list[tuple[float, float]]]]
"""By collective and implementation: elapsed and processor time of each round."""


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
        measured[ranks] = together(by_rank)
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
                start, busy = time.perf_counter(), time.process_time()
                call(comms[name])
                elapsed = time.perf_counter() - start
                dist.barrier()
                if at >= 0:
                    seconds[collective][name].append((elapsed, time.process_time() - busy))
    return seconds


def prepare(collective: str, numel: int, size: int, rank: int) -> Callable[[Collectives], Any]:
    """A call on tensors that are there already. A sum of zeros, so that it may be repeated for ever."""
    whole, chunk = torch.zeros(numel), torch.zeros(chunk_sizes(numel, size)[rank])
    if collective == "reduce_scatter":
        return lambda comm: comm.reduce_scatter(whole, out=chunk)
    if collective == "all_gather":
        return lambda comm: comm.all_gather(chunk, out=whole)
    return lambda comm: comm.all_reduce(whole)


def together(by_rank: list[Seconds]) -> Seconds:
    """Of all ranks: the longest elapsed time and the sum of processor times."""
    joined: Seconds = {}
    for collective in COLLECTIVES:
        rounds = {
            name: zip(*(of_rank[collective][name] for of_rank in by_rank), strict=True) for name in IMPLEMENTATIONS
        }
        joined[collective] = {
            name: [(max(elapsed for elapsed, _ in one), sum(busy for _, busy in one)) for one in of]
            for name, of in rounds.items()
        }
    return joined


def table(measured: dict[int, Seconds], megabytes: float, rounds: int) -> str:
    """Markdown: milliseconds of both, and the ratio."""
    lines = [
        f"torch {torch.__version__}, Python {platform.python_version()}, {platform.machine()}, {os.cpu_count()} cores; "
        f"{megabytes:g} MB, {rounds} rounds",
        "",
        "| ranks | collective | ring, ms | torch (gloo), ms | torch / ring | of processor time |",
        "|---|---|---|---|---|---|",
    ]
    for ranks, seconds in measured.items():
        for collective, of in seconds.items():
            ring, torchs = (spread([1e3 * elapsed for elapsed, _ in of[name]], 1) for name in IMPLEMENTATIONS)
            pairs = list(zip(of["ring"], of["torch"], strict=True))
            elapsed = spread([theirs[0] / ours[0] for ours, theirs in pairs], 2)
            busy = spread([theirs[1] / ours[1] for ours, theirs in pairs], 2)
            lines.append(f"| {ranks} | {collective} | {ring} | {torchs} | **{elapsed}** | {busy} |")
    return "\n".join(lines)


def spread(values: list[float], digits: int) -> str:
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


if __name__ == "__main__":
    main()
