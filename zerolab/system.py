"""What not every system has, asked in one place; each thing has a fallback, named beside it.

ZEROLAB_WITHOUT hides things, by their names with commas between them, or "all": so the fallbacks are tried on a system
that has everything. Like each variable of the environment it reaches the ranks, too.
"""

from __future__ import annotations

import ctypes
import importlib.util
import mmap
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from zerolab.errors import InputError

VARIABLE = "ZEROLAB_WITHOUT"
_LINUX = sys.platform == "linux"


@dataclass(frozen=True)
class Thing:
    """`found()` looks for it on this system, once; `instead` is what happens where it is missing."""

    found: Callable[[], bool]
    instead: str


THINGS = {
    "memfd": Thing(
        lambda: hasattr(os, "memfd_create") and os.path.isdir("/proc/self/fd"),
        "ranks send messages around a ring instead of sharing memory",
    ),
    "proc": Thing(
        lambda: _LINUX and os.path.isdir("/proc/self/task"),
        "a launch in lockstep that failed waits a moment for its threads instead of looking at them; answers have no "
        "limit on memory",
    ),
    "forkserver": Thing(
        lambda: "forkserver" in multiprocessing.get_all_start_methods(),
        "each rank is a new Python that imports torch, in seconds instead of milliseconds",
    ),
    "prctl": Thing(
        lambda: _LINUX and hasattr(ctypes.CDLL(None), "prctl"),
        "ranks outlive a fork server that is killed for as long as their parent lives; what an answer started and let "
        "go of is found by its folder alone",
    ),
    "mremap": Thing(
        lambda: _LINUX and hasattr(ctypes.CDLL(None), "mremap"),
        "gathered units come from the allocator, and the places where they were stay resident",
    ),
    "affinity": Thing(
        lambda: hasattr(os, "sched_getaffinity"),
        "ranks share out all cores of the machine, also those that this process may not use",
    ),
    "limits": Thing(
        lambda: importlib.util.find_spec("resource") is not None,
        "grading does not know that a limit on memory is lower than an answer may take",
    ),
    "groups": Thing(
        lambda: hasattr(os, "setpgid") and hasattr(os, "setsid") and hasattr(os, "killpg"),
        "what a rank that failed has started itself is left to go on",
    ),
    "signals": Thing(
        lambda: hasattr(signal, "SIGUSR1"),
        "the report of ranks that do not finish has no lines of code for those that compute",
    ),
    "locks": Thing(
        lambda: importlib.util.find_spec("fcntl") is not None,
        "folders and swap files that killed runs left behind are neither removed nor named",
    ),
    "direct": Thing(
        lambda: hasattr(os, "O_DIRECT") and importlib.util.find_spec("fcntl") is not None,
        "the disk tier goes through the page cache, and the report of a run says so",
    ),
    "reserve": Thing(
        lambda: hasattr(os, "posix_fallocate"),
        "a swap file's space is reserved by writing zeros",
    ),
    "advice": Thing(
        lambda: hasattr(os, "posix_fadvise") and hasattr(os, "fdatasync"),
        "what goes through the page cache stays there until the system needs the room",
    ),
    "hugepages": Thing(
        lambda: hasattr(mmap, "MADV_HUGEPAGE"),
        "buffers of the disk tier lie in pages of the usual size",
    ),
    "namespaces": Thing(
        lambda: _LINUX and hasattr(ctypes.CDLL(None), "unshare"),
        "a sweep's links are simulated; one that is to be shaped by the kernel is refused",
    ),
    "landlock": Thing(
        lambda: _LINUX,
        "what an answer may read, write and signal is refused by Python's audit hook alone",
    ),
}
"""By name. Whether a Linux has Landlock depends on its version (`zerolab.course.grade.cage.version`)."""


def has(thing: str) -> bool:
    """Whether this system has `thing`, a name in THINGS, and ZEROLAB_WITHOUT does not hide it. Raises an InputError
    where that names what there is not."""
    return thing not in _hidden(os.environ.get(VARIABLE, "")) and _found(thing)


@cache
def _found(thing: str) -> bool:
    return THINGS[thing].found()


@cache
def _hidden(names: str) -> frozenset[str]:
    listed = frozenset(name.strip() for name in names.split(",")) - {""}
    if unknown := sorted(listed - THINGS.keys() - {"all"}):
        raise InputError(f"{VARIABLE} names {unknown[0]!r}; it takes all or some of {', '.join(THINGS)}")
    return frozenset(THINGS) if "all" in listed else listed
