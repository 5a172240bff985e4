"""Memory that a rank frees stays with the rank, but for what it will not need again."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from zerolab.system import has

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h
_NEVER, _MOST = 1 << 30, 1 << 25  # bytes; older versions of glibc take no larger threshold for maps than the second

_glibc: Any = None
"""The C library, once this process keeps what it frees; None before."""
_threshold = _NEVER


def keep_freed_memory() -> None:
    """Ask glibc, where it is the allocator, not to hand freed memory back to the system. A training step frees and
    takes the same gradients and activations again and again; each time the system would fill their pages with zeros
    anew, which takes as long as computing them. ZEROLAB_KEEP_FREED_MEMORY=0 leaves glibc as it is."""
    global _glibc, _threshold
    if os.environ.get("ZEROLAB_KEEP_FREED_MEMORY") == "0" or not has("mallopt"):
        return
    _glibc = library = ctypes.CDLL(None)
    # Either threshold alone would also end glibc's own adjustment of the other.
    library.mallopt(_TRIM_THRESHOLD, _NEVER)
    if not library.mallopt(_MMAP_THRESHOLD, _NEVER):
        _threshold = _MOST
        library.mallopt(_MMAP_THRESHOLD, _MOST)


def environment() -> dict[str, str]:
    """What a process that will keep freed memory must find in its environment when it starts. Torch asks for blocks
    that start at a multiple of 64 bytes, so glibc takes a longer one and cuts a few bytes off both ends. Its cache of
    small blocks (tcache) hands those out; then the block, once freed, is too short for the same request. Without that
    cache the cuttings mostly join the block again when it is freed."""
    if os.environ.get("ZEROLAB_KEEP_FREED_MEMORY") == "0" or not has("mallopt"):
        return {}
    given = os.environ.get("GLIBC_TUNABLES")
    return {"GLIBC_TUNABLES": ":".join([*([given] if given else []), "glibc.malloc.tcache_count=0"])}


def keeps_freed_memory() -> bool:
    """Whether this process was asked to."""
    return _glibc is not None


def hand_back() -> None:
    """Give the system what is free now: after something large that does not come again, as a model before it was
    sharded."""
    if _glibc is not None:
        _glibc.malloc_trim(0)


@contextmanager
def mapped(least: int) -> Iterator[None]:
    """Inside, blocks of `least` bytes and more come from the system, each as a mapping of its own."""
    _glibc.mallopt(_MMAP_THRESHOLD, least)
    try:
        yield
    finally:
        _glibc.mallopt(_MMAP_THRESHOLD, _threshold)
