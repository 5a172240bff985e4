"""How a rank that somebody else has started parts from the others.

One that ended well closes its connections. One that failed must not: to end NCCL is to wait for collectives that other
ranks never enter, and Python at its end waits for threads that are in one; meanwhile the launcher, which ends the
others once a rank has failed, sees it run. So it says its error and leaves at once.
"""

from __future__ import annotations

import atexit
import gc
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, NoReturn

import torch.distributed as dist
from torch.distributed import distributed_c10d

from zerolab.ranks import folders
from zerolab.ranks.leave import leave

FAILED, INTERRUPTED = 1, 128 + signal.SIGINT
Hook = Callable[[type[BaseException], BaseException, TracebackType | None], object]
LATER_SECONDS = 2.0
"""So much longer a rank waits with its end if it failed only because another one was gone: launchers name the rank that
ended first."""
_joined = _failed = _first = False
_status = 0
"""The exit status that the script asked for after its launch had failed; 0: none."""


def join() -> None:
    """This process has made the world that it is in, and so is the one to end it."""
    global _joined
    if not _joined:
        _joined = True
        atexit.register(part)
        # Called before Python waits for threads, which `atexit`'s are not.
        threading._register_atexit(leave_as_asked)  # type: ignore[attr-defined]
        sys.excepthook = leaving(sys.excepthook)
        sys.exit = noting(sys.exit)


@contextmanager
def noted() -> Iterator[None]:
    """Around a launch: note whether it has failed. A script that catches the error may go on, but calls of that launch
    may still be under way; they have ended once a later launch ends well, which all ranks do together."""
    global _failed, _first, _status
    _failed, _first, _status = True, True, 0
    try:
        yield
    except SystemExit as error:
        _status = status_of(error.code)
        raise
    _failed = False


def failed_first(first: bool) -> None:
    """Note whether the launch failed on this rank by itself (`first`), or only because another one was gone."""
    global _first
    _first = first


def is_joined() -> bool:
    """Whether there is a world that `join` was called for."""
    return _joined and dist.is_initialized()


def part() -> None:
    """Close the connections while the interpreter is whole: a thread of theirs that lets a tensor go later, when Python
    is already being taken apart, aborts the process. After a launch that failed they are cut: that waits for nobody."""
    if dist.is_initialized():
        if _failed:
            with suppress(RuntimeError):
                distributed_c10d._abort_process_group()
        else:
            dist.destroy_process_group()
    gc.collect()


def leaving(hook: Hook) -> Hook:
    """An excepthook that shows an error by `hook` and then ends the process. At a prompt such an error ends nothing."""

    def said(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        try:
            hook(kind, error, trace)
        finally:
            # Also if it could not be shown.
            if is_joined() and not (hasattr(sys, "ps1") or sys.flags.inspect):
                leave_failed(INTERRUPTED if issubclass(kind, KeyboardInterrupt) else FAILED)

    return said


def noting(leave_python: Callable[..., NoReturn]) -> Callable[..., NoReturn]:
    """`sys.exit`, of which Python tells nobody with what it was called. Noted where a launch has failed, as by a script
    that catches the error and says it in its own words."""

    def exit(status: Any = None, /) -> NoReturn:
        global _status
        if _failed:
            _status = status_of(status)
        leave_python(status)

    return exit


def status_of(asked: Any) -> int:
    """The status of a process that calls `sys.exit(asked)`."""
    return asked if isinstance(asked, int) else FAILED if asked is not None else 0


def leave_as_asked() -> None:
    """Leave now, if the last launch has failed and the script ends with a status that says so."""
    if _status and is_joined():
        leave_failed(_status)


def leave_failed(status: int) -> NoReturn:
    """End this process now, with all that it has printed shown and its temporary folders gone."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    with suppress(Exception):
        folders.remove_all()
    if _failed and not _first:
        time.sleep(LATER_SECONDS)
    leave(status)
