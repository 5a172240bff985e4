"""zerolab: ZeRO, built piece by piece, small enough to read in an evening.

from zerolab import ZeroEngine, launch
"""

from __future__ import annotations

from zerolab.lazy import import_when_asked

TYPE_CHECKING = False
if TYPE_CHECKING:
    from zerolab.ranks import launch
    from zerolab.zero import ZeroEngine

__version__ = "0.1.0"
__all__ = ["ZeroEngine", "launch"]
import_when_asked(__name__)
