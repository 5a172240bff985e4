"""Files and folders that appear whole or not at all, and locks."""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def write_whole(path: Path, data: bytes | str, sync: bool = True) -> None:
    """Write a file whole or not at all; with `sync` it is on the disk once this returns. Of a link, the file that it
    points to is written; a pipe or a device is written to directly."""
    content = data.encode() if isinstance(data, str) else data
    if is_device(path):
        path.write_bytes(content)
        return
    path = path.resolve()
    draft = path.with_name(f".{path.name.lstrip('.')[:200]}.{secrets.token_hex(4)}.part")
    try:
        with open(draft, "xb") as file:
            file.write(content)
            file.flush()
            if sync:
                os.fsync(file.fileno())
        draft.replace(path)
    finally:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
    if sync:
        sync_folder(path.parent)


def is_device(path: Path) -> bool:
    """Whether there is something at the path that is neither a file nor a folder."""
    return path.exists() and not path.is_file() and not path.is_dir()


def sync_folder(path: Path) -> None:
    """Return once the names in a folder are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """A folder to fill, which is at `path` (nothing, or an empty folder) at the end of the block, and gone if it
    raises."""
    draft = path.with_name(f".writing-{path.name}")
    try:
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        yield draft
        draft.rename(path)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def lock(descriptor: int, *, shared: bool = False, wait: bool = False) -> None:
    """Lock an open file until it is closed. Raises a BlockingIOError if another has it, unless this is to `wait`."""
    fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))


def open_locked(path: Path) -> int:
    """Make or open a file, locked, with the name of this process in it. Raises a BlockingIOError, whose `strerror`
    names the process, if another has it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        lock(descriptor)
    except OSError as error:
        owner = os.pread(descriptor, 200, 0).decode(errors="replace").strip()
        os.close(descriptor)
        if isinstance(error, BlockingIOError):
            raise BlockingIOError(error.errno, owner or "unknown") from None
        raise
    with suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
    return descriptor
