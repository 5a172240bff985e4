"""Ranks that somebody else has started: torchrun's, and those of a process group that a script has made.

Under torchrun this process is one rank. The first `launch` joins the world that the environment describes, and later
ones meet in the same one. An exception that nobody catches ends the rank at once, and torchrun ends the others.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from types import TracebackType
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from zerolab.collectives import Collectives, Link, build
from zerolab.collectives.shared.peers import host_number, is_possible
from zerolab.collectives.torch_ import backends_of, carriers, connect, new_group
from zerolab.errors import InputError
from zerolab.ranks.board import BoardPen, Hangs
from zerolab.ranks.child import SPARE_SECONDS, call
from zerolab.ranks.failure import is_secondary, make_failure, make_outcome
from zerolab.ranks.folders import leave, remove_all
from zerolab.ranks.job import Job, Results, check_timed, choose_collectives, read_collectives
from zerolab.ranks.process_transport import ProcessTransport, made
from zerolab.ranks.seeds import seed_all

POLL_SECONDS = 0.2
LATER_SECONDS = 2.0
"""A rank that failed only because another one was gone ends so much later: torchrun names the first one that ends."""
_running = threading.Lock()
_made_world = _failed = False
"""Whether this process has made the world that it is in, and whether its last launch has failed."""


def made_world() -> bool:
    """Whether this process has joined other ranks by `launch`."""
    return _made_world and dist.is_initialized()


def check_world_size(ranks: int | None) -> int:
    """The size of that world, or an InputError if the caller asks for another."""
    size = int(os.environ["WORLD_SIZE"])
    if ranks is not None and ranks != size:
        raise InputError(
            f"ranks is {ranks}, but torchrun started {size}; pass ranks={size}, or ranks=None to take what is there"
        )
    return size


def run_torchrun(job: Job, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Results:
    """Run the function as this process's rank: its result at its place among Nones, and what it traced, likewise."""
    global _failed
    if not _running.acquire(blocking=False):
        raise InputError("under torchrun a rank cannot launch inside a launch; call the inner function directly")
    _failed = True
    try:
        transport, collectives = _join(job)
        torch.set_num_threads(job.threads)
        seed_all()
        with _reported_when_overdue(job, transport.rank, transport.pen):
            try:
                value, spans = call(replace(job, collectives=collectives), transport, fn, args, kwargs)
                # Nobody leaves, and closes its connections, while another rank still has messages to finish.
                dist.all_reduce(torch.zeros(1, device="cpu"), group=transport.host)
            except Exception as error:
                raise make_failure(transport.rank, make_outcome(error)) from error
        _failed = False
    finally:
        _running.release()
    values, traced = ([it if rank == transport.rank else None for rank in range(job.ranks)] for it in (value, spans))
    return Results(job, values, [""] * job.ranks, traced)


def _join(job: Job) -> tuple[ProcessTransport, str]:
    device = torch.device("cpu")
    if job.devices[0].startswith("cuda"):
        # Each rank of a machine takes the GPU of its number there, in turn if there are fewer.
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
        torch.cuda.set_device(device)
    timeout = timedelta(seconds=job.call_seconds + SPARE_SECONDS)
    ranks_here = int(os.environ.get("LOCAL_WORLD_SIZE", job.ranks))
    nccl = device.type == "cuda" and torch.cuda.device_count() >= ranks_here
    if not dist.is_initialized():
        # They meet in the time of the launch.
        store, rank, _ = next(dist.rendezvous("env://", timeout=timedelta(seconds=min(job.timeout, 1e7))))
        store.set_timeout(timeout)
        if os.environ.get("GROUP_WORLD_SIZE") == "1":
            # torchrun keeps one store over all restarts of its ranks (--max-restarts), and a rank that comes again must
            # not find the address of one that has died. Several machines need not count attempts alike.
            store = dist.PrefixStore(f"attempt-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if nccl else "gloo",
            store=store,
            rank=rank,
            world_size=job.ranks,
            timeout=timeout,
            device_id=device if nccl else None,
        )
        _end_with_world()
    assert dist.group.WORLD is not None
    linked, one_machine = job.link is not None, ranks_here == job.ranks
    transport, collectives = enter_group(dist.group.WORLD, device, nccl, job.collectives, linked, one_machine)
    if made_world():
        # The world has the time-out of its first launch, and a script's own world that of the script.
        for known in {dist.group.WORLD, transport.group, transport.host}:
            distributed_c10d._set_pg_timeout(timeout, known)
    return transport, collectives


@contextmanager
def _reported_when_overdue(job: Job, rank: int, pen: BoardPen) -> Iterator[None]:
    """End this rank with a word on what it waits for, if it or one of its calls takes too long."""
    over, hangs = threading.Event(), Hangs(job.collective_timeout)
    deadline = time.monotonic() + job.timeout

    def watch() -> None:
        while not over.wait(min(POLL_SECONDS, max(0.0, deadline - time.monotonic()))):
            now, state = time.monotonic(), pen.record.copy()
            what = f"did not finish within {job.timeout:g} s" if now >= deadline else ""
            if hangs.find([state], now):
                what = f"hangs: a collective or a message did not end within {hangs.seconds:g} s"
            if what:
                print(f"zerolab: rank {rank} {what}: it {state.describe() or 'computes'}", file=sys.stderr, flush=True)
                leave(1)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        # A daemon thread that is still waking up when Python ends can abort the process.
        thread.join()


def _end_with_world() -> None:
    """From now on this process closes the world that it made when it ends well, and leaves at once when it does not:
    else it would wait for calls that other ranks never enter, and torchrun for this rank."""
    global _made_world
    _made_world = True
    # While the interpreter is whole: a thread of theirs that lets a tensor go later aborts the process.
    atexit.register(lambda: dist.destroy_process_group() if dist.is_initialized() and not _failed else None)
    shown = sys.excepthook

    def leaves(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        try:
            shown(kind, error, trace)
        finally:
            if made_world() and not hasattr(sys, "ps1"):
                leave_world(128 + signal.SIGINT if issubclass(kind, KeyboardInterrupt) else 1, error)

    sys.excepthook = leaves


def leave_world(status: int, error: BaseException | None = None) -> NoReturn:
    """End this rank at once, with all that it has printed shown and its temporary folders gone."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    with suppress(Exception):
        remove_all()
    if error is not None and is_secondary(error.__cause__ or error):
        time.sleep(LATER_SECONDS)
    leave(status)


def from_process_group(
    group: dist.ProcessGroup | None = None,
    device: torch.device | str | None = None,
    *,
    collectives: str = "auto",
    link: Link | None = None,
    trace: bool = False,
    check: bool = False,
) -> Collectives:
    """This rank's `Collectives` in `group`, by default the one that `torch.distributed.init_process_group` made. Every
    rank of the group calls it, with the same arguments but for the device; the group stays with whoever made it.

        torch.distributed.init_process_group("gloo")
        comm = from_process_group()
        engine = ZeroEngine(model, comm, stage=2, lr=1e-3)

    device       where the ranks compute; default: the current GPU if NCCL joins the group, else the CPU
    collectives  "shared", "ring" or "torch"; "auto": see `zerolab.ranks.job.choose_collectives`
    link, trace, check  as in `launch`

    `comm.rank` and `comm.size` are those of the group.
    """
    backends = backends_of(group)  # type: ignore[arg-type]  # without a group torch says so
    group = group or dist.group.WORLD
    assert group is not None
    device = choose_device(device, backends)
    check_timed(device, link, trace)
    nccl = device.type == "cuda" and backends.get("cuda") == "nccl"
    carrier, _ = carriers(group, nccl)
    if not nccl and (used := made[carrier.group_name]):
        # Calls of two comms carry the same numbers, and would take each other's messages: this one's has its own group.
        number = zlib.crc32(f"{carrier.group_name} {used}".encode())
        made[carrier.group_name] += 1
        group = new_group(dist.get_process_group_ranks(carrier), number, dist.get_backend_config(carrier))
    transport, impl = enter_group(group, device, nccl, collectives, link is not None)
    return build(transport, impl=impl, link=link, trace=trace, check=check)


def enter_group(
    group: dist.ProcessGroup, device: torch.device, nccl: bool, asked: str, linked: bool, here: bool | None = None
) -> tuple[ProcessTransport, str]:
    """This rank's transport in a group, which may lack a backend that it needs, and the collectives that "auto" stands
    for there. A call of all its ranks, who tell each other whether they are on one machine unless they know."""
    carrier, host = carriers(group, nccl)
    transport = ProcessTransport(carrier, device, nccl, host=host)
    one_machine = hold_alike(transport) if here is None else here
    if nccl:
        connect(carrier, device)
    asked = read_collectives(asked, linked)
    return transport, choose_collectives(asked, [device.type] * transport.size, one_machine, linked, nccl)


def choose_device(device: torch.device | str | None, backends: dict[str, str]) -> torch.device:
    if device is None:
        device = "cuda" if backends.get("cuda") == "nccl" and torch.cuda.is_available() else "cpu"
    device = torch.device(device)
    named = device.type != "cuda" or device.index is not None
    return device if named else torch.device("cuda", torch.cuda.current_device())


def hold_alike(transport: ProcessTransport) -> bool:
    """Whether all ranks can open each other's memory. Raises an InputError on all of them where a part is on GPUs: each
    would choose its own collectives, and wait for the others for ever."""
    host = host_number() if is_possible() else -1 - transport.rank
    rows = transport.all_gather_ints([host, transport.device.type == "cuda"])
    on_gpu = [gpu for _, gpu in rows]
    if len({*on_gpu}) > 1:
        raise InputError(
            f"rank {on_gpu.index(0)} of the group is on the CPU, since it sees no GPU or was told so, and rank "
            f'{on_gpu.index(1)} is on a GPU; give each rank a GPU, or all of them device="cpu"'
        )
    return len({host for host, _ in rows}) == 1
