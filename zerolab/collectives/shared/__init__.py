"""Collectives of ranks that share a machine's memory (`collectives.py`).

queue.py   a rank's calls in order: announced when issued, done when all have announced theirs
peers.py   how ranks find each other's memory, and the notes that they write each other
arena.py   a rank's own memory, which the others can address
"""

from zerolab.collectives.shared.collectives import SharedMemoryCollectives

__all__ = ["SharedMemoryCollectives"]
