"""The course: exercises and how they are judged, pictures, and controls on them. The library knows nothing of it.

from zerolab.course import checks, viz
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zerolab.course.grade import CheckFailed as CheckFailed
    from zerolab.course.grade import checks as checks

__all__ = ["CheckFailed", "checks"]


def __getattr__(name: str) -> Any:
    """What exercises import; found when asked for, since pictures need nothing of it."""
    if name in __all__:
        from zerolab.course import grade

        return getattr(grade, name)
    raise AttributeError(f"module 'zerolab.course' has no attribute {name!r}")
