"""ZeRO stages 0 to 3 on one path."""

from zerolab.lazy import TYPE_CHECKING, import_when_asked

if TYPE_CHECKING:
    from zerolab.zero.step import StepResult
    from zerolab.zero.table import STAGES
    from zerolab.zero.units import Bucket, Unit, find_units
    from zerolab.zero.zero_engine import ZeroEngine, engine_labels

import_when_asked(__name__)
