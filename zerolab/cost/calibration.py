"""This machine's figures, measured in seconds: what its ranks compute, move and say when all of them do so at once.

    machine = calibrate(ranks=4)
    predict_step(run, machine, Link(1.0, 20))

Ranks of one machine share its cores and its memory, so each figure is taken on all of them at the same time, and that
of the slowest counts. Figures are medians of a few tries, as steps that are measured are:
others who work on the machine slow both.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import accumulate, cycle
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from zerolab.collectives import Collectives, Link
from zerolab.cost.machine import Machine, Rate, operation_of
from zerolab.errors import InputError
from zerolab.ranks import launch

TRIES, WINDOW = 5, 0.02
"""How often each figure is taken, and for how many seconds."""
QUICK = Link(1000.0, 0.0)
"""A link on which messages take next to no time, but pass all that a simulated one has them pass."""
Points = list[tuple[float, float]]
"""(amount, seconds)."""


def calibrate(ranks: int = 1, collectives: str = "ring") -> Machine:
    """The CPU of this machine as `ranks` ranks share it, in fp32; about three seconds, and launching them.

    collectives  the implementation whose collectives are measured, as `launch` takes it

    Raises InputError for fewer ranks than 1.
    """
    if not isinstance(ranks, int) or ranks < 1:
        raise InputError(f"ranks is {ranks!r}; give a whole number of at least 1")
    link = QUICK if ranks > 1 else None
    by_rank = launch(measure, ranks=ranks, collectives=collectives, link=link, device="cpu", prints="quiet")
    slowest = {
        key: [max(seconds) for seconds in zip(*(rank[key] for rank in by_rank), strict=True)] for key in by_rank[0]
    }
    return machine_from(slowest, ranks)


def machine_from(seconds: dict[str, list[float]], ranks: int) -> Machine:
    """A machine from measured seconds, one for each of `SIZES`."""
    overhead = seconds["overhead"][0]

    def rate(kind: str) -> Rate:
        # What is measured is without the graph and the hooks of training, so of its own call it has the least.
        least = seconds["call"][0]
        amounts = AMOUNTS[kind]
        taken = [max(one - least, 0.2 * one) for one in rising(seconds[kind])]
        return Rate(tuple((amount, amount / one) for amount, one in zip(amounts, taken, strict=True)))

    collective = {name: fit(name, seconds[name], ranks) for name in COLLECTIVES if name in seconds}
    return Machine(
        f"this CPU, {ranks} ranks",
        {("matmul", 4): rate("matmul"), ("attention", 4): rate("attention")},
        rate("memory"),
        rate("math"),
        overhead=overhead,
        optimizer=rate("optimizer"),
        hook=seconds["hook"][0],
        collective=collective,
    )


def rising(seconds: list[float]) -> list[float]:
    """More takes no less time: what took longer than more did was disturbed, and is taken to be as long as that."""
    return list(accumulate(reversed(seconds), min))[::-1]


def fit(name: str, seconds: list[float], ranks: int) -> tuple[float, float]:
    """(seconds a call, seconds a byte of the whole) from calls of two sizes, without what the link took."""
    short, long = (4 * numel for numel in WHOLES)
    first, second = (
        max(one - QUICK.ring_seconds(name, numel, 4, ranks), 0.0) for one, numel in zip(seconds, WHOLES, strict=True)
    )
    a_byte = max(second - first, 0.0) / (long - short)
    return max(first - a_byte * short, 0.0), a_byte


ROWS, WIDTHS = 512, (32, 64, 128, 256, 512, 1024)
TOKENS = (64, 128, 512)
BATCH, HEADS, DIM = 4, 4, 64
LENGTHS = tuple(2**power for power in (10, 13, 16, 18, 20, 22))
SET, POOL = 64, 2**22
"""A step touches many tensors before it comes back to one, so as many take turns, of so many elements in all."""
STEPPED = 2**20
WHOLES = (2**12, 2**21)
"""Elements of the tensors of collectives."""
COLLECTIVES = ("all_reduce", "reduce_scatter", "all_gather")
AMOUNTS: dict[str, tuple[float, ...]] = {
    "matmul": tuple(2.0 * ROWS * width**2 for width in WIDTHS),
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


def measure(comm: Collectives) -> dict[str, list[float]]:
    """This rank's seconds for each amount."""
    found: dict[str, list[float]] = {}

    def timed(call: Callable[[], Any], times: int = 0) -> float:
        # Of a collective all ranks make as many calls.
        call()
        start = time.perf_counter()
        call()
        times = times or max(1, min(500, round(WINDOW / max(time.perf_counter() - start, 1e-7))))
        taken = []
        for _ in range(TRIES):
            comm.barrier()
            start = time.perf_counter()
            for _ in range(times):
                call()
            taken.append((time.perf_counter() - start) / times)
        return median(taken)

    few = torch.zeros(16)
    found["call"] = [timed(lambda: few.add_(1.0))]
    layers = [(torch.randn(2, ROWS, width).unbind(), torch.randn(width, width)) for width in WIDTHS]
    found["matmul"] = [timed(lambda layer=layer: multiply(*layer)) / 3 for layer in layers]  # type: ignore[misc]
    found["attention"] = [timed(lambda tokens=tokens: attend(tokens)) for tokens in TOKENS]  # type: ignore[misc]
    found["memory"], found["math"] = [], []
    for length in LENGTHS:
        turns = cycle(torch.ones(max(1, min(SET, POOL // length)), 3, length).unbind())
        found["memory"].append(timed(lambda turns=turns: add(*next(turns))))  # type: ignore[misc]
        found["math"].append(timed(lambda turns=turns: F.gelu(next(turns)[0])))  # type: ignore[misc]
    parameter = torch.zeros(STEPPED, requires_grad=True)
    parameter.grad = torch.ones(STEPPED)
    found["optimizer"] = [timed(torch.optim.AdamW([parameter], fused=True).step)]
    found["overhead"], found["hook"] = [overhead_of(timed)], [20 * found["call"][0]]
    if comm.size > 1:
        for name in COLLECTIVES:
            found[name] = [timed(prepared(comm, name, numel), 3) for numel in WHOLES]
    return found


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
