"""This machine's figures, measured in seconds: what its ranks compute, move and say when all of them do so at once.

    machine = calibrate(ranks=4)
    predict_step(run, machine, Link(1.0, 20))

Ranks of one machine share its cores and its memory, so each figure is taken on all of them at the same time. What is
measured is the processor's time, which others who work on the machine hardly change; where there are more ranks than
cores, they take turns, and each thing takes so many times as long. A median over tries, and then over ranks.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from itertools import accumulate, cycle
from math import inf
from pathlib import Path
from statistics import median
from typing import Any

import psutil
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from zerolab.apps.cost.machine import Machine, Rate, operation_of
from zerolab.collectives import Collectives, Link
from zerolab.flat.layout import check_count
from zerolab.offload.buffers import aligned
from zerolab.offload.files import SwapFile
from zerolab.ranks import launch
from zerolab.system import has

TRIES, WINDOW = 5, 0.02
"""How often each figure is taken, and for how many seconds."""
QUICK = Link(1000.0, 0.0)
"""A link on which messages take next to no time, but pass all that a simulated one has them pass."""
Points = list[tuple[float, float]]
"""(amount, seconds)."""


def calibrate(ranks: int = 1, collectives: str = "ring", disk: Path | None = None) -> Machine:
    """The CPU of this machine as `ranks` ranks share it, in fp32; about three seconds, and launching them.

    collectives  the implementation whose collectives are measured, as `launch` takes it
    disk         a folder on the disk whose speed is measured; None: no disk, and what is kept there takes no time

    Raises InputError for fewer ranks than 1, and for a folder that is not there.
    """
    check_count("ranks", ranks)
    link = QUICK if ranks > 1 and collectives == "ring" else None
    kwargs = {"disk": disk}
    by_rank = launch(
        measure, ranks=ranks, collectives=collectives, link=link, device="cpu", prints="quiet", kwargs=kwargs
    )
    middle = {
        key: [median(seconds) for seconds in zip(*(rank[key] for rank in by_rank), strict=True)] for key in by_rank[0]
    }
    return machine_from(middle, ranks, turns(ranks))


def turns(ranks: int) -> float:
    """How many ranks share a core."""
    cores = len(os.sched_getaffinity(0)) if has("affinity") else os.cpu_count() or 1
    return max(1.0, ranks / cores)


def machine_from(seconds: dict[str, list[float]], ranks: int, crowd: float = 1.0) -> Machine:
    """A machine from seconds of a processor, one for each of `AMOUNTS`, where `crowd` ranks share a core."""
    seconds = {key: taken if key == "disk" else [crowd * one for one in taken] for key, taken in seconds.items()}
    overhead = seconds["overhead"][0]

    def rate(kind: str) -> Rate:
        # Measured without the graph and the hooks of training: of what a call costs anyway each has only the least.
        least = seconds["call"][0]
        amounts = AMOUNTS[kind]
        taken = [max(one - least, 0.2 * one) for one in rising(seconds[kind])]
        return Rate(tuple((amount, amount / one) for amount, one in zip(amounts, taken, strict=True)))

    optimizer, memory = rate("optimizer"), rate("memory")
    return Machine(
        f"this CPU, {ranks} ranks",
        {("matmul", 4): rate("matmul"), ("attention", 4): rate("attention"), ("matmul", 2): rate("matmul16")},
        memory,
        rate("math"),
        overhead=overhead,
        # Device and host are one memory here: what goes from one to the other is read and written.
        host=memory.points[-1][1] / 2,
        disk=DISK / seconds["disk"][0] if "disk" in seconds else inf,
        optimizer=optimizer,
        host_step=optimizer.points[-1][1],
        hook=ENGINE_CALLS * seconds["call"][0],
        collective=fits(seconds),
    )


def on_wires(machine: Machine, seconds: dict[str, list[float]], ranks: int) -> Machine:
    """The machine where messages travel as they did when `carried` took these seconds."""
    return machine.at(collective=fits({name: [turns(ranks) * one for one in taken] for name, taken in seconds.items()}))


def rising(seconds: list[float]) -> list[float]:
    """Seconds of rising amounts: one that took longer than a larger one was disturbed, and gets the larger one's."""
    return list(accumulate(reversed(seconds), min))[::-1]


def fits(seconds: dict[str, list[float]]) -> dict[str, tuple[float, float]]:
    """What each collective that was measured costs a call and a byte."""
    return {name: fit(name, seconds[name]) for name in COLLECTIVES if name in seconds}


def fit(name: str, seconds: list[float]) -> tuple[float, float]:
    """(seconds a call, seconds a byte of the whole) from calls of two sizes."""
    short, long = (4 * numel for numel in WHOLES)
    first, second = seconds
    a_byte = max(second - first, 0.0) / (long - short)
    return max(first - a_byte * short, 0.0), a_byte


ROWS, WIDTHS = 512, (32, 64, 128, 256, 512, 1024)
TOKENS = (64, 128, 512)
BATCH, HEADS, DIM = 4, 4, 64
LENGTHS = tuple(2**power for power in (10, 13, 16, 18, 20, 22))
SET, POOL = 64, 2**22
"""A step touches many tensors before it comes back to one, so as many take turns, of so many elements in all."""
STEPPED = 2**20
WIDTHS16 = (128, 512)
DISK = 2**25
"""Bytes that are written to the disk and read again."""
ENGINE_CALLS = 100
"""As many calls of torch are as long as one of the engine's own, a unit gathered or a bucket reduced: its hooks, notes
and threads. Steps of eight and sixteen small layers, less those of the same layers alone, took 70 to 130."""
WHOLES = (2**12, 2**21)
"""Elements of the tensors of collectives."""
CARRIED = (200, 4)
"""How many calls with each of them are measured together: what the system counts is hundredths of a second."""
COLLECTIVES = ("all_reduce", "reduce_scatter", "all_gather")
AMOUNTS: dict[str, tuple[float, ...]] = {
    "matmul": tuple(2.0 * ROWS * width**2 for width in WIDTHS),
    "matmul16": tuple(2.0 * ROWS * width**2 for width in WIDTHS16),
    "attention": tuple(7.0 * BATCH * HEADS * DIM * tokens**2 / 2 for tokens in TOKENS),
    "memory": tuple(12.0 * length for length in LENGTHS),
    "math": tuple(8.0 * length for length in LENGTHS),
    "optimizer": (28.0 * STEPPED,),
}
"""What each measured call has to do: floating-point operations, or bytes. Of attention a forward and a backward are
measured, 7 products of which a causal mask leaves half, and their mean rate is taken for either."""


class Counter(TorchDispatchMode):
    """Counts operations that a machine would price."""

    found = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.found += operation_of(func, args, kwargs or {}, result) is not None
        return result


def measure(comm: Collectives, disk: Path | None = None) -> dict[str, list[float]]:
    """This rank's seconds for each amount: of the processor, but for the disk's."""
    found: dict[str, list[float]] = {}

    def timed(call: Callable[[], Any], times: int = 0, clock: Callable[[], float] = time.thread_time) -> float:
        # Of a collective all ranks make as many calls.
        call()
        start = clock()
        call()
        times = times or max(1, min(500, round(WINDOW / max(clock() - start, 1e-7))))
        taken = []
        for _ in range(TRIES):
            comm.barrier()
            start = clock()
            for _ in range(times):
                call()
            taken.append((clock() - start) / times)
        # Threads of one rank wait for each other busily, for longer where one of them is kept from its core.
        return median(taken) if torch.get_num_threads() == 1 else min(taken)

    few = torch.zeros(16)
    found["call"] = [timed(lambda: few.add_(1.0))]
    layers = [(torch.randn(2, ROWS, width).unbind(), torch.randn(width, width)) for width in WIDTHS]
    found["matmul"] = [timed(lambda layer=layer: multiply(*layer)) / 3 for layer in layers]  # type: ignore[misc]
    halves = [
        (torch.randn(2, ROWS, width).bfloat16().unbind(), torch.randn(width, width).bfloat16()) for width in WIDTHS16
    ]
    found["matmul16"] = [timed(lambda layer=layer: multiply(*layer)) / 3 for layer in halves]  # type: ignore[misc]
    found["attention"] = [timed(lambda tokens=tokens: attend(tokens)) for tokens in TOKENS]  # type: ignore[misc]
    found["memory"], found["math"] = [], []
    for length in LENGTHS:
        turns = cycle(torch.ones(max(1, min(SET, POOL // length)), 3, length).unbind())
        found["memory"].append(timed(lambda turns=turns: add(*next(turns))))  # type: ignore[misc]
        found["math"].append(timed(lambda turns=turns: F.gelu(next(turns)[0])))  # type: ignore[misc]
    parameter = torch.zeros(STEPPED, requires_grad=True)
    parameter.grad = torch.ones(STEPPED)
    found["optimizer"] = [timed(torch.optim.AdamW([parameter], fused=True).step)]
    found["overhead"] = [overhead_of(timed)]
    if comm.size > 1:
        # Lanes and sockets have threads of their own.
        for name in COLLECTIVES:
            found[name] = [timed(prepared(comm, name, numel), 3, time.process_time) for numel in WHOLES]
    if disk is not None:
        found["disk"] = [swapped(comm, disk)]
    return found


def carried(comm: Collectives) -> dict[str, list[float]]:
    """A rank's seconds of a processor for each collective where the kernel shapes the wires. It carries and delays
    messages in no process's name, so all that the processors of this machine did meanwhile counts, shared out among the
    ranks: nothing else should run."""
    found = dict[str, list[float]]()
    for name in COLLECTIVES:
        found[name] = []
        for numel, times in zip(WHOLES, CARRIED, strict=True):
            call, taken = prepared(comm, name, numel), []
            call()
            for _ in range(3):
                comm.barrier()
                start = busy_seconds()
                for _ in range(times):
                    call()
                comm.barrier()
                taken.append((busy_seconds() - start) / times / comm.size)
            found[name].append(median(taken))
    return found


def busy_seconds() -> float:
    """For how long this machine's processors have worked, all together, since some moment."""
    times = psutil.cpu_times()
    idle = times.idle + getattr(times, "iowait", 0.0) + getattr(times, "steal", 0.0)
    return float(time.monotonic() * (psutil.cpu_count() or 1) - idle)


def swapped(comm: Collectives, folder: Path) -> float:
    """Seconds for half of `DISK` bytes to a swap file and back, on all ranks at once."""
    file, taken = SwapFile(folder, f"calibration-{comm.rank}", [DISK // 2]), []
    buffer = aligned(file.span(0), pin=False)
    try:
        for _ in range(3):
            comm.barrier()
            start = time.perf_counter()
            file.write(0, buffer)
            file.read(0, buffer)
            taken.append(time.perf_counter() - start)
    finally:
        file.close()
    return median(taken)


def multiply(rows: tuple[torch.Tensor, ...], weight: torch.Tensor) -> None:
    """The three products of a linear layer in forward and backward."""
    inputs, gradients = rows
    torch.mm(inputs, weight.t())
    torch.mm(gradients, weight)
    torch.mm(gradients.t(), inputs)


def add(one: torch.Tensor, other: torch.Tensor, out: torch.Tensor) -> None:
    torch.add(one, other, out=out)


def attend(tokens: int) -> None:
    query = torch.ones(BATCH, HEADS, tokens, DIM, requires_grad=True)
    F.scaled_dot_product_attention(query, query, query, is_causal=True).backward(query.detach())


def overhead_of(timed: Callable[[Callable[[], Any]], float]) -> float:
    """Seconds of an operation on few numbers in a small net that trains, its graph and modules with it."""
    net = torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU()) for _ in range(8)))
    some = torch.zeros(4, 4)

    def train() -> None:
        net(some).sum().backward()

    with Counter() as counter:
        train()
    return timed(train) / counter.found


def prepared(comm: Collectives, name: str, numel: int) -> Callable[[], Any]:
    whole, chunk = comm.allocate(numel).zero_(), comm.allocate(numel // comm.size).zero_()
    return {
        "all_reduce": lambda: comm.all_reduce(whole),
        "reduce_scatter": lambda: comm.reduce_scatter(whole, out=chunk),
        "all_gather": lambda: comm.all_gather(chunk, out=whole),
    }[name]
