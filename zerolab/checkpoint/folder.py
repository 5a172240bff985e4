"""A folder of checkpoints, in which a kill at any moment leaves the last good one loadable.

    runs/a/latest                         the name of the newest one, written last
    runs/a/step-00000200/                 a checkpoint: whole, or not there
    runs/a/.writing-step-00000300-5f3c/   one that is being written, or was when its run was killed
    runs/a/.lock                          held by the run that saves here

A checkpoint is written under another name, synced to the disk file by file, and renamed: the system renames a folder
whole or not at all. What a killed run left behind is swept away by the next one that saves here.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import socket
import weakref
from contextlib import suppress
from pathlib import Path

from zerolab.checkpoint.manifest import MANIFEST, read_manifest
from zerolab.errors import CheckpointError, NoCheckpointError
from zerolab.ranks.folders import reason
from zerolab.system import has

try:
    import fcntl
except ImportError:  # pragma: no cover (Windows)
    fcntl = None  # type: ignore[assignment]

LATEST, LOCK = "latest", ".lock"
_NAME = re.compile(r"step-(\d{8,})")
_DRAFT = re.compile(r"\.(writing|replaced|removed)-(step-\d{8,})-[0-9a-f]+")


def name_of(step: int) -> str:
    return f"step-{step:08d}"


def step_of(path: Path) -> int:
    """The step that a checkpoint's name tells; -1 of another name."""
    found = _NAME.fullmatch(path.name)
    return int(found[1]) if found else -1


def checkpoints_in(folder: Path) -> list[Path]:
    """The finished checkpoints of a folder, oldest step first."""
    with suppress(OSError):
        there = [path for path in folder.iterdir() if step_of(path) >= 0 and (path / MANIFEST).is_file()]
        return sorted(there, key=step_of)
    return []


def find_latest(folder: Path) -> Path | None:
    """The newest checkpoint of a folder: the one that `latest` names; else the one of the highest step. None if there
    is none. What `latest` names may be damaged, which reading it tells."""
    there = checkpoints_in(folder)
    named = None
    with suppress(OSError, UnicodeDecodeError):
        named = folder / (folder / LATEST).read_text(encoding="utf-8").strip()
    if named is not None and step_of(named) >= 0 and named.is_dir():
        return named
    # A run was killed between the two renames that put a new checkpoint in the place of one of the same step.
    with suppress(OSError):
        for path in folder.iterdir():
            found = _DRAFT.fullmatch(path.name)
            if found and found[1] == "replaced" and (path / MANIFEST).is_file() and folder / found[2] not in there:
                there.append(path)
    of_step = {path: step_of(path) if step_of(path) >= 0 else _step_of_draft(path) for path in there}
    return max(there, key=lambda path: of_step[path], default=None)


def resolve(path: Path) -> Path:
    """The checkpoint that a path means: itself, or the newest in it. Raises a NoCheckpointError if there is none."""
    if (path / MANIFEST).is_file():
        return path
    found = find_latest(path)
    if found is None:
        if not path.exists():
            raise NoCheckpointError(f"there is no folder {str(path)!r}; name one that has checkpoints in it")
        if step_of(path) >= 0:
            read_manifest(path, remedy_for(path))
        raise NoCheckpointError(f"there is no checkpoint in {str(path)!r}; name a folder that has one")
    return found


def remedy_for(path: Path) -> str:
    """What to do about a checkpoint that cannot be read: the newest other one beside it."""
    others = [other for other in checkpoints_in(path.parent) if other != path]
    return f"load {others[-1]} instead" if others else "there is no other checkpoint beside it, so begin again"


class Folder:
    """A folder that this process saves to. Holds its lock until `close` or the end of the process."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except (OSError, ValueError) as error:
            why = reason(error) if isinstance(error, OSError) else str(error)
            raise CheckpointError(
                f"{str(path)!r} cannot take checkpoints ({why}); name a folder that this process may write to"
            ) from None
        self.close = weakref.finalize(self, os.close, descriptor)
        if has("locks"):
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                owner = os.pread(descriptor, 200, 0).decode(errors="replace").strip() or "unknown"
                self.close()
                raise CheckpointError(
                    f"another run saves to {str(path)!r} ({owner}); name another folder, or end that run"
                ) from None
        with suppress(OSError):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
        self.sweep()

    def begin(self, step: int, save: str) -> Path:
        """A new folder to write a checkpoint to."""
        draft = self.path / f".writing-{name_of(step)}-{save}"
        draft.mkdir()
        return draft

    def publish(self, draft: Path, step: int, keep: int | None) -> Path:
        """Make a draft, all of whose files are on the disk, the newest checkpoint, and remove those beyond `keep`."""
        final = self.path / name_of(step)
        sync_folder(draft)
        replaced = None
        if final.exists():
            replaced = self.path / f".replaced-{final.name}-{secrets.token_hex(4)}"
            final.rename(replaced)
        draft.rename(final)
        sync_folder(self.path)
        write_synced(self.path / LATEST, f"{final.name}\n".encode())
        if replaced is not None:
            shutil.rmtree(replaced, ignore_errors=True)
        # The newest that are loadable, whatever is beside them; a later step of a run that was resumed before it counts
        # as older than what was just written.
        others = sorted((path for path in checkpoints_in(self.path) if path != final), key=_age)
        for path in others[: max(0, len(others) + 1 - keep)] if keep is not None else []:
            self._remove(path)
        return final

    def discard(self, draft: Path) -> None:
        """Remove a draft that will not become a checkpoint."""
        shutil.rmtree(draft, ignore_errors=True)

    def sweep(self) -> None:
        """Remove what killed runs left half-written or half-removed."""
        with suppress(OSError):
            for path in list(self.path.iterdir()):
                found = _DRAFT.fullmatch(path.name)
                if found and (found[1] != "replaced" or (self.path / found[2] / MANIFEST).is_file()):
                    shutil.rmtree(path, ignore_errors=True)
                elif found:
                    # Its successor never came: it is the checkpoint of that step again.
                    path.rename(self.path / found[2])
            for path in self.path.glob(f".{LATEST}.*.part"):
                path.unlink(missing_ok=True)

    def _remove(self, path: Path) -> None:
        """Under a name that no reader takes for a checkpoint, so that none is ever seen half."""
        with suppress(OSError):
            removed = path.with_name(f".removed-{path.name}-{secrets.token_hex(4)}")
            path.rename(removed)
            shutil.rmtree(removed, ignore_errors=True)


def _age(path: Path) -> float:
    with suppress(OSError):
        return (path / MANIFEST).stat().st_mtime
    return 0.0


def _step_of_draft(path: Path) -> int:
    found = _DRAFT.fullmatch(path.name)
    return int(found[2].removeprefix("step-")) if found else -1


def write_synced(path: Path, data: bytes) -> None:
    """Write a file whole or not at all, and return once it is on the disk."""
    draft = path.with_name(f".{path.name.lstrip('.')}.{secrets.token_hex(4)}.part")
    try:
        with open(draft, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
    sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Return once the names in a folder are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
