"""Many runs in a row: cases, the rows of what they took, and pictures of them."""

from zerolab.apps.sweep.cases import SweepCase, make_cases, read_file
from zerolab.apps.sweep.run import SweepOutcome, sweep

__all__ = ["SweepCase", "SweepOutcome", "make_cases", "read_file", "sweep"]
