"""How long it takes to start ranks, let them add something, and end them: `launch` beside torch's own `spawn`.

    python -m benchmarks.launch                 4 ranks
    python -m benchmarks.launch --ranks 2 --rounds 10

Method. Both start N processes on the CPU, which join over gloo through a file, all-reduce 1000 floats once, and end;
the clock runs in the parent from the call until every process is gone. One process measures both, in rounds: in each,
`launch` five times and `torch.multiprocessing.spawn` once, so that what else the machine does falls on both. `launch`
is measured warm, as every call but a program's first is; the first, which starts the server that imports torch, is
given by itself. The ratio is that of a round (median of its five launches); the table gives medians over all runs, and
the smallest and largest in brackets. `--collectives torch` uses gloo's all-reduce in `launch` as well, `ring` ours.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
import torch.multiprocessing

if TYPE_CHECKING:
    from zerolab.collectives import Collectives

LAUNCHES_PER_ROUND = 5
NUMEL = 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--collectives", choices=("auto", "shared", "ring", "torch"), default="auto")
    options = parser.parse_args()

    # Not at the top, since a spawned process imports this file and has no use for it.
    from zerolab.ranks import launch

    def ours() -> None:
        launch(sum_ones, ranks=options.ranks, collectives=options.collectives, device="cpu", timeout=120)

    def torchs() -> None:
        with tempfile.TemporaryDirectory() as folder:
            arguments = (options.ranks, str(Path(folder) / "store"))
            torch.multiprocessing.spawn(join_and_sum_ones, arguments, nprocs=options.ranks)

    first = seconds_of(ours)
    rounds = [
        ([seconds_of(ours) for _ in range(LAUNCHES_PER_ROUND)], seconds_of(torchs)) for _ in range(options.rounds)
    ]
    print(table(first, rounds, options.ranks, options.collectives))


def table(first: float, rounds: list[tuple[list[float], float]], ranks: int, collectives: str) -> str:
    """Markdown: seconds of both, and the ratio."""
    ours = [seconds for launches, _ in rounds for seconds in launches]
    torchs = [spawned for _, spawned in rounds]
    ratios = [spawned / statistics.median(launches) for launches, spawned in rounds]
    return "\n".join(
        [
            f"torch {torch.__version__}, Python {platform.python_version()}, {platform.machine()}, "
            f"{os.cpu_count()} cores; {ranks} ranks, one all-reduce ({collectives}), {len(rounds)} rounds",
            "",
            "| | seconds |",
            "|---|---|",
            f"| launch, the first of a program | {first:.2f} |",
            f"| launch, every later one | {spread(ours)} |",
            f"| torch.multiprocessing.spawn | {spread(torchs)} |",
            f"| spawn / launch | {spread(ratios, 0)} times |",
        ]
    )


def spread(values: list[float], digits: int = 2) -> str:
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def seconds_of(call: Callable[[], None]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def sum_ones(comm: Collectives) -> None:
    """What a rank of `launch` does."""
    total = comm.all_reduce(torch.ones(NUMEL))
    assert total[0] == comm.size


def join_and_sum_ones(rank: int, ranks: int, store: str) -> None:
    """What a process of `spawn` does, in as few words of torch as it takes."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", store=dist.FileStore(store, ranks), rank=rank, world_size=ranks, timeout=timedelta(seconds=120)
    )
    total = torch.ones(NUMEL)
    dist.all_reduce(total)
    assert total[0] == ranks
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
