"""The course: exercises and how they are judged, pictures, and controls on them. The library knows nothing of it.

from zerolab.course import checks, viz
"""

from zerolab.lazy import TYPE_CHECKING, import_when_asked

if TYPE_CHECKING:
    from zerolab.course.grade import CheckFailed, checks

import_when_asked(__name__)
