"""Memory that a rank frees stays with the rank."""

from __future__ import annotations

import ctypes
import os

from zerolab.system import has

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h
_NEVER, _MOST = 1 << 30, 1 << 25  # bytes; older versions of glibc take no larger threshold for maps than the second


def keep_freed_memory() -> None:
    """Ask glibc, where it is the allocator, not to hand freed memory back to the system. A training step frees and
    takes the same gradients, activations and gathered units again and again; each time the system would fill their
    pages with zeros anew, which for a unit of ZeRO-3 takes as long as gathering it. ZEROLAB_KEEP_FREED_MEMORY=0 leaves
    glibc as it is."""
    if os.environ.get("ZEROLAB_KEEP_FREED_MEMORY") == "0" or not has("mallopt"):
        return
    mallopt = ctypes.CDLL(None).mallopt
    # Either threshold alone would also end glibc's own adjustment of the other.
    mallopt(_TRIM_THRESHOLD, _NEVER)
    if not mallopt(_MMAP_THRESHOLD, _NEVER):
        mallopt(_MMAP_THRESHOLD, _MOST)
