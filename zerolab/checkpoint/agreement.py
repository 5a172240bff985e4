"""Ranks say how they fare, so that all go on or all raise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from zerolab.collectives.observe.records import gather_records
from zerolab.errors import CheckpointError, ZerolabError
from zerolab.ranks.folders import reason
from zerolab.zero import ZeroEngine


def writers_of(engine: ZeroEngine) -> tuple[int, int]:
    """This rank's number among those that write, replicas of its shards included, and how many there are."""
    ranks, replicate = engine.comm.size, engine.replicate
    if replicate is None:
        return engine.comm.rank, ranks
    return replicate.rank * ranks + engine.comm.rank, replicate.size * ranks


def agree(engine: ZeroEngine, error: BaseException | None, record: Any = None) -> list[Any]:
    """Every rank's record, in the order of writers; if any rank has an error, all raise: its own, or one that names
    the rank. A collective."""
    said = None if error is None else f"{error}" if isinstance(error, ZerolabError) else repr(error)
    rows = gather_records(engine.comm, [said, record])
    if engine.replicate is not None:
        rows = [row for rows in gather_records(engine.replicate, rows) for row in rows]
    if error is not None:
        raise error
    failed = [(writer, said) for writer, (said, _) in enumerate(rows) if said is not None]
    if failed:
        writer, said = failed[0]
        raise CheckpointError(f"rank {writer} failed: {said}")
    return [record for _, record in rows]


WRITING = "could not be written", "the last good one is as it was: see to the disk, then save again"
READING = "could not be read", "see to the disk, then load again"


def attempt(work: Callable[[], Any], doing: tuple[str, str] = WRITING) -> tuple[Any, BaseException | None]:
    """What `work` gives, or the error that it raises, in our words if the system refused something."""
    try:
        return work(), None
    except OSError as error:
        named = f" for {error.filename}" if error.filename else ""
        return None, CheckpointError(f"the checkpoint {doing[0]} ({reason(error)}{named}); {doing[1]}")
    except Exception as error:
        return None, error
