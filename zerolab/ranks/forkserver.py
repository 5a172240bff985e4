"""How a rank process starts: forked, in milliseconds, by Python's own fork server, which has imported torch once.

The parent may be a notebook kernel with threads and a live CUDA context, so it must not fork itself; a server that does
nothing but import and fork may. It ends when its client does, and its ranks before it: they do not hold the pipe by
which it sees that end. Linux kills them should the server be killed; elsewhere a thread of theirs sees it (`child.py`).
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import forkserver, resource_tracker
from multiprocessing.process import BaseProcess
from typing import Any

import psutil

from zerolab.ranks import folders
from zerolab.ranks.malloc import make_malloc_settings
from zerolab.system import has

_server: Any = forkserver._forkserver
# Named, not imported: it holds the rooms above this one, which no rank needs to start but most rank functions use.
PRELOAD = ["zerolab.preload"]
LEFTOVERS = "ZEROLAB_LEFTOVERS"
"""The variable by which a server knows what to remove if its client was killed: a pattern of paths."""
LONGEST = 64
GRACE_SECONDS = 1.0
"""Characters of a place where sockets may be; how long ranks whose parent has ended may take to leave."""
_served: tuple[int | None, int] = None, -1
"""The server, and the pipe by which it sees our end."""
_KILLED_WITH_PARENT, _CHILD_SUBREAPER = 1, 36  # of linux/prctl.h

# Python's table of child processes is not safe against two threads that start or poll at once.
process_table = threading.RLock()


def start_process(target: Any, args: tuple[Any, ...], name: str) -> BaseProcess:
    """A process that calls `target(*args)`; arguments may hold connections. Raises EOFError or OSError where the server
    cannot."""
    context: Any = multiprocessing.get_context("forkserver")
    process: BaseProcess = context.Process(target=_begin, args=(target, *args), name=name, daemon=False)
    with process_table:
        start_server()
        with _outside({}):
            process.start()
    return process


def start_server() -> None:
    """Start the server unless it runs, and do not wait for it, so that a first launch later finds its imports done."""
    global _served
    # Python starts it below, and would let interrupts through again.
    resource_tracker.ensure_running()
    with process_table, _outside(make_server_environment()):
        _server.set_forkserver_preload(PRELOAD)
        _server.ensure_running()
        if _server._forkserver_pid != _served[0]:
            _forget_lifeline()
            # A process that is started would hold what stands here, and keep the server from seeing our end.
            _served = _server._forkserver_pid, _server._forkserver_alive_fd
            _server._forkserver_alive_fd = os.open(os.devnull, os.O_RDONLY)


def end_server() -> None:
    """End the server and all that it has forked, and wait for that; also in the middle of its start."""
    _forget_lifeline()
    # The server may have removed the folder of its socket, with what else its client left.
    with suppress(FileNotFoundError):
        _server._stop_unlocked()


def _forget_lifeline() -> None:
    global _served
    with suppress(OSError):
        os.close(_served[1])
    _served = None, -1


def make_server_environment() -> dict[str, str]:
    """What a server finds in its environment beside what is in ours."""
    config: dict[str, Any] = multiprocessing.current_process()._config  # type: ignore[attr-defined]
    if not os.path.isdir(config.get("tempdir") or ""):
        # Where Python makes the socket by which servers are asked, whose path has a hundred characters at most. Its own
        # folder would outlive a kill.
        long = len(folders.place()) > LONGEST and os.path.isdir("/tmp")
        config["tempdir"] = str(folders.make_folder("", "/tmp" if long else ""))
    places = {tempfile.gettempdir(), os.path.dirname(config["tempdir"])}
    return {LEFTOVERS: os.pathsep.join(f"{place}/{folders.prefix}*" for place in places), **make_malloc_settings()}


# In what was started


def _begin(target: Any, *args: Any) -> None:
    die_with_parent()
    _forget_server()
    target(*args)


def _forget_server() -> None:
    """In a fork of this process: the server is the parent's; a launch here gets its own."""
    _forget_lifeline()
    with suppress(OSError):
        os.close(_server._forkserver_alive_fd or -1)
    _server.__init__()


os.register_at_fork(after_in_child=_forget_server)


def die_with_parent(parent: int | None = None) -> None:
    """From now on this process is killed when the thread that forked it ends (Linux): a server has one. `parent` is its
    process, where that may have ended before this is called."""
    parent = os.getppid() if parent is None else parent
    _prctl(_KILLED_WITH_PARENT, signal.SIGKILL)
    if os.getppid() != parent:
        # It ended before it was asked.
        os._exit(1)


def gather_descendants() -> None:
    """Orphans among what this process started become its own children (Linux)."""
    _prctl(_CHILD_SUBREAPER, 1)


def _prctl(option: int, value: int) -> None:
    if has("prctl"):
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def end_children(server: int, remove: Callable[[], None]) -> None:
    """End the server `server`, whose client has ended, and all that it forked and these have started; `remove` what the
    client may have left. In a fork of the server it does nothing."""
    if os.getpid() != server:
        return
    gather_descendants()
    psutil.wait_procs(psutil.Process().children(), GRACE_SECONDS)
    while found := psutil.Process().children(recursive=True):
        for process in found:
            with suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(found, 0.02)
    remove()
    os._exit(0)


@contextmanager
def _outside(environment: dict[str, str]) -> Iterator[None]:
    """What is started in the block finds these variables, no file of `__main__` to run, and no Ctrl-C to hear."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    main, sys.modules["__main__"] = sys.modules["__main__"], types.ModuleType("__main__")
    earlier = {name: os.environ.get(name) for name in environment}
    os.environ.update(environment)
    try:
        yield
    finally:
        for name, value in earlier.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
        sys.modules["__main__"] = main
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
