"""Checks of exercises: in the notebook while one learns, and by `zerolab grade` for a grade."""

from zerolab.course.grade.check import CheckFailed, checks

__all__ = ["CheckFailed", "checks"]
