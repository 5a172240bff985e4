"""Which engine of this process saves to a folder: a second one would replace the checkpoints of the first.

An engine that has loaded from the folder goes on from the checkpoints that are there, and may replace them.
"""

from __future__ import annotations

import gc
from pathlib import Path
from weakref import WeakSet

from zerolab.checkpoint.folder import checkpoints_in
from zerolab.errors import CheckpointError
from zerolab.zero import ZeroEngine

_owners: dict[Path, WeakSet[ZeroEngine]] = {}
"""By folder, the engine that saved there last, and those that have loaded from there since."""


def own(folder: Path, engine: ZeroEngine) -> None:
    """Note that an engine saves to a folder. Raises a CheckpointError if another engine does."""
    owners = _owners.get(folder.resolve(), WeakSet())
    if owners and engine not in owners and checkpoints_in(folder):
        # Engines have cycles, so one that nobody holds any more may still be there.
        gc.collect()
        if not all(other.closed for other in owners):
            raise CheckpointError(
                f"another engine of this process saves to {str(folder)!r}, and this one would replace its checkpoints; "
                "give each engine a folder of its own, or close() the other, or load its checkpoint to go on from it"
            )
    _owners[folder.resolve()] = WeakSet([engine])


def share(folder: Path, engine: ZeroEngine) -> None:
    """Note that an engine has loaded a checkpoint of a folder."""
    if folder.resolve() in _owners:
        _owners[folder.resolve()].add(engine)
