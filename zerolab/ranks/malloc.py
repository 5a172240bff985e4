"""How ranks have malloc set, and what they ask of it. (glibc)"""

from __future__ import annotations

import ctypes
import os
from functools import cache
from pathlib import Path

TUNABLES = {"tcache_count": 0, "mmap_max": 0, "trim_threshold": 1 << 40}
"""Settings of glibc's malloc in ranks, which keep what they free: the system would zero it in each step. (The tcache
hands out the ends that were cut off aligned blocks, which are too short from then on.)"""


def make_malloc_settings() -> dict[str, str]:
    """The variable that has a new process keep what it frees, unless ZEROLAB_KEEP_FREED_MEMORY=0."""
    if os.environ.get("ZEROLAB_KEEP_FREED_MEMORY") == "0":
        return {}
    given = os.environ.get("GLIBC_TUNABLES")
    settings = [f"glibc.malloc.{name}={value}" for name, value in TUNABLES.items()]
    return {"GLIBC_TUNABLES": ":".join([*([given] if given else []), *settings])}


@cache
def keeps_freed_memory() -> bool:
    """Whether this process was born with a malloc that keeps what is freed."""
    own = Path("/proc/self/environ")
    glibc = own.exists() and hasattr(ctypes.CDLL(None), "malloc_trim")
    return glibc and b"glibc.malloc.mmap_max=0" in own.read_bytes()


def hand_back() -> None:
    """Give the system what is free now: after something large that does not come again."""
    if keeps_freed_memory():
        ctypes.CDLL(None).malloc_trim(0)
