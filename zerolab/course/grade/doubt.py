"""Whether it was the answer or the machine. What a full disk, a low limit or a lack of memory does to an answer looks
like its own mistake; then the model answer is run in the same place, and where it fails, too, nobody loses points."""

from __future__ import annotations

import re
import resource
from collections.abc import Sequence

from zerolab.course.grade.cage import memory_taken
from zerolab.course.judge.case import Observation
from zerolab.course.judge.verdict import Finding
from zerolab.errors import RankError

OWN = re.compile(
    "(Assertion|Attribute|Deadlock|Indentation|Index|Key|Lookup|Mismatch|ModuleNotFound|Name|NotImplemented|Recursion|"
    "Syntax|Type|UnboundLocal|Value|ZeroDivision)Error|Missing|OffLimits|Refused|SystemExit|Tampered"
)
"""Kinds of trouble that no machine makes."""
SHORT = re.compile(
    "alloc|connect|errno|gloo|limit|memory|mmap|no space|resource|thread|too large|too many|unavailable|write", re.I
)
"""What a RuntimeError says that may come from the machine; torch has one class for all its errors."""


def in_doubt(seen: Sequence[Observation]) -> bool:
    met = [one.trouble for one in seen if one.trouble]
    return any(SHORT.search(one.message) if one.kind == "RuntimeError" else not OWN.fullmatch(one.kind) for one in met)


def hold_model(name: str, findings: Sequence[Finding], seen: Sequence[Observation]) -> None:
    """Raise a RankError unless the model answer, run where an answer met trouble, is right there."""
    if not findings or not all(finding.holds for finding in findings):
        met = (one.trouble.message.rstrip(".") for one in seen if one.trouble)
        said = next(met, "what it returns is wrong")
        raise RankError(
            f"the model answer to {name} fails here, too ({said}), so nobody's points are taken; see what this machine "
            f"is short of (ulimit -a; free memory, room in TMPDIR), or give more --seconds or --memory-mb"
        )


def hold_limits(megabytes: int) -> None:
    """Raise a RankError where a limit of this process is lower than the memory, above what a process takes already, and
    the size of files that an answer may take."""
    more = megabytes * 2**20
    for kind, flag, due in ((resource.RLIMIT_AS, "v", more + memory_taken()), (resource.RLIMIT_FSIZE, "f", more)):
        given = resource.getrlimit(kind)[0]
        if given != resource.RLIM_INFINITY and given < due:
            raise RankError(
                f"this process has a limit of {given} bytes (ulimit -{flag}), and --memory-mb {megabytes} needs {due}; "
                "raise the limit, or give less --memory-mb"
            )
