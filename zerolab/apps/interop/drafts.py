"""Folders that are written new, and whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from zerolab.errors import CheckpointError, ZerolabError
from zerolab.files import whole_folder


def refuse_used(path: Path, error: type[ZerolabError] = CheckpointError) -> None:
    """Raise an error for what is no new or empty folder."""
    if path.exists() and not (path.is_dir() and not any(path.iterdir())):
        raise error(f"{path} is there already and is no empty folder; name a new one")


@contextmanager
def new_folder(path: Path, error: type[ZerolabError] = CheckpointError) -> Iterator[Path]:
    """A folder to fill, which is at `path` at the end of the block, and gone if it raises. What the system refuses
    within is a CheckpointError that names the path."""
    path = Path(os.path.abspath(path))
    refuse_used(path, error)
    try:
        with whole_folder(path) as draft:
            yield draft
    except (OSError, SafetensorError) as refusal:
        raise CheckpointError(
            f"{path} could not be written ({refusal}); make room there, or name another folder"
        ) from refusal
