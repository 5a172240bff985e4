"""A folder of checkpoints, in which a kill at any moment leaves the last good one loadable.

    runs/a/latest                         the name of the newest one, written last
    runs/a/step-00000200/                 a checkpoint: whole, or not there
    runs/a/.writing-step-00000300-5f3c/   one that is being written, or was when its run was killed
    runs/a/.lock                          held by the run that saves here

A checkpoint is written under another name, synced to the disk file by file, and renamed: the system renames a folder
whole or not at all. What a killed run left behind is removed by the next one that saves here. One engine of a process
saves here: a second one would replace the checkpoints of the first,
unless it has loaded from here and goes on.
"""

from __future__ import annotations

import gc
import os
import re
import secrets
import shutil
import weakref
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from zerolab.checkpoint.manifest import MANIFEST, read_manifest
from zerolab.errors import CheckpointError, NoCheckpointError
from zerolab.files import open_locked, sync_folder, write_whole
from zerolab.ranks.folders import reason

if TYPE_CHECKING:
    from zerolab.zero import ZeroEngine

LATEST, LOCK = "latest", ".lock"
discard = partial(shutil.rmtree, ignore_errors=True)
_owners: dict[Path, weakref.WeakSet[ZeroEngine]] = {}
"""By folder, the engine that saved there last, and those that have loaded from there since."""
_DRAFT = re.compile(r"\.(writing|replaced|removed)-(step-\d{8,})-[0-9a-f]+")


def draft_name(step: int, save: str) -> str:
    """Of the folder to which a checkpoint is written."""
    return f".writing-step-{step:08d}-{save}"


def step_of(path: Path) -> int:
    """The step that a checkpoint's name tells; -1 of another name."""
    found = re.fullmatch(r"step-(\d{8,})", path.name)
    return int(found[1]) if found else -1


def checkpoints_in(folder: Path) -> list[Path]:
    """The finished checkpoints of a folder, oldest step first."""
    with suppress(OSError):
        there = [path for path in folder.iterdir() if step_of(path) >= 0 and (path / MANIFEST).is_file()]
        return sorted(there, key=step_of)
    return []


def find_latest(folder: Path) -> Path | None:
    """The newest checkpoint of a folder: the one that `latest` names, or the one of the highest step."""
    with suppress(OSError, UnicodeDecodeError):
        named = folder / (folder / LATEST).read_text(encoding="utf-8").strip()
        if step_of(named) >= 0 and named.is_dir():
            return named
    # A run that was killed between two renames has left one of these, if its successor is not there.
    replaced = [(final, path) for kind, final, path in _find_drafts(folder) if kind == "replaced"]
    there = {final: path for final, path in replaced if (path / MANIFEST).is_file()}
    there |= {path: path for path in checkpoints_in(folder)}
    return there[max(there, key=step_of)] if there else None


def resolve(path: Path) -> Path:
    """The checkpoint that a path means: itself, or the newest in it."""
    found = path if (path / MANIFEST).is_file() else find_latest(path)
    if found is None:
        if path.exists() and step_of(path) >= 0:
            read_manifest(path, remedy_for(path))
        what = "checkpoint in" if path.exists() else "folder"
        raise NoCheckpointError(f"there is no {what} {str(path)!r}; name a folder that has a checkpoint")
    return found


def remedy_for(path: Path) -> str:
    """What to do about a checkpoint that cannot be read: the newest other one beside it."""
    others = [other for other in checkpoints_in(path.parent) if other != path]
    return f"load {others[-1]} instead" if others else "there is no other checkpoint beside it, so begin again"


def own(folder: Path, engine: ZeroEngine) -> None:
    """Note that an engine saves to a folder, and no other one does."""
    owners = _owners.get(folder.resolve(), weakref.WeakSet())
    if owners and engine not in owners and checkpoints_in(folder):
        # Engines have cycles, so one that nobody holds any more may still be there.
        gc.collect()
        if not all(other.closed for other in owners):
            raise CheckpointError(
                f"another engine of this process saves to {str(folder)!r}, and this one would replace its checkpoints; "
                "give each engine a folder of its own, or close() the other, or load its checkpoint to go on from it"
            )
    _owners[folder.resolve()] = weakref.WeakSet([engine])


def share(folder: Path, engine: ZeroEngine) -> None:
    """Note that an engine has loaded a checkpoint of a folder."""
    if folder.resolve() in _owners:
        _owners[folder.resolve()].add(engine)


class Folder:
    """A folder that this process saves to. Holds its lock until `close` or the end of the process."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.doomed: list[Path] = []
        try:
            path.mkdir(parents=True, exist_ok=True)
            self.close = weakref.finalize(self, os.close, open_locked(path / LOCK))
        except BlockingIOError as error:
            raise CheckpointError(
                f"another run saves to {str(path)!r} ({error.strerror}); name another folder, or end that run"
            ) from None
        except OSError as error:
            raise CheckpointError(
                f"{str(path)!r} cannot take checkpoints ({reason(error)}); name a folder that this process may write to"
            ) from None
        self.clean_up()

    def commit(self, draft: Path, step: int, keep: int | None) -> Path:
        """Make a draft, all of whose files are on the disk, the newest checkpoint; those beyond `keep` are `doomed`."""
        final = self.path / f"step-{step:08d}"
        sync_folder(draft)
        replaced = _renamed(final, "replaced") if final.exists() else None
        draft.rename(final)
        sync_folder(self.path)
        write_whole(self.path / LATEST, f"{final.name}\n")
        self.doomed = [] if replaced is None else [replaced]
        # The newest that are loadable, whatever is beside them; a later step of a run that was resumed before it counts
        # as older than what was just written.
        others = [path for path in checkpoints_in(self.path) if path != final]
        others.sort(key=lambda path: (path / MANIFEST).stat().st_mtime)
        for path in others[: max(0, len(others) + 1 - keep)] if keep is not None else []:
            # Under a name that no reader takes for a checkpoint, so that none is ever seen half.
            with suppress(OSError):
                self.doomed.append(_renamed(path, "removed"))
        return final

    def clean_up(self) -> None:
        """Remove what killed runs left half-written or half-removed."""
        with suppress(OSError):
            for kind, final, path in _find_drafts(self.path):
                if kind == "replaced" and not (final / MANIFEST).is_file():
                    # Its successor never came: it is the checkpoint of that step again.
                    path.rename(final)
                else:
                    discard(path)
            for path in self.path.glob(f".{LATEST}.*.part"):
                path.unlink(missing_ok=True)


def _find_drafts(folder: Path) -> list[tuple[str, Path, Path]]:
    """What is half-written, replaced or half-removed: which, the checkpoint that it was or was to be, where."""
    with suppress(OSError):
        found = [(_DRAFT.fullmatch(path.name), path) for path in folder.iterdir()]
        return [(match[1], folder / match[2], path) for match, path in found if match]
    return []


def _renamed(path: Path, kind: str) -> Path:
    return path.rename(path.with_name(f".{kind}-{path.name}-{secrets.token_hex(4)}"))
