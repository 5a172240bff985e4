"""Temporary folders of this process, removed when it ends; if it is killed, its fork server removes them."""

from __future__ import annotations

import atexit
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from zerolab.errors import DiskError
from zerolab.system import has

prefix = f"zerolab-{secrets.token_hex(3)}-"
"""How the names of this process's folders begin. It is short, since the name of a socket is, too."""
LONGEST = 64
"""Characters of a place where a socket's folder may be."""
_open: set[Path] = set()
_place: list[str] = []
"""Where a rank makes its folders: in its launch's, with which they end. Empty elsewhere."""


@contextmanager
def temporary_folder(kind: str) -> Iterator[Path]:
    """A private folder, gone at the end of the block."""
    folder = make_folder(kind)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        _open.discard(folder)


def make_folder(kind: str, short: bool = False) -> Path:
    """A private folder, gone when this process ends; `short`: with a name that leaves room for a socket's, which has a
    hundred characters at most. Raises a DiskError where there is no room for it."""
    place = _place[0] if _place else None
    if short and len(place or tempfile.gettempdir()) > LONGEST and os.path.isdir("/tmp"):
        place = "/tmp"
    try:
        folder = Path(tempfile.mkdtemp(prefix=f"{prefix}{kind}", dir=place))
    except OSError as error:
        raise DiskError(
            f"there is no place for temporary files ({reason(error)}); free some room in the temporary folder, or name "
            "another one in TMPDIR"
        ) from error
    _open.add(folder)
    return folder


@atexit.register
def remove_all() -> None:
    """Remove all folders of this process."""
    while _open:
        shutil.rmtree(_open.pop(), ignore_errors=True)


def within(folder: Path) -> None:
    """From now on make folders in this one: it belongs to another process, which removes them with it."""
    _place[:] = [str(folder)]


def _forget() -> None:
    """In a fork of the process that made them: these folders are not ours."""
    global prefix
    prefix = f"zerolab-{secrets.token_hex(3)}-"
    _open.clear()


if has("groups"):
    os.register_at_fork(after_in_child=_forget)


def reason(error: OSError) -> str:
    """What the system says, in words, without a number."""
    return error.strerror or str(error)
