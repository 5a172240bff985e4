"""CRC-32 of all that a checkpoint has: zlib's values, from the quicker `isal` package where it is installed."""

from __future__ import annotations

try:
    from isal.isal_zlib import crc32
except ImportError:  # pragma: no cover (a system for which there is no such package)
    from zlib import crc32

__all__ = ["crc32"]
