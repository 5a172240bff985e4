"""ZeRO stages 0 to 3 on one path."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zerolab.lazy import import_when_asked

if TYPE_CHECKING:
    from zerolab.zero.step import StepResult
    from zerolab.zero.table import STAGES
    from zerolab.zero.units import Bucket, Unit, find_units
    from zerolab.zero.zero_engine import ZeroEngine, engine_labels

__all__ = ["STAGES", "Bucket", "StepResult", "Unit", "ZeroEngine", "engine_labels", "find_units"]
import_when_asked(__name__)
