"""ZeRO stages 0 to 3 on one path."""

from zerolab.zero.clip import StepResult
from zerolab.zero.labels import engine_labels
from zerolab.zero.table import STAGES
from zerolab.zero.units import Bucket, Unit, find_units
from zerolab.zero.zero_engine import ZeroEngine

__all__ = ["STAGES", "Bucket", "StepResult", "Unit", "ZeroEngine", "engine_labels", "find_units"]
