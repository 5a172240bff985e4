"""Rank functions: one times all contenders against each other, one trains a single contender to be watched."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.peers import contenders as c
from benchmarks.peers.workload import WORKLOADS
from zerolab.collectives.transport import Transport

ALL: dict[str, c.Contender] = {**c.OURS, **c.RINGS, **c.TORCH, **c.DEEPSPEED, **c.PARTS}
WARM_UP = 3


def seconds(
    transport: Transport, workload: tuple[str, int], names: list[str], rounds: int, steps: int
) -> dict[str, Any]:
    """Each contender's seconds a step in each round, and its losses. In a round every contender makes `steps` steps
    in a row, in an order that turns; a barrier goes before each contender's turn."""
    work = WORKLOADS[workload[0]](workload[1])
    step = {name: ALL[name](work, transport) for name in names}
    batches = [work.batch(at, transport.rank) for at in range(WARM_UP + rounds * steps)]
    times: dict[str, list[float]] = {name: [] for name in names}
    losses: dict[str, list[float]] = {name: [] for name in names}
    for name in names:
        losses[name] += [step[name](*batch) for batch in batches[:WARM_UP]]
    for at in range(rounds):
        turn = at % len(names)
        now = batches[WARM_UP + at * steps :][:steps]
        for name in names[turn:] + names[:turn]:
            dist.barrier()
            start = time.perf_counter()
            losses[name] += [step[name](*batch) for batch in now]
            times[name].append((time.perf_counter() - start) / steps)
    dist.barrier()
    return {"seconds": times, "losses": losses}


def watched(transport: Transport, workload: tuple[str, int], name: str, steps: int, told: str) -> dict[str, float]:
    """Train one contender. Before its model is built and after its steps, wait until the watcher has looked."""
    work = WORKLOADS[workload[0]](workload[1])
    batches = [work.batch(at, transport.rank) for at in range(steps)]
    dist.all_reduce(torch.zeros(1))
    with open(f"{told}/ready-{transport.rank}", "w"):
        pass
    dist.barrier()
    time.sleep(0.3)
    step = ALL[name](work, transport)
    for batch in batches[:2]:
        step(*batch)
    before = sent_bytes()
    for batch in batches[2:]:
        step(*batch)
    dist.barrier()
    return {"wire": (sent_bytes() - before) / (steps - 2)}


def sent_bytes() -> int:
    """What this machine has sent over its loopback interface, all processes together."""
    with open("/proc/net/dev") as table:
        fields: Mapping[str, list[str]] = {
            name.strip(): rest.split() for name, _, rest in (line.partition(":") for line in table) if rest
        }
    return int(fields["lo"][8])
