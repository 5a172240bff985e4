"""Checkpoints: what a run saves, so that it may die at any moment and go on anywhere.

    checkpoints = Checkpoints("runs/a", keep=2)
    checkpoints.save(engine, step)                     # every rank calls it; wait=False goes on at once
    loaded = checkpoints.load(engine)                  # any number of ranks, stage, precision, offload

Each rank writes its own shard; one manifest says whose elements lie where.
"""

from zerolab.lazy import TYPE_CHECKING, import_when_asked

if TYPE_CHECKING:
    from zerolab.checkpoint.checkpoints import Checkpoints, load, save
    from zerolab.checkpoint.folder import checkpoints_in, find_latest
    from zerolab.checkpoint.load import Loaded
    from zerolab.checkpoint.manifest import Manifest, read_manifest
    from zerolab.errors import CheckpointError

import_when_asked(__name__)
