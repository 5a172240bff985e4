"""Temporary folders that end with the process that made them, however it ends.

Each holds a file that its owner keeps locked. The system lets go of the lock when the owner ends, killed or not; so
whoever finds a folder of ours whose lock is free may take it away, and nobody else's is ever touched.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.util import Finalize
from pathlib import Path

from zerolab.errors import DiskError
from zerolab.ranks.interrupts import interrupts_held
from zerolab.system import has

try:
    import fcntl
except ImportError:  # pragma: no cover (Windows)
    fcntl = None  # type: ignore[assignment]

KINDS = ("launch", "server", "progress", "check", "grade", "board")
OWNER = ".owner"
NEWBORN_SECONDS = 600.0
"""So old an empty folder without an owner must be before it counts as left behind."""

_NAME = re.compile(rf"zerolab-({'|'.join(KINDS)})-[a-z0-9_]{{8}}")
_held: dict[Path, tuple[int, Finalize]] = {}
"""This process's folders: the descriptor of each one's lock, and what removes it when the process ends."""
_place: list[str] = []
"""Where a rank makes its folders: in its launch's, with which they end. Empty elsewhere."""


@contextmanager
def temporary_folder(kind: str) -> Iterator[Path]:
    """A private folder, gone at the end of the block."""
    folder = make_folder(kind)
    try:
        yield folder
    finally:
        remove_folder(folder)


def make_folder(kind: str) -> Path:
    """A private folder of one of the `KINDS`, gone when this process ends, or by `remove_folder`. Raises a DiskError
    where there is no room for it."""
    assert kind in KINDS
    with interrupts_held():
        try:
            folder = Path(tempfile.mkdtemp(prefix=f"zerolab-{kind}-", dir=_place[0] if _place else None))
        except OSError as error:
            raise DiskError(
                f"there is no place for temporary files ({reason(error)}); free some room in the temporary folder, or "
                "name another one in TMPDIR"
            ) from error
        try:
            _held[folder] = _lock(folder), Finalize(None, remove_folder, (folder,), exitpriority=-50)
        except OSError as error:
            take_away(folder)
            raise DiskError(
                f"no file can be made in {folder.parent} ({reason(error)}); free some room there, raise the limit, or "
                "name another folder in TMPDIR"
            ) from error
    return folder


def remove_folder(folder: Path) -> None:
    """Take a folder of this process away, if it is still there."""
    take_away(folder)
    with interrupts_held():
        if folder in _held:
            descriptor, finalizer = _held.pop(folder)
            finalizer.cancel()
            os.close(descriptor)
            if folder.exists():
                # To look into a folder takes a descriptor; where the limit is reached, the lock's is free only now.
                take_away(folder)


def remove_all() -> None:
    """Take all folders of this process away: for a process that ends at once."""
    for folder in list(_held):
        with suppress(OSError):
            remove_folder(folder)


def within(folder: Path) -> None:
    """From now on make folders in this one: it belongs to somebody else, who takes them away with it."""
    forget()
    _place[:] = [str(folder)]


def forget() -> None:
    """In a fork of the process that made them: these folders are not ours."""
    _held.clear()


def forget_in_fork() -> None:
    """The same, and let go of their locks, which last as long as anybody has them open."""
    for descriptor, _ in _held.values():
        with suppress(OSError):
            os.close(descriptor)
    forget()


def sweep(newborn_seconds: float = NEWBORN_SECONDS) -> bool:
    """Take away what processes of this user left behind that were killed. Returns whether folders have
    owners that live."""
    owned = False
    if not has("locks"):
        return owned
    with suppress(OSError), os.scandir(tempfile.gettempdir()) as entries:
        for entry in entries:
            if _NAME.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False):
                try:
                    _sweep(Path(entry.path), entry.stat(follow_symlinks=False), newborn_seconds)
                except BlockingIOError:
                    owned = True
                except OSError:
                    pass
    return owned


def _sweep(folder: Path, of_folder: os.stat_result, newborn_seconds: float) -> None:
    if of_folder.st_uid != os.getuid():
        return
    try:
        descriptor = os.open(folder / OWNER, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        # Its owner was killed before it could lock it, or is about to; an empty one is taken away, no other.
        if time.time() - of_folder.st_mtime > newborn_seconds:
            os.rmdir(folder)
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        take_away(folder)
    finally:
        os.close(descriptor)


def _lock(folder: Path) -> int:
    """Mark a folder as owned; the mark appears when it is locked already. Gives the lock's descriptor."""
    draft = folder / f"{OWNER}.new"
    descriptor = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        if has("locks"):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            draft.rename(folder / OWNER)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def take_away(folder: Path) -> None:
    """Remove a folder of ours, its mark last: what is killed on the way can still be swept."""
    for _ in range(5):
        with suppress(OSError):
            for path in sorted(folder.iterdir(), key=lambda path: path.name == OWNER):
                if path.is_dir() and not path.is_symlink():
                    _open_all(path)
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink(missing_ok=True)
            folder.rmdir()
        if not folder.exists():
            return
        # A process that is just ending may have written once more.
        time.sleep(0.02)


def _open_all(folder: Path) -> None:
    """Give back the rights to remove what is in a folder, and in those below."""
    os.chmod(folder, stat.S_IRWXU)
    for path, folders, _ in os.walk(folder):
        for name in folders:
            if not os.path.islink(place := os.path.join(path, name)):
                os.chmod(place, stat.S_IRWXU)


def reason(error: OSError) -> str:
    """What the system says, in words, without a number."""
    return error.strerror or str(error)
