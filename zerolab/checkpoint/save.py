"""Saving: every rank writes its own files, and rank 0 makes a checkpoint of them.

    1  all ranks    see that nothing is half-way, and tell each other what is not sharded
    2  each rank    writes its two files into a draft folder, syncs them to the disk, and leaves a note of them there
    3  rank 0       finds all notes, writes the manifest, renames the draft, and points `latest` at it

Without waiting a rank copies its shards to host memory in step 2 and goes on, and a thread writes them. Ranks say
nothing to each other then, since their collectives belong to the training: notes are files.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from zerolab import __version__
from zerolab.checkpoint import manifest, plain, rng, shards
from zerolab.checkpoint.agreement import all_gather_or_raise, writers_of
from zerolab.checkpoint.folder import Folder, discard, draft_name
from zerolab.checkpoint.manifest import MANIFEST, NONPARAM, SCHEDULER, Manifest, SavedFile, crc32
from zerolab.checkpoint.tensors import FileWriter, Shapes, bytes_of
from zerolab.collectives import phase
from zerolab.files import write_whole
from zerolab.zero import ZeroEngine

NOTE = ".note-rank{}.json"
_POLL = 0.002
Parts = Iterable[tuple[str, torch.Tensor]]


@dataclass
class Save:
    """One save of this rank: from the shards at hand to a checkpoint in `path`, whose `folder` rank 0 has."""

    engine: ZeroEngine
    folder: Folder | None
    path: Path
    step: int
    keep: int | None
    _files: list[FileWriter] = field(default_factory=list)
    _taken: Future[None] = field(default_factory=Future)
    _written: Future[None] = field(default_factory=Future)
    _committed: Future[Path | None] = field(default_factory=Future)
    _given_up: threading.Event = field(default_factory=threading.Event)
    """A rank has failed, so that its note may never come."""
    _texts: dict[str, str] = field(default_factory=dict)

    def begin(self, scheduler: Any, data: Any) -> None:
        """Tell the others what is not sharded. A collective."""
        engine = self.engine
        engine.synchronize()
        self.writer, self.writers = writers_of(engine)
        rows = all_gather_or_raise(engine, lambda: self._describe(scheduler, data))
        token = rows[0]["token"]
        self.draft = self.path / draft_name(self.step, token)
        # The first writer whose buffer has the same bytes.
        digests = [row["buffers"] for row in rows]
        self.buffers = {name: [[of[name] for of in digests].index(own[name]) for own in digests] for name in digests[0]}
        nonparam = shards.nonparam_text(engine, [row["groups"] for row in rows])
        self.shards = shards.Shards(engine, begun=all(row["begun"] for row in rows if row["begun"] is not None))
        self._texts = {NONPARAM: nonparam, **self._texts}
        states: dict[str, Any] = next((row["states"] for row in rows if row["states"]), {})
        self._manifest = Manifest(
            save=token,
            step=self.step,
            ranks=engine.comm.size,
            stage=engine.stage,
            replicas=self.writers // engine.comm.size,
            precision=None if engine.precision is None else asdict(engine.precision),
            offload={"optimizer": engine.offload.optimizer, "parameters": engine.offload.parameters},
            optimizer=type(engine.optimizer).__name__,
            states=states if self.shards.begun else {},
            main=any(row["main"] for row in rows),
            parameters=shards.parameters_of(engine),
            buffers=self.buffers,
            tied=shards.tied_names(engine.model),
            data=self._data,
            written_by={"zerolab": __version__, "torch": torch.__version__},
        )

    def _describe(self, scheduler: Any, data: Any) -> dict[str, Any]:
        """What the other ranks must hear of this one."""
        engine = self.engine
        engine.check_between_steps("save")
        shards.check_complete(engine)
        if scheduler is not None:
            said = plain.encode(scheduler.state_dict(), "the scheduler's state")
            self._texts[SCHEDULER] = json.dumps(said, indent=1) + "\n"
        self._data = plain.encode(data, "data")
        segments = engine.optimizer_step.segments
        return {
            "token": secrets.token_hex(4),
            "buffers": {
                name: hashlib.blake2b(bytes_of(buffer), digest_size=16).hexdigest()
                for name, buffer in shards.buffers_of(engine.model).items()
            },
            "groups": shards.groups_record(engine),
            "begun": all(map(engine.optimizer_step.has_begun, segments)) if segments else None,
            "states": shards.states_of(engine),
            "main": any(segment.format.main is not None for segment in segments),
        }

    def _sources(self) -> Iterator[tuple[str, Shapes, Parts]]:
        """The name of each of this rank's files, its shapes, and its parts."""
        own = rng.capture(self.engine.comm.device)
        for name, buffer in shards.buffers_of(self.engine.model).items():
            if self.buffers[name][self.writer] == self.writer:
                own[f"buffer/{name}"] = buffer
        shapes: Shapes = {name: (tensor.dtype, list(tensor.shape)) for name, tensor in own.items()}
        if self.writer >= self.engine.comm.size:
            # A replica, whose shards another rank writes.
            yield manifest.model_file(self.writer), shapes, own.items()
            return
        model, optimizer = self.shards.shapes()
        parts = itertools.chain(own.items(), self.shards.model_parts())
        yield manifest.model_file(self.writer), {**model, **shapes}, parts
        yield manifest.optimizer_file(self.writer), optimizer, self.shards.optimizer_parts()

    def write(self, waits: bool) -> Path | None:
        """Write this rank's files; if it `waits`, return once all ranks' are a checkpoint."""
        offload = self.engine.offload
        # What rests on a disk goes from there to the checkpoint at once.
        copies = not waits and "disk" not in (offload.optimizer, offload.parameters)
        complete(self._taken, lambda: self._take(copies))
        self.thread = threading.Thread(target=self._finish, args=[waits], daemon=True)
        self.thread.start()
        return self.settle() if waits else None

    def _take(self, copies: bool) -> None:
        self.draft.mkdir(exist_ok=True)
        about = {"save": self._manifest.save, "step": str(self.step), "rank": str(self.writer)}
        for file, shapes, parts in self._sources():
            writer = FileWriter(self.draft / file, shapes, about)
            self._files.append(writer)
            take = writer.keep if copies else writer.append
            for name, tensor in parts:
                take(name, tensor)

    def _finish(self, waits: bool) -> None:
        if not waits:
            # A core for it only where training leaves one (Linux knows threads as processes).
            with suppress(OSError, AttributeError):
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)
        complete(self._written, self._write_files)
        if self.folder is not None:
            complete(self._committed, self._commit)
            # Nobody but the next save waits for that, which takes a third of the time of writing.
            for path in self.folder.doomed:
                discard(path)

    def _write_files(self) -> None:
        """Bring this rank's files to the disk, and leave a note of them."""
        try:
            self._taken.result()
            files = {}
            for writer in self._files:
                writer.finish()
                files[writer.path.name] = [writer.nbytes, writer.header_crc32]
            write_whole(self.draft / NOTE.format(self.writer), json.dumps(files), sync=False)
        finally:
            for writer in self._files:
                writer.close()
            self._files.clear()

    def _commit(self) -> Path | None:
        """Make a checkpoint of all ranks' files."""
        self._written.result()
        assert self.folder is not None
        files: dict[str, SavedFile] = {}
        for writer in range(self.writers):
            note = self.draft / NOTE.format(writer)
            while not note.exists():
                if self._given_up.wait(_POLL):
                    return None
            files |= {name: SavedFile(*of_file) for name, of_file in json.loads(note.read_text()).items()}
            note.unlink()
        return commit(self.folder, self.draft, replace(self._manifest, files=files), self._texts, self.keep)

    def settle(self) -> Path:
        """Return the checkpoint once it is there, on every rank; raise on every rank if one failed. A collective."""
        with phase("checkpoint"):
            try:
                all_gather_or_raise(self.engine, self._written.result)
                # All notes are there by now, so it comes to an end.
                rows = all_gather_or_raise(self.engine, lambda: self.folder and str(self._committed.result()))
            except BaseException:
                self._given_up.set()
                if self.folder is not None:
                    wait([self._committed])
                    discard(self.draft)
                raise
            return Path(rows[0])


def complete(future: Future[Any], work: Callable[[], Any]) -> None:
    try:
        future.set_result(work())
    except Exception as error:
        future.set_exception(error)


def commit(folder: Folder, draft: Path, manifest: Manifest, texts: Mapping[str, str], keep: int | None = None) -> Path:
    """Write JSON files and the manifest to a draft, and make it a checkpoint."""
    files = dict(manifest.files)
    for name, text in texts.items():
        write_whole(draft / name, text)
        files[name] = SavedFile(len(text.encode()), crc32(text.encode()))
    write_whole(draft / MANIFEST, replace(manifest, files=files).to_json())
    return folder.commit(draft, manifest.step, keep)
