"""`launch`: N ranks running a function, from a notebook, a script or a test.

    def total(comm):
        return comm.all_reduce(torch.tensor([float(comm.rank)], device=comm.device)).item()

    launch(total, ranks=4)    # [6.0, 6.0, 6.0, 6.0]

Nothing of a launch outlives it: no process, no file, no port.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from typing import Any

from zerolab.collectives import Link
from zerolab.errors import InputError
from zerolab.ranks.job import (
    DEVICES,
    MAX_RANKS,
    MAX_VIRTUAL_RANKS,
    Job,
    Results,
    check_timed,
    choose_collectives,
    choose_devices,
    is_torchrun,
    threads_per_rank,
)
from zerolab.ranks.join import check_world_size, run_torchrun
from zerolab.ranks.lockstep.virtual import VirtualLaunch
from zerolab.ranks.lockstep.world import Launch
from zerolab.ranks.pickling import pack_function
from zerolab.ranks.printing import MODES
from zerolab.ranks.processes import run_processes

CHOICES = {
    "world": ("processes", "lockstep", "virtual"),
    "collectives": ("auto", "shared", "ring", "torch", "local", "transport"),
    "device": DEVICES,
    "prints": MODES,
}


def launch(
    fn: Callable[..., Any],
    *args: Any,
    ranks: int | None = 4,
    kwargs: Mapping[str, Any] | None = None,
    world: str = "processes",
    collectives: str = "auto",
    timeout: float | None = 300.0,
    collective_timeout: float | None = None,
    device: str = "auto",
    link: Link | None = None,
    threads: int | None = None,
    max_result_mb: float = 256.0,
    env: Mapping[str, str] | None = None,
    prints: str = "ranked",
    trace: bool = False,
    check: bool = False,
) -> Results:
    """Run `fn(comm, *args, **kwargs)` on every rank and return the results in rank order.

    fn           any function: a notebook's own, a lambda, a closure. `comm` is a `Collectives`.
    ranks        how many; None means 4, or under torchrun as many as there are.
    world        "processes": real ones, a GPU each if there are enough. "lockstep": all in this process, one
                 running at a time, in the same order every time. "virtual": rank 0 alone, on tensors without
                 values; the others are taken to do the same at the same time, so there may be 65536.
    collectives  "shared" memory, "ring", "torch", "local" (one rank), or "transport" for the bare messages below them;
                 "auto": see `choose_collectives`. Only shared memory and the ring have a fixed order of addition.
    timeout      seconds until ranks that still run are ended and reported; None: they may run for ever.
    collective_timeout  the same for one collective, or one message. None: until `timeout`.
    device       "cpu", "cuda", or "auto": see `choose_devices`. A rank's tensors must be on its `comm.device`.
    link         a simulated wire: processes slow down to it, the other worlds keep a virtual clock by it.
    threads      torch threads of each rank; None shares the cores out.
    max_result_mb  refuse a rank's result whose pickle is larger.
    env          environment variables set in the ranks (processes), besides the caller's.
    prints       "ranked": what ranks print is shown at the end, in rank order; "live": line by line; "quiet".
    trace        record what ran when, see `Results.trace`.
    check        compare all ranks' calls before each collective.

    All ranks start with the same seeds. Under torchrun `fn` runs as this process's rank.

    Raises InputError before anything starts; RankError when a rank raises, dies or hangs (DeadlockError, MismatchError
    where that is certain), after all ranks are ended.
    """
    given = locals()
    joins = world == "processes" and is_torchrun()
    count = check_world_size(ranks) if joins else 4 if ranks is None else ranks
    check_arguments(count, count if joins else MAX_VIRTUAL_RANKS if world == "virtual" else MAX_RANKS, given)
    devices, backend = choose_devices(device, count, world)
    check_timed(devices[0], link, trace)
    real = world == "processes"
    if world == "virtual":
        collectives = "virtual"
    elif not joins:
        collectives = choose_collectives(collectives, devices, real, link is not None, real and "nccl" in backend)
    job = Job(
        ranks=count,
        timeout=math.inf if timeout is None else float(timeout),
        collective_timeout=math.inf if collective_timeout is None else float(collective_timeout),
        collectives=collectives,
        devices=devices,
        backend=backend,
        threads=threads or threads_per_rank(int(os.environ.get("LOCAL_WORLD_SIZE", "1")) if joins else count),
        max_result_bytes=max_result_mb * 1e6,
        link=link,
        trace=trace,
        check=check and world != "virtual",
        environment={**os.environ, **(env or {})},
        prints=prints,
    )
    if joins:
        return run_torchrun(job, fn, args, dict(kwargs or {}))
    function = pack_function(fn, args, dict(kwargs or {}))
    if world == "processes":
        return run_processes(job, function)
    return (VirtualLaunch if world == "virtual" else Launch)(job, function).run()


def check_arguments(ranks: int, most: int, given: Mapping[str, Any]) -> None:
    """Raise an InputError for what would start too much, wait for ever or be ignored."""
    if type(ranks) is not int or not 1 <= ranks <= most:
        raise InputError(f"ranks is {ranks!r}; give a whole number from 1 to {most}")
    for name, choices in CHOICES.items():
        if given[name] not in choices:
            raise InputError(f"{name} is {given[name]!r}; choose one of {', '.join(map(repr, choices))}")
    for name in ("timeout", "collective_timeout", "max_result_mb"):
        value = given[name]
        if value is not None and not (isinstance(value, int | float) and 0 < value < math.inf):
            raise InputError(f"{name} is {value!r}; give a positive, finite number")
    world, asked = given["world"], given["collectives"]
    if world == "lockstep" and asked in ("torch", "shared"):
        raise InputError(f'collectives="{asked}" needs processes; use world="processes" or collectives="ring"')
    if world == "virtual" and asked != "auto":
        raise InputError(f'collectives="{asked}": a virtual world has no messages; leave it out')
