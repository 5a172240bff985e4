"""How a command ends when something outside goes wrong: with a sentence and a status.

A signal raises nothing, which could be lost on its way: ranks are ended, folders removed, and the process leaves at
once. A run that saves checkpoints is told of its first SIGTERM.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from textwrap import shorten
from types import FrameType

from zerolab.errors import ZerolabError

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


command = "zerolab"
"""Who speaks; with the command's name once it is known."""
_asked: list[Callable[[], None]] = []
"""What the next SIGTERM does in place of ending the command."""


def take_signals() -> None:
    """End by a line and a status when a signal asks for it; one that is ignored stays so."""
    for number in SIGNALS:
        if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
            signal.signal(number, _end)
    # When Python goes it gives signals their defaults back.
    atexit.register(_ignore_signals)


def _ignore_signals() -> None:
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


@contextmanager
def on_first_sigterm(ask: Callable[[], None]) -> Iterator[None]:
    """While the block runs, the first SIGTERM calls `ask`. The second ends the command at once."""
    _asked.append(ask)
    try:
        yield
    finally:
        _asked.clear()


def _end(number: int, frame: FrameType | None) -> None:
    if number == signal.SIGTERM and _asked:
        _asked.pop()()
        return
    _ignore_signals()
    try:
        # A module that was not imported has started nothing.
        for call in ("folders.say_farewell", "forkserver.end_server", "folders.remove_all"):
            with suppress(Exception):
                room, _, name = call.partition(".")
                getattr(sys.modules[f"zerolab.ranks.{room}"], name)()
        with suppress(Exception):
            sys.stdout.flush()
        with suppress(OSError):
            # A line of progress may be there on a terminal.
            start = "\n" if os.isatty(2) else ""
            line = f"{start}{command}: {in_words(number)}; all ranks were ended\n"
            os.write(2, line.encode())
    finally:
        os._exit(128 + number)


def in_words(number: int) -> str:
    return "interrupted" if number == signal.SIGINT else f"ended by {signal.Signals(number).name}"


def leave_group(status: int) -> None:
    """Leave at once after a failure as a rank of torchrun's, without waiting for others."""
    torchrun = sys.modules.get("zerolab.ranks.join")
    if status and torchrun is not None and torchrun.made_world():
        torchrun.leave_world(status)


def print_error(text: object) -> None:
    with suppress(OSError, ValueError):
        print(f"{command}: {text}", file=sys.stderr, flush=True)


def print_output(text: str) -> None:
    """Write a text to standard output, to the end; raises an OSError if that cannot be."""
    if sys.stdout is None:
        raise OSError("it is closed")
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError:
        # Python would try again at its end, and end with a status of its own.
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise


def in_one_sentence(error: Exception) -> str:
    """An error as it is where it is our own; else what it is, and what to do."""
    if isinstance(error, ZerolabError):
        return str(error)
    said = shorten(str(error), 400, placeholder="...")
    if isinstance(error, OSError):
        named = f", for {error.filename}" if error.filename else ""
        why = f"{error.strerror or said}{named}"
        return f"the system refused something that this needs ({why}); see what is limited or full"
    return f"{type(error).__name__}: {said} (for where, set ZEROLAB_TRACEBACK=1 and run it again)"
