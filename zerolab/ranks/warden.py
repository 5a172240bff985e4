"""The end of what a server has forked: with its client, whatever it is doing.

A rank that computes in C, or stands still, does not notice that its parent is gone. The server does, by a pipe; then it
lets ranks leave in order for a moment and kills the rest, with all that they started. Should somebody kill the server
itself, Linux kills what it has forked.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from contextlib import suppress

import psutil

from zerolab.ranks import folders
from zerolab.system import has

GRACE_SECONDS = 1.0
"""How long ranks may take to leave by themselves, and to take with them what is theirs outside."""
_KILLED_WITH_PARENT, _CHILD_SUBREAPER = 1, 36


def die_with_parent() -> None:
    """From now on this process is killed when the thread that forked it ends (Linux). A server has one thread, so that
    is when the server ends."""
    parent = os.getppid()
    _prctl(_KILLED_WITH_PARENT, getattr(signal, "SIGKILL", 0))
    if os.getppid() != parent:
        # It ended before it was asked.
        os._exit(1)


def gather_descendants() -> None:
    """Orphans among what this process started become its own children (Linux), so that they can be found."""
    _prctl(_CHILD_SUBREAPER, 1)


def _prctl(option: int, value: int) -> None:
    if has("prctl"):
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def end_children(server: int) -> None:
    """End the server `server`, whose client has ended: all that it forked, what these have started, and then itself.
    Takes away the client's folders, too, if that was killed. In a fork of the server it does nothing."""
    if os.getpid() != server:
        return
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        gather_descendants()
        deadline = time.monotonic() + GRACE_SECONDS
        while _reap() and time.monotonic() < deadline:
            time.sleep(0.01)
        for _ in range(100):
            if not (found := _descendants()):
                break
            for process in found:
                with suppress(psutil.Error):
                    process.kill()
            _reap()
            time.sleep(0.02)
        # A client that is just ending closes our pipe before it gives up its folders, and a busy machine may stop it
        # in between.
        for _ in range(5):
            if not folders.sweep():
                break
            time.sleep(0.05)
    finally:
        os._exit(0)


def _descendants() -> list[psutil.Process]:
    """All that descend from this process and have not ended."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def _reap() -> bool:
    """Bury children that have ended; whether others live."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True
