"""Saving: every rank writes its own files, and rank 0 makes a checkpoint of them.

    1  all ranks    see that nothing is half-way, and tell each other what is not sharded
    2  each rank    writes its two files into a draft folder, syncs them to the disk, and leaves a note of them there
    3  rank 0       finds all notes, writes the manifest, renames the draft, and points `latest` at it

With `wait=False` a rank copies its shards to host memory in step 2 and returns; a thread writes them while training
goes on, and one of rank 0 does step 3. Ranks say nothing to each other meanwhile, since their collectives belong to the
training: notes are files. What fails is told to all ranks by their next call here.
"""

from __future__ import annotations

import json
import os
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from zerolab import __version__
from zerolab.checkpoint import plain, rng
from zerolab.checkpoint.agreement import agree, attempt
from zerolab.checkpoint.checksum import crc32
from zerolab.checkpoint.folder import Folder, write_synced
from zerolab.checkpoint.manifest import (
    MANIFEST,
    NONPARAM,
    SCHEDULER,
    Manifest,
    SavedFile,
    model_file,
    optimizer_file,
)
from zerolab.checkpoint.shards import Shards, buffers_of, digest, keeps_main, parameters_of, states_of, tied_names
from zerolab.checkpoint.tensors import FileWriter
from zerolab.checkpoint.unsharded import check_complete, counters_of, merged, nonparam_text, options_of
from zerolab.collectives import phase
from zerolab.zero import ZeroEngine

NOTE = ".note-rank{}.json"
_POLL = 0.005


class Save:
    """One save of this rank: from the shards at hand to a checkpoint."""

    def __init__(
        self,
        folder: Folder | None,
        engine: ZeroEngine,
        step: int,
        scheduler: Any,
        data: Any,
        keep: int | None,
        path: Path,
    ) -> None:
        replicate = engine.replicate
        self.engine, self.folder, self.step, self.keep = engine, folder, step, keep
        self.copy = 0 if replicate is None else replicate.rank
        self.writer = self.copy * engine.comm.size + engine.comm.rank
        self.writers = engine.comm.size * (1 if replicate is None else replicate.size)
        self.result: Path | None = None
        self.error: BaseException | None = None
        self._parts_done = threading.Event()
        # A rank has failed, so that its note may never come.
        self._given_up = threading.Event()
        self._thread: threading.Thread | None = None
        with phase("checkpoint"):
            try:
                self._begin(path, scheduler, data)
            except BaseException:
                if folder is not None:
                    # A draft that was begun for nothing; no other save is under way.
                    folder.sweep()
                raise

    def _begin(self, path: Path, scheduler: Any, data: Any) -> None:
        engine = self.engine
        engine.synchronize()
        about, error = attempt(lambda: self._about(scheduler, data))
        rows = agree(engine, error, about)
        self.token, first = rows[0]["token"], rows[0]
        self.draft = path / first["draft"]
        # The first writer whose buffer has the same bytes.
        self.buffers = {
            name: [[row["buffers"][name] for row in rows].index(own["buffers"][name]) for own in rows]
            for name in first["buffers"]
        }
        counters = merged([row["counters"] for row in rows])
        begun = all(row["begun"] for row in rows if row["begun"] is not None)
        self.shards = Shards(engine, begun)
        if self.writer == 0:
            self._manifest = self._describe(rows, data)
            self._texts = {NONPARAM: nonparam_text(engine, [row["options"] for row in rows], counters)}
            if scheduler is not None:
                self._texts[SCHEDULER] = plain.dump(scheduler.state_dict(), "the scheduler's state")

    # What is not sharded.

    def _about(self, scheduler: Any, data: Any) -> dict[str, Any]:
        """What the other ranks must hear of this one."""
        engine = self.engine
        engine.check_between_steps("save")
        check_complete(engine)
        if scheduler is not None:
            plain.dump(scheduler.state_dict(), "the scheduler's state")
        plain.dump(data, "data")
        about: dict[str, Any] = {"token": "", "draft": ""}
        if self.folder is not None:
            about["token"] = secrets.token_hex(4)
            about["draft"] = self.folder.begin(self.step, about["token"]).name
        about["buffers"] = {name: digest(buffer) for name, buffer in buffers_of(engine.model).items()}
        about["counters"], about["options"] = counters_of(engine), options_of(engine)
        segments = engine.optimizer_step.segments
        about["begun"] = all(map(engine.optimizer_step.has_begun, segments)) if segments else None
        about["states"], about["main"] = states_of(engine), keeps_main(engine)
        return about

    def _describe(self, rows: list[Any], data: Any) -> Manifest:
        engine = self.engine
        states: dict[str, Any] = next((row["states"] for row in rows if row["states"]), {})
        return Manifest(
            save=self.token,
            step=self.step,
            ranks=engine.comm.size,
            stage=engine.stage,
            replicas=self.writers // engine.comm.size,
            precision=None if engine.precision is None else asdict(engine.precision),
            offload={"optimizer": engine.offload.optimizer, "parameters": engine.offload.parameters},
            optimizer=type(engine.optimizer).__name__,
            states=states if self.shards.begun else {},
            main=any(row["main"] for row in rows),
            parameters=parameters_of(engine),
            buffers=self.buffers,
            tied=tied_names(engine.model),
            data=json.loads(plain.dump(data, "data")),
            files={},
            written_by={"zerolab": __version__, "torch": torch.__version__},
        )

    # Writing this rank's files.

    def _sources(self) -> Iterator[tuple[str, dict[str, Any], Callable[[], Iterator[tuple[str, torch.Tensor]]]]]:
        """Each file's name, its shapes, and its parts."""
        shards, own = self.shards, rng.capture(self.engine.comm.device)
        for name, buffer in buffers_of(self.engine.model).items():
            if self.buffers[name][self.writer] == self.writer:
                own[f"buffer/{name}"] = buffer
        shapes = {name: (tensor.dtype, list(tensor.shape)) for name, tensor in own.items()}
        first = self.copy == 0
        model = shards.model_shapes() if first else {}

        def model_parts() -> Iterator[tuple[str, torch.Tensor]]:
            yield from own.items()
            if first:
                yield from shards.model_parts()

        yield model_file(self.writer), {**model, **shapes}, model_parts
        if first:
            yield optimizer_file(self.writer), shards.optimizer_shapes(), shards.optimizer_parts

    def _writers(self) -> Iterator[tuple[FileWriter, Callable[[], Iterator[tuple[str, torch.Tensor]]]]]:
        about = {"save": self.token, "step": str(self.step), "rank": str(self.writer)}
        for name, shapes, parts in self._sources():
            yield FileWriter(self.draft / name, shapes, about), parts

    def write(self) -> Path:
        """Write this rank's files straight from its shards, and return once all ranks' are a checkpoint."""

        def work() -> None:
            files: dict[str, Any] = {}
            for writer, parts in self._writers():
                try:
                    for name, tensor in parts():
                        writer.append(name, tensor)
                    _finish(writer, files)
                finally:
                    writer.close()
            self._leave_note(files)

        with phase("checkpoint"):
            _, self.error = attempt(work)
            self._parts_done.set()
            return self.settle()

    def write_later(self) -> None:
        """Copy this rank's shards to host memory, and have a thread write them. What rests on a disk is copied from
        there to the checkpoint before this returns."""
        on_disk = "disk" in (self.engine.offload.optimizer, self.engine.offload.parameters)
        begun: list[tuple[FileWriter, list[tuple[str, torch.Tensor]]]] = []

        def work() -> None:
            for writer, parts in self._writers():
                copies: list[tuple[str, torch.Tensor]] = []
                begun.append((writer, copies))
                for name, tensor in parts():
                    if on_disk:
                        writer.append(name, tensor)
                    else:
                        copies.append((name, tensor.detach().to("cpu", copy=True)))

        with phase("checkpoint"):
            _, self.error = attempt(work)
        self._thread = threading.Thread(target=self._write_behind, args=(begun,), daemon=True)
        self._thread.start()

    def _write_behind(self, begun: list[tuple[FileWriter, list[tuple[str, torch.Tensor]]]]) -> None:
        _step_back()

        def work() -> None:
            files: dict[str, Any] = {}
            for writer, copies in begun:
                while copies:
                    writer.append(*copies.pop(0))
                _finish(writer, files)
            self._leave_note(files)

        if self.error is None:
            _, self.error = attempt(work)
        for writer, _ in begun:
            writer.close()
        if self.error is not None:
            with suppress(OSError):
                self._leave_note(None)
        self._parts_done.set()
        if self.writer == 0 and self.error is None:
            self._publish()

    def settle(self) -> Path:
        """Return the checkpoint once it is there, on every rank; raise on every rank if one failed. A collective."""
        with phase("checkpoint"):
            self._parts_done.wait()
            try:
                agree(self.engine, self.error)
                if self._thread is not None:
                    # All notes are there by now, so it comes to an end.
                    self._thread.join()
                elif self.writer == 0:
                    self._publish()
                rows = agree(self.engine, self.error, None if self.result is None else str(self.result))
            except BaseException:
                self._given_up.set()
                if self._thread is not None:
                    self._thread.join()
                if self.folder is not None:
                    self.folder.discard(self.draft)
                raise
            return Path(rows[0])

    # Making a checkpoint of all ranks' files.

    def _leave_note(self, files: Mapping[str, Any] | None) -> None:
        note = self.draft / NOTE.format(self.writer)
        part = note.with_suffix(".part")
        part.write_text(json.dumps(files))
        part.replace(note)

    def _publish(self) -> None:
        def work() -> Path | None:
            assert self.folder is not None
            files: dict[str, SavedFile] = {}
            for writer in range(self.writers):
                note = self.draft / NOTE.format(writer)
                while not note.exists():
                    if self._given_up.wait(_POLL):
                        return None
                said = json.loads(note.read_text())
                if said is None:
                    # That rank says why when it is asked next.
                    return None
                files |= {name: SavedFile(*of_file) for name, of_file in said.items()}
            for name, text in self._texts.items():
                write_synced(self.draft / name, text.encode())
                files[name] = SavedFile(len(text.encode()), crc32(text.encode()))
            write_synced(self.draft / MANIFEST, replace(self._manifest, files=files).to_json().encode())
            for writer in range(self.writers):
                (self.draft / NOTE.format(writer)).unlink()
            return self.folder.publish(self.draft, self.step, self.keep)

        self.result, self.error = attempt(work)


def _finish(writer: FileWriter, files: dict[str, Any]) -> None:
    writer.finish()
    files[writer.path.name] = [writer.nbytes, writer.header_crc32]


def _step_back() -> None:
    """Give this thread a core only where training leaves one (Linux knows threads as processes)."""
    with suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)
