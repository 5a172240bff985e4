"""Checks of exercises: in the notebook while one learns, and by `zerolab grade` for a grade."""

from zerolab.lazy import TYPE_CHECKING, import_when_asked

if TYPE_CHECKING:
    from zerolab.course.grade.check import CheckFailed, checks

import_when_asked(__name__)
