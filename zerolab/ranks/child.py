"""The life of a rank process: set up, join the others, run the function, report, wait for the end.

A pipe ties it to its parent. The rank sends its outcome, and nobody sends it anything: the pipe ends when the parent
closes it, or dies. A rank stays until then, so that its last messages arrive and its peers see no failure.
"""

from __future__ import annotations

import faulthandler
import linecache
import os
import pickle
import shutil
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist

from zerolab.collectives import build
from zerolab.collectives.transport import Transport
from zerolab.ranks import folders
from zerolab.ranks.board import Board, BoardPen
from zerolab.ranks.failure import Unreturned, make_outcome
from zerolab.ranks.job import Job, Outcome
from zerolab.ranks.pickling import dumps, loads
from zerolab.ranks.process_transport import ProcessTransport
from zerolab.ranks.seeds import seed_all

# The parent reports a hang; torch's own time-out is only the net below.
SPARE_SECONDS = 60.0


def main(job: Job, rank: int, pipe: Connection) -> None:
    """Run rank `rank` of a job, in a process of its own."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.setpgid(0, 0)
    folders.within(job.directory)
    _redirect(job, rank)
    # The server that forked us keeps the environment that it was born with.
    os.environ.clear()
    os.environ.update(job.environment)
    os.chdir(job.working_directory)
    linecache.cache.update(job.sources)
    finished = threading.Event()
    watch = threading.Thread(target=_watch, args=(pipe, job, finished), daemon=True)
    watch.start()
    try:
        torch.set_num_threads(job.threads)
        seed_all()
        transport = _join(job, rank)
        outcome = run(job, transport, job.file("function").read_bytes())
        sys.stdout.flush()
    except BaseException as error:
        # SystemExit, too, is the end of this rank and not of the launch.
        outcome = make_outcome(error)
    finished.set()
    pipe.send_bytes(pickle.dumps(outcome))
    watch.join()
    if outcome.error:
        folders.leave(1)
    if "nccl" in job.backend:
        dist.destroy_process_group()
    # gloo's group ends with the process: taking it apart first would take a quarter of a short launch.


def run(job: Job, transport: Transport, packed: bytes) -> Outcome:
    """Unpack the function and its arguments, call it, and pickle what it returns."""
    result, spans = call(job, transport, *loads(packed))
    kind = type(result).__name__
    try:
        packed = dumps(result)
    except Exception as error:
        raise Unreturned(
            f"returned a {kind} that cannot travel back ({error}); return numbers, tensors, or lists and dicts of them"
        ) from None
    if len(packed) > job.max_result_bytes:
        raise Unreturned(
            f"returned a {kind} of {len(packed)} bytes, over the limit of {job.max_result_bytes:.0f}; return less, or "
            "raise max_result_mb"
        )
    return Outcome(packed, when=time.monotonic(), events=spans)


def call(job: Job, transport: Transport, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What the function returns, and what was traced."""
    comm: Any = transport
    if job.collectives != "transport":
        # In lockstep the transport itself keeps the link's virtual time.
        link = job.link if isinstance(transport, ProcessTransport) else None
        comm = build(transport, impl=job.collectives, link=link, trace=job.trace, check=job.check)
    result = function(comm, *args, **kwargs)
    comm.close()
    transport.check_result(result)
    transport.check_waited()
    tracer = getattr(comm, "tracer", None)
    return result, tracer.spans if tracer else None


def _redirect(job: Job, rank: int) -> None:
    """Python's prints go to one file; all else that writes to descriptors 1 and 2 goes to another."""
    with open(job.file("stderr", rank), "ab") as stderr:
        os.dup2(stderr.fileno(), 1)
        os.dup2(stderr.fileno(), 2)
    sys.stdout = open(job.file("printed", rank), "w", encoding="utf-8", buffering=1)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", buffering=1, closefd=False)  # noqa: SIM115
    faulthandler.enable(sys.stderr)
    # The parent asks by this signal where a rank that hangs is computing.
    faulthandler.register(signal.SIGUSR1, file=sys.stderr, all_threads=False)


def _join(job: Job, rank: int) -> Transport:
    """Meet the other ranks: over a file, not a port, and on the loopback interface."""
    device = torch.device(job.devices[rank])
    if device.type == "cuda":
        torch.cuda.set_device(device)
    for loopback in {"lo", "lo0"} & {name for _, name in socket.if_nameindex()}:
        os.environ["GLOO_SOCKET_IFNAME"] = os.environ["NCCL_SOCKET_IFNAME"] = loopback
    nccl = "nccl" in job.backend
    dist.init_process_group(
        job.backend,
        store=dist.FileStore(str(job.file("store")), job.ranks),
        rank=rank,
        world_size=job.ranks,
        timeout=timedelta(seconds=job.call_seconds + SPARE_SECONDS),
        device_id=device if nccl else None,
    )
    assert dist.group.WORLD is not None
    return ProcessTransport(dist.group.WORLD, device, nccl, BoardPen(Board(job.ranks, job.file("board")), rank))


def _watch(pipe: Connection, job: Job, finished: threading.Event) -> None:
    """Return when the parent lets go of a rank that has reported; end one that has not."""
    with suppress(EOFError, OSError):
        pipe.recv_bytes()
    if not finished.is_set():
        # A parent that was killed cannot clean up.
        shutil.rmtree(job.directory, ignore_errors=True)
        folders.leave(1)
