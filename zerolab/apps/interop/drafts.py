"""What is said of a folder that is written: that it must be new, and why it could not be."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from zerolab.errors import CheckpointError, ZerolabError


def refuse_used(path: Path, error: type[ZerolabError]) -> None:
    """Raise an error for what is no new or empty folder."""
    if path.exists() and not (path.is_dir() and {each.name for each in path.iterdir()} <= {".lock"}):
        raise error(f"{path} is there already and is no empty folder; name a new one")


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """While a file is written: what goes wrong is a CheckpointError that names it."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise CheckpointError(
            f"{path} could not be written ({error}); make room there, or name another folder"
        ) from error
