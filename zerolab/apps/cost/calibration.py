"""This machine's figures, measured on all of its ranks at once, which share its cores and its memory.

What is measured is the processor's time, which others who work on the machine hardly change; where there are more ranks
than cores, they take turns. A median over tries, and then over ranks.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
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
from zerolab.ranks.job import threads_per_rank

TRIES, WINDOW = 5, 0.02
"""How often each figure is taken, and for how many seconds."""
QUICK = Link(1000.0, 0.0)
"""A link on which messages take next to no time, but pass all that a simulated one has."""
Call = Callable[[], Any]
Seconds = dict[str, list[float]]
"""By what was measured, for each of its amounts."""


def calibrate(ranks: int = 1, collectives: str = "ring", disk: Path | None = None) -> Machine:
    """The CPU of this machine as `ranks` ranks share it; about three seconds, and launching them.

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
        overhead=seconds["overhead"][0],
        # Device and host are one memory here, which is read and written.
        host=memory.points[-1][1] / 2,
        disk=DISK / measured["disk"][0] if "disk" in measured else inf,
        optimizer=optimizer,
        host_step=optimizer.points[-1][1],
        per_unit_overhead=ENGINE_CALLS * least,
        collective={name: fit_line(*seconds[name]) for name in COLLECTIVES if name in seconds},
    )


def fit_line(short: float, long: float) -> tuple[float, float]:
    """(seconds a call, seconds a byte of the whole) of a collective."""
    few, many = (4 * numel for numel in WHOLES)
    a_byte = max(long - short, 0.0) / (many - few)
    return max(short - a_byte * few, 0.0), a_byte


def make_linear(width: int, dtype: torch.dtype) -> Call:
    """The three products of a linear layer in forward and backward."""
    inputs, gradients = torch.randn(2, ROWS, width).to(dtype).unbind()
    weight = torch.randn(width, width).to(dtype)
    return lambda: (torch.mm(inputs, weight.t()), torch.mm(gradients, weight), torch.mm(gradients.t(), inputs))


def make_turns(call: Callable[..., Any], length: int) -> Call:
    """The call on three tensors, others each time, as in a step."""
    turn = cycle(torch.ones(max(1, min(64, 2**22 // length)), 3, length).unbind())
    return lambda: call(*next(turn))


def make_attention(tokens: int) -> Call:
    """A forward and a backward."""
    query = torch.ones(BATCH, HEADS, tokens, DIM, requires_grad=True)
    attend = partial(F.scaled_dot_product_attention, query, query, query, is_causal=True)
    return lambda: attend().backward(query.detach())


def make_adamw() -> Call:
    parameter = torch.zeros(STEPPED, requires_grad=True)
    parameter.grad = torch.ones(STEPPED)
    return torch.optim.AdamW([parameter], fused=True).step


ROWS, STEPPED = 512, 2**20
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
        (2.0 * ROWS * width**2, partial(make_linear, width, torch.float32)) for width in (32, 64, 128, 256, 512, 1024)
    ],
    "matmul16": [(2.0 * ROWS * width**2, partial(make_linear, width, torch.bfloat16)) for width in (128, 512)],
    "attention": [
        (7.0 * BATCH * HEADS * DIM * tokens**2 / 2, partial(make_attention, tokens)) for tokens in (64, 128, 512)
    ],
    "memory": [
        (12.0 * length, partial(make_turns, lambda one, other, out: torch.add(one, other, out=out), length))
        for length in LENGTHS
    ],
    "math": [(8.0 * length, partial(make_turns, lambda one, *_: F.gelu(one), length)) for length in LENGTHS],
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


def time_call(comm: Collectives, call: Call, times: int = 0, clock: Callable[[], float] = time.thread_time) -> float:
    """Seconds of a call, on all ranks at once; a collective needs the same `times` on all."""
    call()
    if not times:
        start = clock()
        call()
        times = max(1, min(500, round(WINDOW / max(clock() - start, 1e-7))))
    taken = []
    for _ in range(TRIES):
        comm.barrier()
        start = clock()
        for _ in range(times):
            call()
        taken.append((clock() - start) / times)
    # Threads of one rank wait for each other busily.
    is_busy = torch.get_num_threads() > 1 and clock in (time.thread_time, time.process_time)
    return min(taken) if is_busy else median(taken)


def measure(comm: Collectives, disk: Path | None = None) -> Seconds:
    """This rank's seconds for each amount: of the processor, but for the disk's."""
    few = torch.zeros(16)
    found = {"call": [time_call(comm, lambda: few.add_(1.0))], "overhead": [time_overhead(comm)]}
    for kind, calls in CALLS.items():
        found[kind] = [time_call(comm, make()) / (3 if "matmul" in kind else 1) for _, make in calls]
    for name in COLLECTIVES if comm.size > 1 else ():
        # Lanes and sockets have threads of their own.
        found[name] = [time_call(comm, make_call(comm, name, numel), 3, time.process_time) for numel in WHOLES]
    if disk is not None:
        found["disk"] = [time_disk(comm, disk)]
    return found


def measure_carrying(comm: Collectives) -> Seconds:
    """A rank's seconds for each collective where the kernel shapes the wires. That works in no process's name, so all
    that the processors did meanwhile counts, shared out among the ranks."""

    def clock() -> float:
        comm.barrier()
        return busy_seconds() / comm.size

    sizes = [*zip(WHOLES, CARRIED, strict=True)]
    return {
        name: [time_call(comm, make_call(comm, name, numel), times, clock) for numel, times in sizes]
        for name in COLLECTIVES
    }


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
        return time_call(comm, swap, 1, time.perf_counter)
    finally:
        file.close()


def time_overhead(comm: Collectives) -> float:
    """Seconds of an operation in a small net that trains, its graph and modules with it."""
    net = torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU()) for _ in range(8)))
    some = torch.zeros(4, 4)

    def train() -> None:
        net(some).sum().backward()

    with Counter() as counter:
        train()
    return time_call(comm, train) / counter.found


def make_call(comm: Collectives, name: str, numel: int) -> Call:
    whole, chunk = comm.allocate(numel).zero_(), comm.allocate(numel // comm.size).zero_()
    return {
        "all_reduce": lambda: comm.all_reduce(whole),
        "reduce_scatter": lambda: comm.reduce_scatter(whole, out=chunk),
        "all_gather": lambda: comm.all_gather(chunk, out=whole),
    }[name]
