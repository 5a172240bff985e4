"""Files that a long run writes at its end: checked before it begins, and written whole."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from pathlib import Path

from zerolab.errors import DiskError, InputError
from zerolab.files import is_device, write_whole
from zerolab.ranks.folders import reason
from zerolab.run import RunSpec


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


def write_output(what: str, path: Path, text: str) -> None:
    """Write a file whole; raises a DiskError that says why it could not be."""
    try:
        write_whole(path, text)
    except OSError as error:
        raise DiskError(f"{what} could not be written to {path} ({reason(error)})") from error


def most_json_bytes(config: RunSpec) -> int:
    """More than the profile of such a run will take: some numbers a step, and some a rank for each kind of memory."""
    return 2**14 + 192 * config.max_steps + 2**11 * ranks_told_of(config)


def most_trace_bytes(config: RunSpec) -> int:
    """About what the first steps of such a run take in a trace file; whether there is room is asked before the run."""
    return 2**22 * ranks_told_of(config)


def ranks_told_of(config: RunSpec) -> int:
    """Of how many ranks a report or a trace tells: of a virtual world, of rank 0 alone."""
    return 1 if config.world == "virtual" else config.ranks
