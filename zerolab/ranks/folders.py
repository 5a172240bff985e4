"""What does not outlive this process: its temporary folders, removed when it ends (if it is killed, by its fork
server), and what it takes away even where it ends at once, as a rank that failed does: `os._exit` skips all clean-up.
"""

from __future__ import annotations

import atexit
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn
from weakref import WeakSet

from zerolab.errors import DiskError

prefix = f"zerolab-{secrets.token_hex(3)}-"
"""How the names of this process's folders begin. It is short, since the name of a socket is, too."""
_open: set[Path] = set()
_launch = ""
"""In a rank, its launch's folder."""

farewells: WeakSet[Callable[[], object]] = WeakSet()
"""Called before a process ends at once. They wait for nobody, and leave what other threads may be using as it is.
Whoever adds one holds it for as long as it is needed."""


def leave(code: int) -> NoReturn:
    """End this process now."""
    say_farewell()
    os._exit(code)


def say_farewell() -> None:
    for farewell in list(farewells):
        with suppress(Exception):
            farewell()


@contextmanager
def temporary_folder(kind: str) -> Iterator[Path]:
    """A private folder, gone at the end of the block."""
    folder = make_folder(kind)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        _open.discard(folder)


def place() -> str:
    """Where this process makes its folders: a rank in its launch's, with which they end."""
    return _launch or tempfile.gettempdir()


def make_folder(kind: str, where: str = "") -> Path:
    """A private folder, gone when this process ends. Raises a DiskError where there is no room for it."""
    try:
        folder = Path(tempfile.mkdtemp(prefix=f"{prefix}{kind}", dir=where or place()))
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
    global _launch
    _launch = str(folder)


def _forget() -> None:
    """In a fork of the process that made them: these folders are not ours."""
    global prefix
    prefix = f"zerolab-{secrets.token_hex(3)}-"
    _open.clear()


os.register_at_fork(after_in_child=_forget)


def reason(error: OSError) -> str:
    """What the system says, in words, without a number."""
    return error.strerror or str(error)
