"""zerolab: ZeRO, built piece by piece, small enough to read in an evening.

from zerolab import ZeroEngine, launch
"""

from __future__ import annotations

# Nothing is imported here: an interrupt that comes until the command takes signals ends in Python's own words.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from zerolab.ranks import launch as launch
    from zerolab.zero import ZeroEngine as ZeroEngine

__version__ = "0.1.0"
__all__ = ["ZeroEngine", "launch"]


def __getattr__(name: str) -> Any:
    """The two names that every script begins with; imported when asked for, since torch takes its time."""
    if name == "launch":
        from zerolab.ranks import launch

        return launch
    if name == "ZeroEngine":
        from zerolab.zero import ZeroEngine

        return ZeroEngine
    raise AttributeError(f"module 'zerolab' has no attribute {name!r}")
