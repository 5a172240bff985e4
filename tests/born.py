"""Programs in processes of their own that need not import torch first: forks of the server that has it already.

A Python that imports torch takes two seconds of a processor, and the server of its ranks as long again; many tests want
a process, with its signals, streams, limits and status, and not a start. `Program` is a `subprocess.Popen` for these:
it runs `python *words` in a fork of this process's server, and forks the program's own server, too. By night, and where
there is no server, it is a new Python, as it is everywhere in tests of how a Python starts or is started.
"""

from __future__ import annotations

import atexit
import ctypes
import io
import itertools
import os
import random
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import types
from collections.abc import Callable, Mapping
from contextlib import suppress
from multiprocessing import process as processes
from multiprocessing import reduction
from typing import Any, NoReturn

import numpy
import torch.multiprocessing
from cover import NIGHTLY

from zerolab.course.grade.forked import fork_server
from zerolab.ranks import forkserver

CLONE_NEWNET = 0x40000000
FORKS = not NIGHTLY


def python(*words: object, **options: Any) -> Any:
    """`python *words`, begun: a `subprocess.Popen`. `options` are its, but for `executable`, `preexec_fn`, `shell` and
    those that change what a process may do. The program's own server is there from the start; with `server="own"` it is
    a new Python, started where the program first launches ranks: under the limits that it has then, or never. With a
    `network`, the name of a network namespace, all of it is there."""
    given = [str(word) for word in words]
    if FORKS:
        return Program(given, **options)
    options.pop("server", None)
    inside = ["ip", "netns", "exec", network] if (network := options.pop("network", "")) else []
    return subprocess.Popen([*inside, sys.executable, *given], **options)


def ran(*words: object, timeout: float, check: bool = False, **options: Any) -> subprocess.CompletedProcess[Any]:
    """`python *words` as `subprocess.run` would give it back."""
    if options.pop("capture_output", False):
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    given = options.pop("input", None)
    if given is not None:
        options["stdin"] = subprocess.PIPE
    with python(*words, **options) as program:
        try:
            printed, said = program.communicate(given, timeout=timeout)
        except BaseException:
            program.kill()
            raise
    done = subprocess.CompletedProcess([str(word) for word in words], program.returncode, printed, said)
    if check:
        done.check_returncode()
    return done


def spawn(function: Callable[..., None], *args: Any, ranks: int) -> None:
    """`function(rank, *args)` in a process a rank, all at once, as by `torch.multiprocessing.spawn`."""
    if not FORKS:
        torch.multiprocessing.spawn(function, args=args, nprocs=ranks)
        return
    begun = [forkserver.start_process(function, (rank, *args), f"rank {rank}") for rank in range(ranks)]
    for process in begun:
        process.join()
    assert [process.exitcode for process in begun] == [0] * ranks


class Program(subprocess.Popen[Any]):
    """A fork of the server; what is asked of a Popen is asked of it."""

    def __init__(
        self, words: list[str], start_new_session: bool = False, server: str = "fork", network: str = "", **options: Any
    ) -> None:
        self._how = {"session": start_new_session, "server": server, "network": network}
        super().__init__(words, **options)

    def _execute_child(self, args: Any, executable: Any, *rest: Any) -> None:
        preexec_fn, _, passed, cwd, env, _, _, shell, p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite, *_ = rest
        assert executable is None and preexec_fn is None and not passed and not shell
        streams = [given if given >= 0 else own for own, given in enumerate((p2cread, c2pwrite, errwrite))]
        environment = dict(os.environ if env is None else env)
        self._born = forkserver.start_process(
            live,
            (args, os.path.abspath(cwd or "."), environment, self._how, *map(Descriptor, streams)),
            "program",
        )
        self.pid = self._born.pid or 0
        self._child_created = True
        # Whoever asks for its process group now, to send that a signal, shall not get the server's.
        with suppress(ProcessLookupError):
            while self._how["session"] and os.getsid(self.pid) != self.pid:
                time.sleep(0.001)
        self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)  # type: ignore[attr-defined]

    def _internal_poll(self, *rest: Any, **more: Any) -> int | None:
        return self._ended(0)

    def _wait(self, timeout: float | None) -> int:
        if self._ended(timeout) is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return self.returncode

    def _ended(self, timeout: float | None) -> int | None:
        if self.returncode is None:
            self._born.join(timeout)
            self.returncode = self._born.exitcode  # type: ignore[assignment]
        return self.returncode


class Descriptor:
    """An open file that travels to the fork; there it is a number."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __reduce__(self) -> tuple[Callable[[Any], int], tuple[Any]]:
        return taken, (reduction.DupFd(self.number),)


def taken(descriptor: Any) -> int:
    return int(descriptor.detach())


# In the fork


def live(words: list[str], directory: str, environment: Mapping[str, str], how: Any, *streams: int) -> NoReturn:
    """Be the process that `python *words` would be, from here to its end."""
    status = 1
    try:
        if how["session"]:
            os.setsid()
        settle(directory, environment, streams)
        if how["network"]:
            enter(how["network"])
        if how["server"] == "fork":
            fork_server()
        status = run(words)
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        if status < 0:
            signal.signal(-status, signal.SIG_DFL)
            os.kill(os.getpid(), -status)
    except BaseException:
        os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(status & 255)


def settle(directory: str, environment: Mapping[str, str], streams: tuple[int, ...]) -> None:
    """What a new process finds: its streams, its place, its environment, and no memory of a server."""
    for place, number in enumerate(streams):
        os.dup2(number, place)
    for number in set(streams) - {0, 1, 2}:
        os.close(number)
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environment)
    unbuffered = bool(os.environ.get("PYTHONUNBUFFERED"))
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    binary = open(1, "wb", buffering=0 if unbuffered else -1, closefd=False)  # noqa: SIM115
    sys.stdout = io.TextIOWrapper(binary, encoding="utf-8", write_through=unbuffered)
    binary = open(2, "wb", closefd=False)  # noqa: SIM115
    sys.stderr = io.TextIOWrapper(binary, encoding="utf-8", errors="backslashreplace", line_buffering=True)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    processes.current_process().name = "MainProcess"
    processes._parent_process = None  # type: ignore[attr-defined]
    processes._children, processes._process_counter = set(), itertools.count(1)  # type: ignore[attr-defined]
    tempfile.tempdir = None
    random.seed()
    numpy.random.seed()
    atexit.unregister(forkserver.end_children)
    # Where sockets are made.
    processes.current_process()._config.pop("tempdir", None)  # type: ignore[attr-defined]


def enter(network: str) -> None:
    """Go into a network namespace, as `ip netns exec` does."""
    descriptor = os.open(f"/run/netns/{network}", os.O_RDONLY)
    if ctypes.CDLL(None, use_errno=True).setns(descriptor, CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns", network)
    os.close(descriptor)


def run(words: list[str]) -> int:
    """The program itself; its status, or minus the signal that it ends by, as Python does."""
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    searched = environment_path()
    try:
        if words[0] == "-m":
            sys.argv, sys.path[:0] = ["-m", *words[2:]], [os.getcwd(), *searched]
            if words[1] == "torch.distributed.run":
                fork_its_workers()
            runpy._run_module_as_main(words[1])  # type: ignore[attr-defined]
        elif words[0] == "-c":
            sys.argv, sys.path[:0] = ["-c", *words[2:]], ["", *searched]
            exec(compile(words[1], "<string>", "exec"), main.__dict__)
        else:
            sys.argv, sys.path[:0] = words, [os.path.dirname(os.path.abspath(words[0])), *searched]
            main.__file__ = words[0]
            with open(words[0], "rb") as file:
                code = compile(file.read(), words[0], "exec")
            exec(code, main.__dict__)
    except SystemExit as asked:
        if asked.code is None or isinstance(asked.code, int):
            return asked.code or 0
        print(asked.code, file=sys.stderr)
        return 1
    except BaseException as error:
        trace = error.__traceback__
        error = error.with_traceback(trace.tb_next if trace else None)
        sys.excepthook(type(error), error, error.__traceback__)
        return -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    return 0


def fork_its_workers() -> None:
    """What torchrun starts in this process are forks, too."""
    from torch.distributed.elastic.multiprocessing.subprocess_handler import subprocess_handler

    def begun(args: tuple[str, ...], **options: Any) -> Program:
        assert args[:2] == (sys.executable, "-u"), args
        return Program(list(args[2:]), **options)

    subprocess_handler.Popen = begun  # type: ignore[assignment, misc]


def environment_path() -> list[str]:
    """Where this program's environment has Python look for modules, and the server's has not."""
    named = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    return [path for path in named if path not in sys.path]
