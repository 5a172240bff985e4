"""The checkpoints of a run: one is saved, the newest is loaded, old ones go."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from zerolab.checkpoint.agreement import all_gather_or_raise, writers_of
from zerolab.checkpoint.folder import Folder, find_latest, own, share
from zerolab.checkpoint.load import Load, Loaded
from zerolab.checkpoint.save import Save
from zerolab.collectives import phase
from zerolab.errors import InputError
from zerolab.flat.layout import check_count
from zerolab.zero import ZeroEngine


class Checkpoints:
    """The checkpoints of one run, in a folder that all of its ranks share; `keep` of them, the newest, or all.

    Every rank makes one and makes the same calls. From the first save on, rank 0 holds the folder's lock, until `close`
    or the end of a `with` block: two runs that saved to one folder would take each other's place.
    """

    def __init__(self, folder: Path | str, keep: int | None = None) -> None:
        if not str(folder):
            raise InputError(f"the folder of checkpoints is {folder!r}; name a folder")
        if keep is not None:
            check_count("keep", keep)
        self.path, self.keep = Path(folder).expanduser(), keep
        self._folder: Folder | None = None
        self._under_way: Save | None = None
        self._join: Callable[[], None] = lambda: None

    def save(
        self, engine: ZeroEngine, step: int, *, scheduler: Any = None, data: Any = None, wait: bool = True
    ) -> Path | None:
        """Save what `engine` trains as the checkpoint of `step`: parameters, buffers, optimizer states and options,
        loss scale, random generators; the state of a torch `scheduler`; and `data`, anything that JSON can hold.
        Returns its folder; with `wait=False` None, once the shards are copied to host memory. They are written while
        training goes on, and the checkpoint is there once the next `save` or `wait` has returned.

        A collective: every rank calls it, between steps. Raises a CheckpointError on every rank if one of them cannot
        write; the last good checkpoint is as it was.
        """
        check_count("step", step, least=0)
        self.wait()
        self.hold(engine)
        with phase("checkpoint"):
            under_way = Save(engine, self._folder, self.path, step, self.keep)
            under_way.begin(scheduler, data)
            self._under_way = None if wait else under_way
            path = under_way.write(wait)
        self._join = under_way.thread.join
        return path

    def hold(self, engine: ZeroEngine) -> None:
        """Take the folder's lock now, as the first save would. A collective: raises a CheckpointError on every rank if
        another run or another engine saves there, or if nobody can."""

        def take() -> None:
            if writers_of(engine)[0] == 0:
                self._folder = self._folder or Folder(self.path)
                own(self.path, engine)

        with phase("checkpoint"):
            all_gather_or_raise(engine, take)

    def wait(self) -> Path | None:
        """Return once the save that is under way is a checkpoint: its folder; None if there is none; and once those
        beyond `keep` are gone. A collective. Raises what went wrong with it, on every rank."""
        under_way, self._under_way = self._under_way, None
        path = None if under_way is None else under_way.settle()
        self._join()
        return path

    def load(
        self, engine: ZeroEngine, *, scheduler: Any = None, weights_only: bool = False, folder: Path | str | None = None
    ) -> Loaded:
        """Load the newest checkpoint, or that of `folder`, into an engine of the same model, with any number of ranks,
        stage, precision and offload. `weights_only` leaves optimizer, scale and random generators as they are.

        A collective: every rank calls it, between steps. Raises a CheckpointError for files that are missing, damaged
        or of something else, and an InputError for another model, while the engine is as it was.
        """
        self.wait()
        with phase("checkpoint"):
            where = self.path if folder is None else Path(folder).expanduser()
            loaded = Load(engine, scheduler, weights_only).run(where)
        if writers_of(engine)[0] == 0 and not weights_only:
            share(loaded.folder.parent, engine)
        return loaded

    def latest(self) -> Path | None:
        """The newest checkpoint, or None."""
        return find_latest(self.path)

    def close(self, failed: bool = False) -> None:
        """Wait for the save that is under way, and let the folder's lock go."""
        try:
            # Ranks that failed do not meet any more; a save under way ends by itself or is swept away.
            if not failed:
                self.wait()
        finally:
            if self._folder is not None:
                self._folder.close()
                self._folder = None

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.close(failed=kind is not None)


def save(folder: Path | str, engine: ZeroEngine, step: int, **options: Any) -> Path | None:
    """One checkpoint in `folder`; see `Checkpoints.save`."""
    with Checkpoints(folder) as checkpoints:
        return checkpoints.save(engine, step, **options)


def load(folder: Path | str, engine: ZeroEngine, **options: Any) -> Loaded:
    """The newest checkpoint in `folder`, or the one that it is; see `Checkpoints.load`."""
    with Checkpoints(folder) as checkpoints:
        return checkpoints.load(engine, **options)
