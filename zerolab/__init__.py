"""zerolab: ZeRO, built piece by piece, small enough to read in an evening.

from zerolab import ZeroEngine, launch
"""

from zerolab.lazy import TYPE_CHECKING, import_when_asked

if TYPE_CHECKING:
    from zerolab.ranks import launch
    from zerolab.zero import ZeroEngine

__version__ = "0.1.0"
import_when_asked(__name__)
