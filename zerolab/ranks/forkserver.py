"""How a rank process starts: forked, in milliseconds, by a small server that imported torch once.

The parent may be a notebook kernel with threads and a live CUDA context, so it must not fork itself; a server that
does nothing but import and fork may. This is Python's own `multiprocessing` forkserver with three changes:

* the server is ours alone, so that its preloaded modules do not depend on what else the program starts;
* a rank never runs the caller's `__main__` again: functions travel by value, so it has no need to. Scripts work
  without an `if __name__ == "__main__"` guard, and a notebook has no file to run;
* where there is no forkserver (Windows), ranks are spawned: the same, only slower.
"""

from __future__ import annotations

import io
import itertools
import multiprocessing
import multiprocessing.context
import multiprocessing.process
import os
import sys
import threading
import time
import types
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import reduction, spawn, util
from typing import Any

# Named, not imported: it holds the rooms above this one, which no rank needs to start but most rank functions use.
PRELOAD = ["zerolab.preload"]

# Python's table of child processes is not safe against two threads that start or poll at once.
process_table = threading.RLock()


def new_process(target: Any, args: tuple[Any, ...], name: str) -> multiprocessing.process.BaseProcess:
    """A process, not started yet, that will call `target(*args)`; arguments may hold connections."""
    return RankProcess(target=target, args=args, name=name, daemon=False)


def start_server() -> None:
    """Start the server now and do not wait for it, so that a first launch later finds its imports done."""
    if _server is not None:
        _server.ensure_running()


def fork_server() -> None:
    """Make the server of this process by a fork of it, in a hundredth of a second: for a process that was itself forked
    from a server and has done nothing since, so that all imports are there and no thread is."""
    if _server is None or not hasattr(os, "fork"):
        return
    spawn_one, util.spawnv_passfds = util.spawnv_passfds, _fork_passfds  # type: ignore
    try:
        _server.ensure_running()
    finally:
        util.spawnv_passfds = spawn_one  # type: ignore


def _fork_passfds(path: Any, command: Sequence[Any], descriptors: Sequence[int]) -> int:
    """Do in a fork of this process what `command`, a call of Python with "-c", would do in a new one."""
    if pid := os.fork():
        return pid
    try:
        os.setsid()
        close_all_but(0, 1, 2, *descriptors)
        exec(os.fsdecode(command[-1]), {})
    finally:
        os._exit(1)


def close_all_but(*kept: int) -> None:
    """Close every descriptor of this process but these."""
    edges = sorted({-1, *kept, os.sysconf("SC_OPEN_MAX") if hasattr(os, "sysconf") else 4096})
    for before, after in itertools.pairwise(edges):
        # Python 3.11 takes the empty range from 0 to 0 for all there are.
        if before + 1 < after:
            os.closerange(before + 1, after)


@contextmanager
def _nameless_main() -> Iterator[None]:
    """While a process is spawned, `__main__` has no file, so that the child has none to run."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _close(*descriptors: int) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


if "forkserver" in multiprocessing.get_all_start_methods():
    from multiprocessing import forkserver, popen_forkserver
    from multiprocessing.context import set_spawning_popen

    _server = forkserver.ForkServer()
    _server.set_forkserver_preload(PRELOAD)

    class _RankPopen(popen_forkserver.Popen):
        """Ask our server for a child, and send it what it shall run."""

        def _launch(self, process: Any) -> None:
            setup = spawn.get_preparation_data(process.name)
            setup.pop("init_main_from_name", None)
            setup.pop("init_main_from_path", None)
            message = io.BytesIO()
            set_spawning_popen(self)
            try:
                reduction.dump(setup, message)
                reduction.dump(process, message)
            finally:
                set_spawning_popen(None)
            try:
                self._ask_server(message)
            except (EOFError, OSError):
                # Somebody killed the server. Once it is buried, the next request starts another one.
                time.sleep(0.2)
                self._ask_server(message)

        def _ask_server(self, message: io.BytesIO) -> None:
            self.sentinel, to_child = _server.connect_to_new_process(self._fds)  # type: ignore
            # Python tells a child of its parent's death by the last copy of this pipe's end; the parent keeps one.
            kept = os.dup(to_child)
            self.finalizer = util.Finalize(self, _close, (kept, self.sentinel))
            try:
                with open(to_child, "wb") as pipe:
                    pipe.write(message.getbuffer())
                self.pid = forkserver.read_signed(self.sentinel)
            except (EOFError, OSError):
                self.finalizer()
                raise

    class RankProcess(multiprocessing.context.ForkServerProcess):
        @staticmethod
        def _Popen(process: Any) -> Any:  # noqa: N802 (the name is multiprocessing's)
            return _RankPopen(process)

else:  # pragma: no cover (Windows)
    _server = None  # type: ignore[assignment]

    class RankProcess(multiprocessing.context.SpawnProcess):  # type: ignore[no-redef]
        @staticmethod
        def _Popen(process: Any) -> Any:  # noqa: N802
            with _nameless_main():
                return multiprocessing.context.SpawnProcess._Popen(process)
