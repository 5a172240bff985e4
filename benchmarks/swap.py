"""How fast records come and go between host memory and a disk: our lane and pipeline beside plain system calls.

    python -m benchmarks.swap                            256 MiB in the system's folder for temporary files
    python -m benchmarks.swap --folder F --mib 1024 --record 64 --rounds 15 --json swap.json

Method. One `SwapFile` of `--mib` MiB in records of `--record` MiB, written once beforehand, since a disk's first write
to a place is slower. Then come rounds. In each, the file is read whole, written whole, and read and written at the
same time, and each of these is done by every contender, one after the other, in turned order every other round:

  * 1 thread: `os.preadv` and `os.pwritev` of one block after the other, through a descriptor of its own; to read and
    write it does one block of each in turn;
  * threads: the same blocks, taken from a common list by as many threads as the lane has in each direction;
  * ours: `Lane` with 3 buffers, the next transfer issued when the oldest has ended; to read and write, `pipeline` with
    3 buffers and nothing to compute, so group k + 1 is read while k - 1 is written.

All move blocks of the lane's piece (or a record, if smaller) from and to page-aligned memory, past the page cache if
the file system allows; else every contender's writes end with `fdatasync`. Megabytes (10^6) per second count what is
read and what is written. The table gives medians over the rounds with the smallest and largest in brackets; the ratio
is ours over the faster of the two others in the same round, so it compares neighbours in time.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable

import torch
from tqdm import tqdm

from zerolab.offload.buffers import aligned
from zerolab.offload.files import SwapFile
from zerolab.offload.lane import PIECE, THREADS, Lane, Transfer, pipeline

KINDS = {"read": 1, "write": 1, "read and write": 2}
"""And how often the file's bytes move."""
OURS, ONE, SEVERAL = "ours", "1 thread", "threads"
BUFFERS = 3

Rates = dict[str, dict[str, list[float]]]
"""Megabytes per second by kind and contender, in each round."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", default=tempfile.gettempdir(), help="on the disk to measure")
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--record", type=int, default=32, help="MiB")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=THREADS, help="of the lane, in each direction")
    parser.add_argument("--piece", type=float, default=PIECE / 2**20, help="MiB")
    parser.add_argument("--json", metavar="FILE", help="write every measurement to a file, too")
    options = parser.parse_args()

    sizes = [options.record * 2**20] * max(1, options.mib // options.record)
    piece = int(options.piece * 2**20)
    with SwapFile(options.folder, "benchmark", sizes) as file, Lane([file], options.threads, piece) as lane:
        rates = measure(file, lane, options.threads, piece, options.rounds)
        how = "past the page cache" if file.direct else f"through the page cache ({file.why_not})"
        print(f"{file.nbytes >> 20} MiB in records of {options.record}, {how}")
    print(table(rates, options.rounds))
    if options.json:
        with open(options.json, "w", encoding="utf-8") as out:
            json.dump(rates, out)


def measure(file: SwapFile, lane: Lane, threads: int, piece: int, rounds: int) -> Rates:
    buffers = [aligned(file.span(0), pin=False).fill_(number) for number in range(BUFFERS)]
    for i in range(len(file.sizes)):
        file.write(i, buffers[0])
    fd = os.open(file.path, os.O_RDWR | (os.O_DIRECT if file.direct else 0))
    raw = Raw(fd, file, buffers, min(piece, file.span(0)))
    contenders: dict[str, Callable[[str], None]] = {
        ONE: raw.one,
        SEVERAL: lambda kind: raw.several(kind, threads),
        OURS: lambda kind: ours(kind, file, lane, buffers),
    }
    rates: Rates = {kind: {name: [] for name in contenders} for kind in KINDS}
    for at in tqdm(range(-1, rounds), desc="rounds", file=sys.stderr):
        for kind, times in KINDS.items():
            for name in list(contenders)[:: 1 if at % 2 else -1]:
                start = time.perf_counter()
                contenders[name](kind)
                elapsed = time.perf_counter() - start
                if at >= 0:
                    rates[kind][name].append(times * file.nbytes / elapsed / 1e6)
    os.close(fd)
    return rates


class Raw:
    """The file's blocks, moved by system calls and nothing else."""

    def __init__(self, fd: int, file: SwapFile, buffers: list[torch.Tensor], block: int) -> None:
        self._fd = fd
        self._direct = file.direct
        # Where each block lies in the file, and its memory.
        self._blocks = [
            (file.offset(i) + start, memoryview(buffers[i % BUFFERS].numpy())[start : start + block])
            for i in range(len(file.sizes))
            for start in range(0, file.span(0), block)
        ]

    def one(self, kind: str) -> None:
        for block in self._blocks:
            for each in ("read", "write") if kind == "read and write" else (kind,):
                self._move(each, block)

    def several(self, kind: str, threads: int) -> None:
        working = []
        for each in ("read", "write") if kind == "read and write" else (kind,):
            blocks = deque(self._blocks)
            working += [threading.Thread(target=self._drain, args=(each, blocks)) for _ in range(threads)]
        for thread in working:
            thread.start()
        for thread in working:
            thread.join()

    def _drain(self, kind: str, blocks: deque[tuple[int, memoryview]]) -> None:
        while True:
            try:
                block = blocks.popleft()
            except IndexError:
                return
            self._move(kind, block)

    def _move(self, kind: str, block: tuple[int, memoryview]) -> None:
        at, memory = block
        moved = (os.preadv if kind == "read" else os.pwritev)(self._fd, [memory], at)
        assert moved == len(memory), "a transfer stopped early"
        if not self._direct:
            if kind == "write":
                os.fdatasync(self._fd)
            os.posix_fadvise(self._fd, at, moved, os.POSIX_FADV_DONTNEED)


def ours(kind: str, file: SwapFile, lane: Lane, buffers: list[torch.Tensor]) -> None:
    records = range(len(file.sizes))
    if kind == "read and write":
        walk = pipeline(
            records, lambda i, at: lane.read(file, i, buffers[at]), lambda i, at: lane.write(file, i, buffers[at]), 3
        )
        for _ in walk:
            pass
        return
    issue = lane.read if kind == "read" else lane.write
    under_way: deque[Transfer] = deque()
    for i in records:
        if len(under_way) == BUFFERS:
            under_way.popleft().wait()
        under_way.append(issue(file, i, buffers[i % BUFFERS]))
    for transfer in under_way:
        transfer.wait()


def table(rates: Rates, rounds: int) -> str:
    """Markdown: megabytes per second of all, and the ratio."""
    lines = [
        f"torch {torch.__version__}, Python {platform.python_version()}, {platform.machine()}, {os.cpu_count()} cores; "
        f"{rounds} rounds",
        "",
        "| | 1 thread, MB/s | threads, MB/s | ours, MB/s | ours / the faster |",
        "|---|---|---|---|---|",
    ]
    for kind, of in rates.items():
        ratios = [mine / max(others) for mine, *others in zip(of[OURS], of[ONE], of[SEVERAL], strict=True)]
        speeds = [spread(of[name], 0) for name in (ONE, SEVERAL, OURS)]
        lines.append(f"| {kind} | " + " | ".join([*speeds, f"**{spread(ratios, 2)}**"]) + " |")
    return "\n".join(lines)


def spread(values: list[float], digits: int) -> str:
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


if __name__ == "__main__":
    main()
