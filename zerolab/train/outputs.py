"""Files that a long run writes at its end: checked before it begins, and written whole."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

from zerolab.errors import DiskError, InputError
from zerolab.ranks.folders import reason


def check_output(flag: str, path: Path, nbytes: int) -> None:
    """Raise an InputError if a file of so many bytes could not be written at `path` now. Nothing stays there."""
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
        if 0 < free < nbytes:  # some file systems say 0 for "not known": there the byte below decides
            raise InputError(
                f"{flag}: {str(path)!r} cannot be written (it may need {nbytes / 1e9:.3g} GB, and "
                f"{free / 1e9:.3g} GB are free there); name another place, or make the run smaller"
            )
        with tempfile.TemporaryFile(dir=path.resolve().parent) as draft:
            draft.write(bytes(1))
            draft.flush()
            os.fsync(draft.fileno())
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


def write_output(what: str, path: Path, text: str) -> None:
    """Write a file whole; raises a DiskError that says why it could not be."""
    try:
        write_whole(path, text)
    except OSError as error:
        raise DiskError(f"{what} could not be written to {path} ({reason(error)})") from error


def is_device(path: Path) -> bool:
    """Whether there is something at the path that is neither a file nor a folder."""
    return path.exists() and not path.is_file() and not path.is_dir()


def _draft(path: Path) -> Path:
    return path.resolve().parent / f".{path.name[:200]}.{secrets.token_hex(4)}.part"
