"""Many runs in a row: cases, the rows of what they took, and pictures of them."""

from zerolab.lazy import TYPE_CHECKING, import_when_asked

if TYPE_CHECKING:
    from zerolab.apps.sweep.cases import SweepCase, make_cases, read_file
    from zerolab.apps.sweep.run import SweepOutcome, sweep

import_when_asked(__name__)
