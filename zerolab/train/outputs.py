"""Files that a long run writes at its end: checked before it begins, written whole, and if they cannot be written where
they were asked for, written elsewhere."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from zerolab.errors import DiskError, InputError
from zerolab.ranks.folders import reason

PROBE, AT_ONCE = 1 << 26, 1 << 20
"""Bytes that are written to see whether there is room, and how many of them at a time."""


def check_output(flag: str, path: Path, nbytes: int) -> None:
    """Raise an InputError if a file of so many bytes could not be written at `path` now. Nothing stays there. Some of
    it is written to see, the rest asked for: the report of a long run may be larger than the memory."""
    if path.is_dir():
        raise InputError(f"{flag}: {str(path)!r} is a folder; name a file in it")
    if not path.parent.is_dir():
        raise InputError(f"{flag}: there is no folder {str(path.parent)!r}; make it first")
    try:
        if is_device(path):
            if path.is_fifo():
                # Who reads it would be told of its end, once it is opened and closed.
                if not os.access(path, os.W_OK):
                    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            else:
                os.close(os.open(path, os.O_WRONLY))
            return
        free = shutil.disk_usage(path.resolve().parent).free
        if nbytes > max(free, PROBE):
            raise InputError(
                f"{flag}: {str(path)!r} cannot be written (it may need {nbytes / 1e9:.3g} GB, and "
                f"{free / 1e9:.3g} GB are free there); name another place, or make the run smaller"
            )
        draft = _draft(path)
        try:
            with open(draft, "xb") as file:
                for at in range(0, min(nbytes, PROBE), AT_ONCE):
                    file.write(bytes(min(AT_ONCE, min(nbytes, PROBE) - at)))
                file.flush()
                os.fsync(file.fileno())
        finally:
            draft.unlink(missing_ok=True)
    except OSError as error:
        raise InputError(f"{flag}: {str(path)!r} cannot be written ({reason(error)}); name another place") from None


def write_whole(path: Path, text: str) -> None:
    """Write a file whole or not at all. A pipe or a device is written to directly."""
    if is_device(path):
        path.write_text(text, encoding="utf-8")
        return
    # Of a link, the file that it points to is written, and the link stays.
    path = path.resolve()
    draft = _draft(path)
    try:
        draft.write_text(text, encoding="utf-8")
        draft.replace(path)
    finally:
        with suppress(OSError):
            draft.unlink(missing_ok=True)


def write_or_rescue(what: str, path: Path, text: str, last: Callable[[str], None] | None = None) -> None:
    """Write a file, or, if that cannot be, another one, and raise a DiskError that says where. `last` shows the text
    where no file at all can be written."""
    try:
        write_whole(path, text)
    except OSError as error:
        raise rescued(what, str(path), error, text, path.name, last) from error


def rescued(
    what: str, place: str, error: OSError, text: str, name: str, last: Callable[[str], None] | None = None
) -> DiskError:
    """Write to some other place what could not be written to `place`; the error that says where it is."""
    lost = f"{what} could not be written to {place} ({reason(error)})"
    for other in _other_places(Path(name)):
        with suppress(OSError):
            write_whole(other, text)
            return DiskError(f"{lost}; it was written to {other} instead")
    with suppress(OSError):
        if last is not None:
            last(text)
            return DiskError(f"{lost}; it was written to standard output instead")
    return DiskError(f"{lost}, nor anywhere else")


def _other_places(name: Path) -> Iterator[Path]:
    new = f"{name.stem}-{secrets.token_hex(4)}{name.suffix}"
    yield Path.cwd() / new
    with suppress(OSError):
        yield Path(tempfile.gettempdir()) / new
    with suppress(RuntimeError):
        yield Path.home() / new


def is_device(path: Path) -> bool:
    """Whether there is something at the path that is neither a file nor a folder."""
    return path.exists() and not path.is_file() and not path.is_dir()


def _draft(path: Path) -> Path:
    return path.resolve().parent / f".{path.name[:200]}.{secrets.token_hex(4)}.part"
