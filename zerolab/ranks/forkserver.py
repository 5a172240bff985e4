"""How a rank process starts: forked, in milliseconds, by a small server that imported torch once.

The parent may be a notebook kernel with threads and a live CUDA context, so it must not fork itself; a server that
does nothing but import and fork may. This is Python's own `multiprocessing` forkserver with four changes:

* the server is ours alone, so that its preloaded modules do not depend on what else the program starts;
* it lives as long as the process that it serves and no longer: the ranks do not hold the pipe by which it sees that
  process's end, and it ends them all before it goes (`warden.py`);
* a rank never runs the caller's `__main__` again: functions travel by value, so it has no need to. Scripts work
  without an `if __name__ == "__main__"` guard, and a notebook has no file to run;
* where there is no forkserver, each rank is a new Python: the same, but it takes seconds. It ends when it sees that its
  parent is gone (`child.py`); no server does it for it.
"""

from __future__ import annotations

import io
import itertools
import multiprocessing
import multiprocessing.context
import multiprocessing.process
import os
import signal
import subprocess
import sys
import threading
import time
import types
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import reduction, resource_tracker, spawn, util
from pathlib import Path
from typing import Any

from zerolab.errors import DiskError, RankError
from zerolab.ranks import folders, malloc
from zerolab.ranks.interrupts import interrupts_held
from zerolab.ranks.warden import die_with_parent, end_children
from zerolab.system import has

# Named, not imported: it holds the rooms above this one, which no rank needs to start but most rank functions use.
PRELOAD = ["zerolab.preload"]

MOST_SOCKET = 103
"""Bytes of a socket's name that every system takes."""

# Python's table of child processes is not safe against two threads that start or poll at once.
process_table = threading.RLock()


def new_process(target: Any, args: tuple[Any, ...], name: str) -> multiprocessing.process.BaseProcess:
    """A process, not started yet, that will call `target(*args)`; arguments may hold connections."""
    if has("forkserver"):
        return RankProcess(target=_born, args=(target, *args), name=name, daemon=False)
    return SpawnedProcess(target=target, args=args, name=name, daemon=False)


def _born(target: Any, *args: Any) -> None:
    """In a process that comes from the server: tie it to that."""
    die_with_parent()
    pythons: Any = forkserver._forkserver
    if pythons._forkserver_alive_fd is not None:
        os.close(pythons._forkserver_alive_fd)
    # Whoever asks Python for its server in a rank gets one of the rank's.
    pythons.__init__()
    target(*args)


def start_server() -> None:
    """Start the server now and do not wait for it, so that a first launch later finds its imports done."""
    if has("forkserver"):
        _server.ensure_running()


def end_server(seconds: float = 5.0) -> None:
    """End the server and all that it has forked, and wait for that; it is killed if it takes longer than `seconds`. For
    a process that is about to end at once."""
    server: Any = _server
    if server is None or server._forkserver_pid is None:
        return
    pid = server._forkserver_pid
    with suppress(OSError):
        os.close(server._forkserver_alive_fd)
    deadline = time.monotonic() + seconds
    with suppress(ChildProcessError):
        while os.waitpid(pid, os.WNOHANG)[0] == 0:
            if time.monotonic() > deadline:
                os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)


def fork_server() -> None:
    """Make the server of this process by a fork of it, in a hundredth of a second: for a process that was itself forked
    from a server and has done nothing since, so that all imports are there and no thread is."""
    if not has("forkserver"):
        return
    _server.spawn = _fork_passfds
    _server.ensure_running()


def _start_passfds(path: Any, command: Sequence[Any], descriptors: Sequence[int]) -> int:
    """Start the server out of reach of the terminal's Ctrl-C. What it prints goes to a file: a server that ends with
    its parent must not print into the terminal, and what kept it from starting becomes part of an error."""
    with open(_server.said, "ab") as said:
        started = subprocess.Popen(
            [os.fsdecode(part) for part in command],
            executable=os.fsdecode(path),
            env={**os.environ, **malloc.environment()},
            pass_fds=descriptors,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            start_new_session=True,
        )
    # It is waited for by its pid, elsewhere.
    started.returncode = 0
    return started.pid


def _fork_passfds(path: Any, command: Sequence[Any], descriptors: Sequence[int]) -> int:
    """Do in a fork of this process what `command`, a call of Python with "-c", would do in a new one."""
    file_said = _server.said
    if pid := os.fork():
        return pid
    try:
        os.setsid()
        said = os.open(file_said, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        for stream, file in ((0, os.open(os.devnull, os.O_RDONLY)), (1, said), (2, said)):
            os.dup2(file, stream)
        close_all_but(0, 1, 2, *descriptors)
        exec(os.fsdecode(command[-1]), {})
    finally:
        end_children(os.getpid())
        os._exit(1)


def close_all_but(*kept: int) -> None:
    """Close every descriptor of this process but these."""
    most = getattr(os, "sysconf", lambda name: 4096)("SC_OPEN_MAX")
    edges = sorted({-1, *kept, most})
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


@contextmanager
def _interrupts_not_inherited() -> Iterator[None]:
    """What is started in the block does not hear the terminal's Ctrl-C: its parent does, and ends it."""
    mask: Any = getattr(signal, "pthread_sigmask", lambda how, signals: ())
    before = mask(getattr(signal, "SIG_BLOCK", 0), {signal.SIGINT})
    try:
        yield
    finally:
        mask(getattr(signal, "SIG_SETMASK", 0), before)


class SpawnedProcess(multiprocessing.context.SpawnProcess):
    """A rank in a Python of its own."""

    @staticmethod
    def _Popen(process: Any) -> Any:  # noqa: N802 (the name is multiprocessing's)
        with _nameless_main(), _interrupts_not_inherited():
            return multiprocessing.context.SpawnProcess._Popen(process)


def sockets_place(folder: Path) -> str:
    """A name of a folder under which a socket can be made in it. The system takes 107 characters for one at most (103
    on macOS); Linux has a short name for any folder that is open, which this one then stays. Raises a DiskError where
    there is none."""
    if len(os.fsencode(folder)) + len("/listener-01234567") <= MOST_SOCKET:
        return str(folder)
    descriptor = os.open(folder, os.O_RDONLY)
    short = f"/proc/self/fd/{descriptor}"
    if os.path.exists(short):
        return short
    os.close(descriptor)
    raise DiskError(
        f"the temporary folder {folder.parent} has a name of {len(os.fsencode(folder.parent))} characters, too long "
        "for the socket that ranks are started by; name a shorter one in TMPDIR"
    )


def _close(*descriptors: int) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


if "forkserver" in multiprocessing.get_all_start_methods():
    from multiprocessing import forkserver, popen_forkserver
    from multiprocessing.context import set_spawning_popen

    class _Server(forkserver.ForkServer):
        """Python's, with a folder of ours for its socket, and started as `spawn` says."""

        def __init__(self) -> None:
            super().__init__()
            self.spawn = _start_passfds
            self._starting = threading.RLock()
            self._folder: Path | None = None
            self._place = ""

        @property
        def said(self) -> Path:
            """What the server, and what it forks before that has its own streams, has written."""
            assert self._folder is not None
            return self._folder / "said"

        def ensure_running(self) -> None:
            with self._starting, interrupts_held():
                if self._folder is None or not self._folder.exists():
                    folders.sweep()
                    self._folder = folders.make_folder("server")
                    self._place = sockets_place(self._folder)
                # Python would start its resource tracker below, by our `spawn`; start it now, in Python's own way.
                resource_tracker.ensure_running()
                config = multiprocessing.current_process()._config  # type: ignore[attr-defined]
                before, spawn_one = config.get("tempdir"), util.spawnv_passfds
                config["tempdir"], util.spawnv_passfds = self._place, self.spawn  # type: ignore
                try:
                    super().ensure_running()
                finally:
                    config["tempdir"], util.spawnv_passfds = before, spawn_one  # type: ignore

        def connect_to_new_process(self, fds: Any) -> Any:
            """As Python's, but a rank gets /dev/null in place of the pipe by which the server sees our end: a rank that
            stood still with that pipe open would keep the server from seeing it."""
            with self._starting, interrupts_held():
                self.ensure_running()
                state: Any = self
                pipe, nothing = state._forkserver_alive_fd, os.open(os.devnull, os.O_RDONLY)
                state._forkserver_alive_fd = nothing
                try:
                    return super().connect_to_new_process(fds)
                finally:
                    # Unless another server had to be started meanwhile, with a pipe of its own.
                    if state._forkserver_alive_fd == nothing:
                        state._forkserver_alive_fd = pipe
                        os.close(nothing)
                    else:
                        os.close(pipe)

        def why(self, error: Exception) -> str:
            """Why it does not serve, in words."""
            with suppress(OSError):
                if lines := self.said.read_text(errors="replace").strip().splitlines():
                    return lines[-1]
            return folders.reason(error) if isinstance(error, OSError) else "it said nothing"

    _server = _Server()
    _server.set_forkserver_preload(PRELOAD)

    def _forget_server() -> None:
        """In a fork of this process: the server is the parent's, which alone can wait for it; whoever launches ranks
        here gets one of its own. The locks may have been held by a thread that the fork does not have. Its temporary
        folders are the parent's, too."""
        folders.forget_in_fork()
        alive = _server._forkserver_alive_fd  # type: ignore[attr-defined]
        if alive is not None:
            # The server shall see the end of the parent, and not wait for ours.
            with suppress(OSError):
                os.close(alive)
        _server.__init__()  # type: ignore[misc]
        _server.set_forkserver_preload(PRELOAD)
        process_table._at_fork_reinit()  # type: ignore[attr-defined]

    os.register_at_fork(after_in_child=_forget_server)

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
                try:
                    self._ask_server(message)
                except (EOFError, OSError) as error:
                    raise RankError(
                        f"the process that ranks are forked from does not serve ({_server.why(error)}); see whether "
                        "memory, open files and processes are limited, and raise the limit"
                    ) from error

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
    RankProcess = SpawnedProcess  # type: ignore[assignment, misc]
