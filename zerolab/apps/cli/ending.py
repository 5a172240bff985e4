"""How a command ends when something outside goes wrong: a signal, a full disk, a stream that is closed. Always with a
sentence and a status.

A signal ends the command from wherever it is, in the middle of an import if need be, and not by an exception, which
could be lost there: ranks are ended, temporary folders are removed, and the process leaves at once. A run that saves
checkpoints is told of its first SIGTERM instead, and ends by itself.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

INTERRUPTED = 128 + signal.SIGINT
LONGEST = 400
"""Characters of an error that is not our own."""

command = "zerolab"
"""Who speaks; with the command's name once it is known."""
TERMINATED = 128 + getattr(signal, "SIGTERM", 15)
_told: list[Callable[[], None]] = []
"""What the next SIGTERM does in place of ending the command."""
_closed: set[int] = set()
"""Standard streams that were closed when this process began."""


def take_signals() -> None:
    """End by a line and a status when a signal asks for it; one that this process was told to ignore stays ignored."""
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
            signal.signal(number, _end)
    # When Python goes it gives signals their defaults back; one that comes so late finds all done. Begun first, this is
    # the last that Python does at its exit.
    atexit.register(_ignore_signals)


def _ignore_signals() -> None:
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)


@contextmanager
def on_first_sigterm(tell: Callable[[], None]) -> Iterator[None]:
    """While the block runs, the first SIGTERM calls `tell`, which says to whoever works that it is time to end. The
    second ends the command at once."""
    _told.append(tell)
    try:
        yield
    finally:
        _told.clear()


def _end(number: int, frame: FrameType | None) -> None:
    if number == signal.SIGTERM and _told:
        _told.pop()()
        return
    _ignore_signals()
    try:
        _end_ranks()
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):
                stream.flush()
        why = "interrupted" if number == signal.SIGINT else f"ended by {signal.Signals(number).name}"
        with suppress(OSError):
            # A line of progress may be there on a terminal.
            start = "\n" if os.isatty(2) else ""
            os.write(2, f"{start}{command}: {why}; all ranks were ended\n".encode())
    finally:
        os._exit(128 + number)


def _end_ranks() -> None:
    """End the ranks and their server, and remove the temporary folders. A module that was not imported has started
    nothing."""
    names = ("ranks.folders", "ranks.forkserver", "ranks.folders")
    rooms = [sys.modules.get(f"zerolab.{name}") for name in names]
    for module, name in zip(rooms, ("say_farewell", "end_server", "remove_all"), strict=True):
        with suppress(Exception):
            if call := getattr(module, name, None):
                call()


def part(status: int) -> None:
    """Leave at once with a status of failure where this process is a rank that torchrun has started and that has joined
    the others: to end in order would be to wait for them."""
    torchrun = sys.modules.get("zerolab.ranks.join")
    if status and torchrun is not None and torchrun.made_world():
        torchrun.leave_world(status)


def open_streams() -> None:
    """Open what of the three standard streams is closed, onto nothing: else the next file that is opened would be taken
    for it."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
        if getattr(sys, name) is None:
            _closed.add(number)
            setattr(sys, name, open(os.devnull, "r" if number == 0 else "w", encoding="utf-8"))  # noqa: SIM115


def say(text: str) -> None:
    """A line on standard error, or, where nobody hears that, on standard output."""
    for number, stream in ((2, sys.stderr), (1, sys.stdout)):
        if number not in _closed:
            try:
                print(text, file=stream, flush=True)
                return
            except OSError:
                silence(number)
            except ValueError:
                # Somebody has closed it.
                pass


def show(text: str) -> None:
    """Write a text to standard output, to the end; raises an OSError if that cannot be."""
    if 1 in _closed:
        raise OSError("it is closed")
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError:
        silence()
        raise


def flushed() -> bool:
    """Whether all that was printed has been written. What has not is dropped, so that Python does not try again."""
    try:
        sys.stdout.flush()
    except OSError:
        silence()
        return False
    except ValueError:
        # Somebody has closed it, with all that it held.
        pass
    return True


def shown() -> bool:
    """Whether all that was printed has been written; else it is said that it was not."""
    if flushed():
        return True
    say(f"{command}: standard output could not be written to the end")
    return False


def silence(number: int = 1) -> None:
    """Standard output, or standard error, goes nowhere from now on, with what it still holds: Python would try to write
    that at its end, and end with a status of its own."""
    stream = sys.stdout if number == 1 else sys.stderr
    nowhere = os.open(os.devnull, os.O_WRONLY)
    with suppress(OSError, ValueError):
        os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
    _closed.add(number)


def wants_traceback() -> bool:
    return bool(os.environ.get("ZEROLAB_TRACEBACK"))


def in_one_sentence(error: Exception) -> str:
    """An error that is not our own."""
    if isinstance(error, MemoryError):
        return "there was not enough memory; make the run smaller, or raise the limit"
    if isinstance(error, RuntimeError) and "start new thread" in str(error):
        return "no more threads or processes can be started; raise the limit (ulimit -u), or end some that run"
    said = " ".join(str(error).split())
    said = said if len(said) <= LONGEST else f"{said[:LONGEST]}..."
    if isinstance(error, OSError):
        named = f", for {error.filename}" if error.filename else ""
        why = f"{error.strerror or said}{named}"
        return f"the system refused something that this needs ({why}); see what is limited or full"
    return f"{type(error).__name__}: {said} (for where, set ZEROLAB_TRACEBACK=1 and run it again)"
