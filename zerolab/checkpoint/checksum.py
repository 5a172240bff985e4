"""The checksum of all that a checkpoint has: CRC-32 with zlib's values, from the quicker `isal` package if it is there."""

from __future__ import annotations

try:
    from isal.isal_zlib import crc32
except ImportError:  # pragma: no cover (a system for which there is no such package)
    from zlib import crc32

__all__ = ["crc32"]
