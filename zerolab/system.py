"""What Linux has and macOS has not, asked in one place; each thing has a fallback, named beside it."""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

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
    "prctl": Thing(
        lambda: _LINUX and hasattr(ctypes.CDLL(None), "prctl"),
        "ranks outlive a fork server that is killed for as long as their parent lives; what an answer started and let "
        "go of is found by its folder alone",
    ),
    "affinity": Thing(
        lambda: hasattr(os, "sched_getaffinity"),
        "ranks share out all cores of the machine, also those that this process may not use",
    ),
    "direct": Thing(
        lambda: hasattr(os, "O_DIRECT"),
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
    "landlock": Thing(
        lambda: _LINUX,
        "what an answer may read, write and signal is refused by Python's audit hook alone",
    ),
}
"""By name. Whether a Linux has Landlock depends on its version (`zerolab.course.grade.cage.version`)."""


def has(thing: str) -> bool:
    """Whether this system has `thing`, a name in THINGS."""
    return _found(thing)


@cache
def _found(thing: str) -> bool:
    return THINGS[thing].found()
