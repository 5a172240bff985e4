"""Many runs in a row: cases, the rows of what they took, and pictures of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zerolab.lazy import import_when_asked

if TYPE_CHECKING:
    from zerolab.apps.sweep.cases import SweepCase, make_cases, read_file
    from zerolab.apps.sweep.run import SweepOutcome, sweep

__all__ = ["SweepCase", "SweepOutcome", "make_cases", "read_file", "sweep"]
import_when_asked(__name__)
