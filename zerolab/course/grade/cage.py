"""What the system itself keeps from a process that runs answers: files that are not its business, signals to others,
endless memory and files. And how such a process is ended with all that it started.

Landlock (Linux 5.13 and later) needs no rights: a process gives up what it and all that it starts will never need. It
may read Python, the system and the package zerolab, not the folders around that: no solutions, no other learner's file.
It may write in its own folder, and to /dev/null. From Linux 6.12 on it may send signals to its own descendants only.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import struct
import sys
import sysconfig
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from zerolab.system import has

PACKAGE = Path(__file__).resolve().parents[2]

# The system calls have these numbers on every processor but alpha; the flags are those of linux/landlock.h.
_CREATE, _ADD, _RESTRICT = 444, 445, 446
_NO_NEW_PRIVILEGES = 38
_VERSION = 1
_BENEATH = 1
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_FOLDER, _CUT_FILE = 1, 2, 4, 8, 2**14
_READ = _EXECUTE | _READ_FILE | _READ_FOLDER
_FILES_BY_VERSION = {1: 2**13 - 1, 2: 2**14 - 1, 3: 2**15 - 1, 5: 2**16 - 1}
_SCOPES = 1 | 2
"""Sockets without a file, and signals: both only among those that share the fence."""


@dataclass(frozen=True)
class Limits:
    """What an exercise may take: seconds of real time, and mebibytes above what an idle process takes."""

    seconds: float = 60.0
    memory_mb: int = 2048


def version() -> int:
    return _call(_CREATE, None, 0, _VERSION) if has("landlock") else -1


def fence(folder: Path) -> bool:
    """Give up what lies outside, for this process and all that it will start; whether the system can do that."""
    known = version()
    if known < 1:
        return False
    handled = next(flags for since, flags in sorted(_FILES_BY_VERSION.items(), reverse=True) if known >= since)
    # Each version of the system knows a longer form: files, then ports, then scopes.
    form = "=Q" if known < 4 else "=QQ" if known < 6 else "=QQQ"
    attributes = struct.pack(form, *(handled, 0, _SCOPES)[: form.count("Q")])
    rules = _call(_CREATE, attributes, len(attributes), 0)
    if rules < 0:
        return False
    try:
        for path in readable():
            _allow(rules, path, _READ)
        # Python looks for the package in the folder around it. Names may be listed there; no file may be opened.
        _allow(rules, PACKAGE.parent, _READ_FOLDER)
        _allow(rules, folder, handled & ~_EXECUTE)
        for path in map(Path, ("/dev/null", "/dev/zero", "/dev/full", "/dev/tty", "/dev/random", "/dev/urandom")):
            if path.exists():
                _allow(rules, path, handled & (_READ_FILE | _WRITE_FILE | _CUT_FILE))
        return ctypes.CDLL(None).prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0) == 0 and _call(_RESTRICT, rules, 0) == 0
    finally:
        os.close(rules)


def readable() -> set[Path]:
    """Where Python, its packages, zerolab and the system's own libraries lie; not the checkout around zerolab."""
    packages = [path for path in sys.path if path and Path(path).resolve() != PACKAGE.parent]
    ours = [*sysconfig.get_paths().values(), sys.prefix, sys.base_prefix, str(PACKAGE), *packages]
    system = ["/usr", "/lib", "/lib32", "/lib64", "/bin", "/sbin", "/opt", "/nix", "/etc", "/proc", "/sys", "/dev"]
    return {Path(path).resolve() for path in (*ours, *system) if Path(path).exists()}


def _allow(rules: int, path: Path, access: int) -> None:
    descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        beneath = struct.pack("=Qi", access if path.is_dir() else access & ~_READ_FOLDER, descriptor)
        _call(_ADD, rules, _BENEATH, beneath, 0)
    finally:
        os.close(descriptor)


def _call(*arguments: int | bytes | None) -> int:
    words = (ctypes.c_long(one) if isinstance(one, int) else ctypes.c_char_p(one) for one in arguments)
    return int(ctypes.CDLL(None).syscall(*words))


def limit(megabytes: int) -> None:
    """Refuse this process, and each it starts, more memory above what it takes now, and larger files (Linux)."""
    if not has("proc"):
        return
    more = megabytes * 2**20
    for kind, most in ((resource.RLIMIT_AS, memory_taken() + more), (resource.RLIMIT_FSIZE, more)):
        # A limit that this process was given cannot be raised.
        given = resource.getrlimit(kind)[1]
        most = most if given == resource.RLIM_INFINITY else min(most, given)
        resource.setrlimit(kind, (most, most))


def memory_taken() -> int:
    """Bytes of address space that this process has taken; 0 where the system does not say."""
    return int(psutil.Process().memory_info().vms) if has("proc") else 0


def end_all(leader: int | None, folder: str) -> None:
    """End a process that leads its group, all that descends from it, and whoever still works in its folder. It is None
    where it has ended: its number may be a stranger's by now."""
    if leader:
        with suppress(ProcessLookupError, PermissionError):
            # While it stands still it starts nothing, and its descendants have a parent by whom they are found.
            os.kill(leader, signal.SIGSTOP)
    deadline = time.monotonic() + 5.0
    while (found := _started_by(leader, folder)) and time.monotonic() < deadline:
        for process in found:
            with suppress(psutil.Error):
                process.kill()
        time.sleep(0.002)
    if leader:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(leader, signal.SIGKILL)


def _started_by(leader: int | None, folder: str) -> list[psutil.Process]:
    """What runs and descends from `leader`, or works in `folder`: one that lost its parent is found by where it began.
    What is left of one that was killed stays as long as its parent stands still, and does not count."""
    found, below = [], set[psutil.Process]()
    with suppress(psutil.Error):
        below |= {*psutil.Process(leader).children(recursive=True)} if leader else set()
    for process in {*psutil.process_iter()} | below:
        # It may end between two questions.
        with suppress(psutil.Error, OSError):
            ours = process in below or os.path.samefile(process.cwd(), folder)
            if ours and process.pid not in (leader, os.getpid()) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found
