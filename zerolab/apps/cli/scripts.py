"""N processes of one script, with the environment that torchrun gives its ranks. They end together, and what they print
is shown in whole lines.

The port at which ranks meet is held from the start by this process, which opens torch's store on it once the first rank
knocks: nobody else can take the port, and no rank takes the store away by ending first. Until then torch is not
imported.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Any

from zerolab.system import has

GRACE_SECONDS = 5.0
"""How long ranks may take to end by themselves after a SIGTERM, before they are killed."""
_LOOK_SECONDS, _READ_SECONDS = 0.05, 10.0
_running: list[subprocess.Popen[bytes]] = []


@dataclass(frozen=True)
class Ended:
    """How a launch ended. `rank` is the first that failed, with its exit status (128 and the signal's number, if a
    signal ended it) and what is to be said of it; None: all ended with 0."""

    rank: int | None = None
    status: int = 0
    said: str = ""


def run(words: Sequence[str], ranks: int, environment: Mapping[str, str]) -> Ended:
    """Run `words` as a command in `ranks` processes and wait for all of them. The first that fails ends the others."""
    with socket.socket() as meeting:
        meeting.bind(("127.0.0.1", 0))
        meeting.listen(ranks + 8)
        _start(words, ranks, {**environment, "MASTER_PORT": str(meeting.getsockname()[1])})
        readers = _show_prints(ranks)
        try:
            outcome = _wait(meeting)
        finally:
            end_all()
            # What is still in the pipes, unless something that got away holds one open.
            until = time.monotonic() + _READ_SECONDS
            for reader in readers:
                reader.join(max(0.0, until - time.monotonic()))
    return outcome


def environment_of(rank: int, ranks: int) -> dict[str, str]:
    """What torchrun tells each of its ranks on one machine, but for the port."""
    number, size = str(rank), str(ranks)
    return {
        "RANK": number,
        "LOCAL_RANK": number,
        "ROLE_RANK": number,
        "WORLD_SIZE": size,
        "LOCAL_WORLD_SIZE": size,
        "ROLE_WORLD_SIZE": size,
        "GROUP_RANK": "0",
        "GROUP_WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        # The store is another process's than rank 0's.
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "0",
    }


def end_all() -> None:
    """End what still runs: by a request, and who has not heard it after GRACE_SECONDS by force, with all that it
    started. Serves a signal's handler, too."""
    _signal_all(signal.SIGTERM)
    until = time.monotonic() + GRACE_SECONDS
    while any(_lives(process) for process in _running) and time.monotonic() < until:
        time.sleep(0.01)
    _signal_all(getattr(signal, "SIGKILL", signal.SIGTERM))
    for process in _running:
        # In a handler that came in the middle of a `poll` Popen's own wait would wait for itself.
        with suppress(OSError):
            os.waitpid(process.pid, 0)
    _running.clear()


def _start(words: Sequence[str], ranks: int, environment: Mapping[str, str]) -> None:
    cores = len(os.sched_getaffinity(0)) if has("affinity") else os.cpu_count() or 1
    own = {"OMP_NUM_THREADS": str(max(1, cores // ranks)), "PYTHONUNBUFFERED": "1", **environment}
    try:
        for rank in range(ranks):
            _running.append(
                subprocess.Popen(
                    words,
                    env={**own, **environment_of(rank, ranks)},
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    # Groups of their own, so that all that a rank started can be ended. No thread runs here yet.
                    preexec_fn=_leave_for_a_group if has("groups") else None,
                )
            )
    except BaseException:
        end_all()
        raise


def _leave_for_a_group() -> None:
    os.setsid()
    if has("prctl"):
        # Should this process be killed, so are they.
        ctypes.CDLL(None).prctl(1, int(signal.SIGKILL), 0, 0, 0)


def _show_prints(ranks: int) -> list[threading.Thread]:
    lock, readers = threading.Lock(), []
    for rank, process in enumerate(_running):
        mark = f"rank {rank} | " if ranks > 1 else ""
        for stream, target in ((process.stdout, sys.stdout), (process.stderr, sys.stderr)):
            reader = threading.Thread(target=_pass_on, args=(stream, target, mark, lock), daemon=True)
            reader.start()
            readers.append(reader)
    return readers


def _pass_on(source: IO[bytes], target: Any, mark: str, lock: threading.Lock) -> None:
    """Each line as soon as it is whole."""
    with source:
        for line in source:
            text = line.decode("utf-8", "replace").rstrip("\n")
            with lock, suppress(OSError, ValueError):
                target.write(f"{mark}{text}\n")
                target.flush()


def _wait(meeting: socket.socket) -> Ended:
    store, left = None, dict(enumerate(_running))
    while left:
        if store is None and select.select([meeting], [], [], 0)[0]:
            store = _open_store(meeting)
        ended = {rank: process.poll() for rank, process in left.items()}
        failed = {rank: status for rank, status in ended.items() if status}
        if failed:
            # Who was killed has not failed because of the others.
            rank = min(failed, key=lambda rank: (failed[rank] > 0, rank))
            return _outcome(rank, failed[rank])
        left = {rank: process for rank, process in left.items() if ended[rank] is None}
        time.sleep(_LOOK_SECONDS)
    return Ended()


def _outcome(rank: int, status: int) -> Ended:
    if status > 0:
        return Ended(rank, status, f"rank {rank} ended with status {status}; all ranks were ended")
    with suppress(ValueError):
        return Ended(
            rank, 128 - status, f"rank {rank} was ended by {signal.Signals(-status).name}; all ranks were ended"
        )
    return Ended(rank, 128 - status, f"rank {rank} was ended by signal {-status}; all ranks were ended")


def _open_store(meeting: socket.socket) -> object:
    from torch.distributed import TCPStore

    host, port = meeting.getsockname()
    return TCPStore(host, port, None, True, wait_for_workers=False, master_listen_fd=meeting.detach())


def _lives(process: subprocess.Popen[bytes]) -> bool:
    if process.returncode is not None:
        return False
    try:
        pid, status = os.waitpid(process.pid, os.WNOHANG)
    except ChildProcessError:
        return False
    if pid:
        process.returncode = os.waitstatus_to_exitcode(status)
    return not pid


def _signal_all(number: int) -> None:
    for process in _running:
        with suppress(OSError):
            if has("groups"):
                os.killpg(process.pid, number)
            elif process.returncode is None:
                os.kill(process.pid, number)
