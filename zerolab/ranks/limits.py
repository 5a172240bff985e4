"""What the system lets this process have. A limit that is too low is said before anything starts: met half-way, it
looks like somebody's mistake."""

from __future__ import annotations

from zerolab.errors import InputError
from zerolab.system import has

try:
    import resource
except ImportError:  # pragma: no cover (Windows)
    resource = None  # type: ignore[assignment]

KINDS = (
    ("open files", "RLIMIT_NOFILE", "n", 256),
    ("processes and threads", "RLIMIT_NPROC", "u", 4096),
    ("address space in bytes", "RLIMIT_AS", "v", 2**62),
    ("size of files in bytes", "RLIMIT_FSIZE", "f", 2**62),
)
"""What is limited, its name in `resource`, ulimit's flag for it, and the value from which on no limit matters."""


def files_of_launch(ranks: int) -> int:
    """Open files that a launch needs, in its parent and in each rank: the measured least for 2, 8 and 16 ranks."""
    return 16 + 3 * ranks


def check_open_files(needed: int, what: str) -> None:
    """Raise an InputError where fewer files may be open at once than `what` needs."""
    limit = given("RLIMIT_NOFILE")
    if limit is not None and limit < needed:
        raise InputError(
            f"open files are limited to {limit}, and {what} needs {needed}; raise the limit, with ulimit -n {needed}"
        )


def given(name: str) -> int | None:
    """The limit of this process on what `resource` calls so; None where there is none."""
    number = getattr(resource, name, None) if has("limits") else None
    if number is None:
        return None
    limit = resource.getrlimit(number)[0]
    return None if limit == resource.RLIM_INFINITY else limit


def in_words() -> str:
    """The limits of this process that may matter, such as "open files 64 (ulimit -n)"; if there are none, that."""
    found = ((f"{text} {given(name)} (ulimit -{flag})", given(name), most) for text, name, flag, most in KINDS)
    low = [words for words, limit, most in found if limit is not None and limit < most]
    return ", ".join(low) or "no limit of this process is low"
