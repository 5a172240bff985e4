"""This machine's figures, measured on all of its ranks at once, which share its cores and its memory.

The state is a step's: a rank's threads, memory that no cache holds, collectives on the lane, the wall's clock (where
ranks take turns on a core, the processor's). Tries of one figure are seconds apart, so they say how much the machine's
speed changes. Their median counts, then that of ranks.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache, partial
from itertools import accumulate, cycle
from math import inf
from pathlib import Path
from statistics import median, quantiles
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
from zerolab.ranks.job import threads_per_rank

TRIES, WINDOW = 5, 0.01
"""How often each figure is taken, and for how many seconds."""
QUICK = Link(1000.0, 0.0)
"""A link on which messages take next to no time, but pass all that a simulated one has."""
Call = Callable[[], Any]
Seconds = dict[str, list[float]]
"""By what was measured, for each of its amounts."""


def calibrate(ranks: int = 1, collectives: str = "ring", disk: Path | None = None) -> Machine:
    """The CPU of this machine as `ranks` ranks share it; some ten seconds, and twice that where they share cores.

    collectives  the implementation whose collectives are measured, as `launch` takes it
    disk         a folder on the disk whose speed is measured; None: what is kept on a disk takes no time
    """
    return machine_from(measure_ranks(ranks, collectives, disk), ranks)


def measure_ranks(ranks: int, collectives: str = "ring", disk: Path | None = None) -> Seconds:
    """What `machine_from` makes a machine of."""
    check_count("ranks", ranks)
    link = QUICK if ranks > 1 and collectives == "ring" else None
    by_rank = launch(measure, disk, ranks=ranks, collectives=collectives, link=link, device="cpu", prints="quiet")
    found = {kind: [*map(median, zip(*(rank[kind] for rank in by_rank), strict=True))] for kind in by_rank[0]}
    return found | {"turns": [max(1.0, ranks / threads_per_rank(1))]}


def machine_from(measured: Seconds, ranks: int) -> Machine:
    """A machine from seconds for each of `AMOUNTS`, where "turns" ranks share a core."""
    (crowd,) = measured.get("turns", [1.0])
    seconds = {kind: [crowd * one for one in taken] for kind, taken in measured.items()}
    least = seconds["call"][0]

    def rate(kind: str) -> Rate:
        # What took longer than a larger amount was disturbed.
        rising = [*accumulate(reversed(seconds[kind]), min)][::-1]
        # Measured without the graph and the hooks of training, whose cost stands apart.
        taken = [max(one - least, 0.2 * one) for one in rising]
        return Rate(tuple((amount, amount / one) for amount, one in zip(AMOUNTS[kind], taken, strict=True)))

    optimizer, memory = rate("optimizer"), rate("memory")
    return Machine(
        f"this CPU, {ranks} ranks",
        {("matmul", 4): rate("matmul"), ("attention", 4): rate("attention"), ("matmul", 2): rate("matmul16")},
        memory,
        rate("math"),
        rate("tanh") if "tanh" in seconds else None,
        overhead=seconds["overhead"][0],
        # Device and host are one memory here, which is read and written.
        host=memory.points[-1][1] / 2,
        disk=DISK / measured["disk"][0] if "disk" in measured else inf,
        optimizer=optimizer,
        host_step=optimizer.points[-1][1],
        per_unit_overhead=ENGINE_CALLS * least,
        collective={name: fit_line(*seconds[name]) for name in COLLECTIVES if name in seconds},
        spread=measured.get("spread", [0.0])[0],
    )


def fit_line(short: float, long: float) -> tuple[float, float]:
    """(seconds a call, seconds a byte of the whole) of a collective."""
    few, many = (4 * numel for numel in WHOLES)
    a_byte = max(long - short, 0.0) / (many - few)
    return max(short - a_byte * few, 0.0), a_byte


def multiply(inputs: torch.Tensor, gradients: torch.Tensor, weight: torch.Tensor) -> None:
    """The three products of a linear layer in forward and backward."""
    torch.mm(inputs, weight.t())
    torch.mm(gradients, weight)
    torch.mm(gradients.t(), inputs)


def make_turns(
    call: Callable[..., Any], width: int, rows: tuple[int, ...] = (1, 1, 1), dtype: torch.dtype = torch.float32
) -> Call:
    """The call on tensors of so many rows, others each time: as in a step, no cache holds the next ones."""
    memory, numel = cold_memory().view(dtype), sum(rows) * width
    turns = max(1, min(64, memory.numel() // numel))
    taken = memory[: turns * numel].view(turns, sum(rows), width)
    turn = cycle(zip(*taken.split(rows, 1), strict=True))
    return lambda: call(*next(turn))


@cache
def cold_memory() -> torch.Tensor:
    return torch.ones(COLD)


def make_attention(tokens: int) -> Call:
    """A forward and a backward."""
    query = torch.ones(BATCH, HEADS, tokens, DIM, requires_grad=True)
    attend = partial(F.scaled_dot_product_attention, query, query, query, is_causal=True)
    return lambda: attend().backward(query.detach())


def make_adamw() -> Call:
    parameter = torch.zeros(STEPPED, requires_grad=True)
    parameter.grad = torch.ones(STEPPED)
    return torch.optim.AdamW([parameter], fused=True).step


ROWS, STEPPED, COLD = 512, 2**22, 3 * 2**22
BATCH, HEADS, DIM = 4, 4, 64
LENGTHS = tuple(2**power for power in (10, 13, 16, 18, 20, 22))
DISK = 2**25
"""Bytes that are written to the disk and read again."""
ENGINE_CALLS = 100
"""Calls of torch that take as long as a unit gathered or a bucket reduced; small layers took 70 to 130."""
COLLECTIVES = ("all_reduce", "reduce_scatter", "all_gather")
WHOLES = (2**12, 2**21)
"""Elements of the tensors of collectives."""
CARRIED = (200, 4)
"""How many calls with each are measured together: the system counts hundredths of a second."""
CALLS: dict[str, list[tuple[float, Callable[[], Call]]]] = {
    "matmul": [
        (2.0 * ROWS * width**2, partial(make_turns, multiply, width, (ROWS, ROWS, width)))
        for width in (32, 64, 128, 256, 512, 1024)
    ],
    "matmul16": [
        (2.0 * ROWS * width**2, partial(make_turns, multiply, width, (ROWS, ROWS, width), torch.bfloat16))
        for width in (128, 512)
    ],
    "attention": [
        (7.0 * BATCH * HEADS * DIM * tokens**2, partial(make_attention, tokens)) for tokens in (64, 128, 512)
    ],
    "memory": [
        (12.0 * length, partial(make_turns, lambda one, other, out: torch.mul(one, other, out=out), length))
        for length in LENGTHS
    ],
    "math": [(8.0 * length, partial(make_turns, lambda one, *_: F.gelu(one), length)) for length in LENGTHS],
    "tanh": [(8.0 * n, partial(make_turns, lambda one, *_: F.gelu(one, approximate="tanh"), n)) for n in LENGTHS],
    "optimizer": [(28.0 * STEPPED, make_adamw)],
}
"""What is measured, and the operations or bytes of a call: of a linear layer those of one product, of attention seven,
of which a causal mask leaves half."""
AMOUNTS = {kind: [amount for amount, _ in calls] for kind, calls in CALLS.items()}


class Counter(TorchDispatchMode):
    """Counts operations that a machine would price."""

    found = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.found += operation_of(func, args, kwargs or {}, result) is not None
        return result


def time_call(comm: Collectives, call: Call, clock: Call, times: int = 0) -> float:
    """Seconds of a call, on all ranks at once; a collective needs the same `times` on all."""
    call()
    if not times:
        start = clock()
        call()
        times = max(1, min(500, round(WINDOW / max(clock() - start, 1e-7))))
    comm.barrier()
    start = clock()
    for _ in range(times):
        call()
    return float(clock() - start) / times


def measure(comm: Collectives, disk: Path | None = None) -> Seconds:
    """This rank's seconds for each amount, and as "spread" the share of them within which half of its tries are."""
    tries = [measure_once(comm, disk) for _ in range(TRIES)]
    taken = {kind: [*zip(*(one[kind] for one in tries), strict=True)] for kind in tries[0]}
    quarters = [quantiles(each, method="inclusive") for kind in CALLS for each in taken[kind]]
    spread = median((high - low) / 2 / middle for low, middle, high in quarters)
    return {kind: [*map(median, each)] for kind, each in taken.items()} | {"spread": [spread]}


def measure_once(comm: Collectives, disk: Path | None) -> Seconds:
    clock = time.thread_time if comm.size > threads_per_rank(1) else time.perf_counter
    few = torch.zeros(16)
    found = {"call": [time_call(comm, lambda: few.add_(1.0), clock)], "overhead": [time_overhead(comm, clock)]}
    for kind, calls in CALLS.items():
        found[kind] = [time_call(comm, make(), clock) / (3 if "matmul" in kind else 1) for _, make in calls]
    for name in COLLECTIVES if comm.size > 1 else ():
        # Lanes and sockets have threads of their own, and a step computes while they wait.
        found[name] = [
            time_call(comm, make_call(comm, name, numel, times), time.process_time, times)
            for numel, times in zip(WHOLES, (16, 4), strict=True)
        ]
    return found if disk is None else found | {"disk": [time_disk(comm, disk)]}


def measure_carrying(comm: Collectives) -> Seconds:
    """A rank's seconds for each collective where the kernel shapes the wires. That works in no process's name, so all
    that the processors did meanwhile counts, shared out among the ranks."""

    def clock() -> float:
        comm.barrier()
        return busy_seconds() / comm.size

    def carry(name: str, numel: int, times: int) -> float:
        return median(time_call(comm, make_call(comm, name, numel, 4), clock, times) for _ in range(TRIES))

    return {name: [*map(partial(carry, name), WHOLES, CARRIED)] for name in COLLECTIVES}


def busy_seconds() -> float:
    """For how long this machine's processors have worked, all together, since some moment."""
    times = psutil.cpu_times()
    idle = times.idle + getattr(times, "iowait", 0.0) + getattr(times, "steal", 0.0)
    return float(time.monotonic() * (psutil.cpu_count() or 1) - idle)


def time_disk(comm: Collectives, folder: Path) -> float:
    """Seconds for half of `DISK` bytes to a swap file and back, on all ranks at once."""
    file = SwapFile(folder, f"calibration-{comm.rank}", [DISK // 2])
    buffer = aligned(file.span(0), pin=False)

    def swap() -> None:
        file.write(0, buffer)
        file.read(0, buffer)

    try:
        return time_call(comm, swap, time.perf_counter, 1)
    finally:
        file.close()


def time_overhead(comm: Collectives, clock: Call) -> float:
    """Seconds of an operation in a small net that trains, its graph and modules with it."""
    net = torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU()) for _ in range(8)))
    some = torch.zeros(4, 4)

    def train() -> None:
        net(some).sum().backward()

    with Counter() as counter:
        train()
    return time_call(comm, train, clock) / counter.found


def make_call(comm: Collectives, name: str, numel: int, buffers: int) -> Call:
    """A collective as a step issues it: on the lane."""
    turn = cycle([(comm.allocate(numel).zero_(), comm.allocate(numel // comm.size).zero_()) for _ in range(buffers)])
    issue = {
        "all_reduce": lambda whole, _: comm.all_reduce_async(whole),
        "reduce_scatter": lambda whole, chunk: comm.reduce_scatter_async(whole, out=chunk),
        "all_gather": lambda whole, chunk: comm.all_gather_async(chunk, out=whole),
    }[name]
    return lambda: issue(*next(turn)).wait()
