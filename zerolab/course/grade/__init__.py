"""Checks of exercises: in the notebook while one learns, and by `zerolab grade` for a grade."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zerolab.lazy import import_when_asked

if TYPE_CHECKING:
    from zerolab.course.grade.check import CheckFailed, checks

__all__ = ["CheckFailed", "checks"]
import_when_asked(__name__)
