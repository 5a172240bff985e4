"""Ranks say how they fare, so that all go on or all raise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from zerolab.collectives.observe import gather_records
from zerolab.errors import CheckpointError, ZerolabError
from zerolab.ranks.folders import reason
from zerolab.zero import ZeroEngine


def writers_of(engine: ZeroEngine) -> tuple[int, int]:
    """This rank's number among those that write, replicas of its shards included, and how many there are."""
    ranks, replicate = engine.comm.size, engine.replicate
    if replicate is None:
        return engine.comm.rank, ranks
    return replicate.rank * ranks + engine.comm.rank, replicate.size * ranks


WRITING = "could not be written", "the last good one is as it was: see to the disk, then save again"
READING = "could not be read", "see to the disk, then load again"


def all_gather_or_raise(engine: ZeroEngine, work: Callable[[], Any], doing: tuple[str, str] = WRITING) -> list[Any]:
    """What `work` gives on every rank, in the order of writers; if it raises on any, all raise. A collective."""
    record: Any = None
    error: Exception | None = None
    try:
        record = work()
    except OSError as refusal:
        of_file = f" for {refusal.filename}" if refusal.filename else ""
        error = CheckpointError(f"the checkpoint {doing[0]} ({reason(refusal)}{of_file}); {doing[1]}")
    except Exception as raised:
        error = raised
    said = None if error is None else f"{error}" if isinstance(error, ZerolabError) else repr(error)
    rows = gather_records(engine.comm, [said, record])
    if engine.replicate is not None:
        rows = [row for rows in gather_records(engine.replicate, rows) for row in rows]
    if error is not None:
        raise error
    for writer, (said, _) in enumerate(rows):
        if said is not None:
            raise CheckpointError(f"rank {writer} failed: {said}")
    return [record for _, record in rows]
