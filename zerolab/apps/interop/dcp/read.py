"""A folder of torch's distributed checkpoint (DCP) as one of our checkpoints, as if one rank had written it.

1  dcp_metadata   which entries there are, by name; nothing of a pickle is run
2  dcp_names      which of them are parameters, which buffers, which states of which optimizer group
3  here           one entry after the other is read by torch's reader, whole, and appended to a file
"""

from __future__ import annotations

import io
import json
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint import DefaultLoadPlanner, FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.planner import ReadItem

from zerolab import __version__
from zerolab.apps.interop.dcp.metadata import read_metadata
from zerolab.apps.interop.dcp.names import Contents, sort_entries
from zerolab.apps.interop.dcp.write import Progress, refuse_used
from zerolab.checkpoint import plain
from zerolab.checkpoint.folder import Folder, discard, draft_name
from zerolab.checkpoint.manifest import (
    MANIFEST,
    NONPARAM,
    Manifest,
    SavedFile,
    SavedParameter,
    ShardRange,
    crc32,
    model_file,
    optimizer_file,
    tensor_name,
)
from zerolab.checkpoint.tensors import FileWriter
from zerolab.errors import CheckpointError
from zerolab.files import write_whole
from zerolab.flat.layout import check_count
from zerolab.ranks.folders import reason

Tensor = torch.Tensor


def from_dcp(
    folder: Path | str,
    checkpoints: Path | str,
    *,
    module: nn.Module | None = None,
    frozen: Iterable[str] = (),
    buffers: Iterable[str] = (),
    model: str = "model",
    optimizer: str = "optim",
    step: int | None = None,
    data: Any = None,
    progress: Progress | None = None,
) -> Path:
    """Write what a DCP folder has as a checkpoint, the first in the folder `checkpoints`, which must be new or empty.

    folder       written by torch.distributed.checkpoint.save with a state dict {"model": ..., "optim": ...} of
                 get_state_dict, flat or not, or of a module's and an optimizer's own `state_dict()`; by any number of
                 ranks of FSDP2, DDP or one process. Without optimizer states, weights alone are written
    module       the model that was saved, which may be on the meta device: it says what is what
    frozen       without it: which entries that no optimizer has are parameters, frozen or other names of tied ones
    buffers      and which are buffers; names, or patterns such as "*.running_*"
    model, optimizer    what the two parts are called in the state dict, such as "app.model"
    step, data   the checkpoint's, as `Checkpoints.save` has them; the step is else the optimizer's own count, or 0

    One process, which holds one entry at a time, and a shard of it. Of the folder nothing is run, neither its
    `.metadata`, which is a pickle, nor its values. A parameter that was never stepped has no states in torch; here they
    are zero.

    Returns the checkpoint's folder. Raises a CheckpointError that names what is missing, damaged or of another kind.
    """
    source, target = Path(folder).expanduser(), Path(checkpoints).expanduser()
    if step is not None:
        check_count("step", step, least=0)
    reader = _Reader(source)
    refuse_used(target)
    contents = sort_entries(reader, module, tuple(frozen), tuple(buffers), model, optimizer)
    room = Folder(target)
    try:
        step = contents.steps if step is None else step
        token = secrets.token_hex(4)
        draft = target / draft_name(step, token)
        draft.mkdir()
        try:
            with _named(target):
                _write(draft, token, step, data, contents, reader, progress)
                return room.commit(draft, step, None)
        except BaseException:
            discard(draft)
            raise
    finally:
        room.close()


@contextmanager
def _named(target: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CheckpointError(
            f"{target} could not be written ({reason(error)}); see to the disk, or name another folder"
        ) from None


class _Reader:
    """Entries of a DCP folder by key."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.metadata = read_metadata(folder)
        self.entries = self.metadata.state_dict_metadata
        self._reader = FileSystemReader(folder)
        self._reader.set_up_storage_reader(self.metadata, True)

    def shape(self, key: str) -> tuple[int, ...] | None:
        """Of a tensor; None of another value."""
        entry = self.entries[key]
        return tuple(entry.size) if isinstance(entry, TensorStorageMetadata) else None

    def dtype(self, key: str) -> torch.dtype:
        entry = self.entries[key]
        assert isinstance(entry, TensorStorageMetadata)
        return entry.properties.dtype

    def read(self, key: str) -> Any:
        """A tensor, whole, or another value."""
        shape = self.shape(key)
        values = {key: None if shape is None else torch.empty(shape, dtype=self.dtype(key))}
        planner = _Planner(flatten_state_dict=False, flatten_sharded_tensors=False)
        try:
            planner.set_up_planner(values, self.metadata, True)
            plan = planner.create_local_plan()
            if shape is not None and sum(item.lengths.numel() for item in plan.items) != torch.Size(shape).numel():
                raise ValueError("elements are missing")
            self._reader.read_data(plan, planner).wait()
        except Exception as error:
            files = {place.relative_path for index, place in self.metadata.storage_data.items() if index.fqn == key}
            where = self.folder / min(files, default="no file")
            said = reason(error) if isinstance(error, OSError) else str(error).partition("\n")[0] or repr(error)
            raise CheckpointError(
                f"{where}, which has {key}, cannot be read ({said}); take another checkpoint"
            ) from None
        return planner.state_dict[key]


class _Planner(DefaultLoadPlanner):
    """Torch's planner, but values that are no tensors are not unpickled freely either."""

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        self.state_dict[read_item.dest_index.fqn] = torch.load(value, weights_only=True)


def _write(
    draft: Path, token: str, step: int, data: Any, contents: Contents, reader: _Reader, progress: Progress | None
) -> None:
    """Write the files of a checkpoint, the manifest last."""
    model: dict[str, str] = {f"buffer/{name}": key for name, key in contents.buffers.items()}
    states: dict[str, str | None] = {}
    shapes: dict[str, tuple[torch.dtype, list[int]]] = {
        name: (reader.dtype(key), list(reader.shape(key) or ())) for name, key in model.items()
    }
    of_states: dict[str, tuple[torch.dtype, list[int]]] = {}
    parameters = {}
    for name, own in contents.parameters.items():
        shape = reader.shape(own.key)
        assert shape is not None
        numel = torch.Size(shape).numel()
        dtype = reader.dtype(own.key)
        parameters[name] = SavedParameter(
            shape, _word(dtype), own.trains, "", (ShardRange(0, numel, 0),) if numel else ()
        )
        if not numel:
            continue
        place = name, 0, numel
        model[tensor_name("model", *place)] = own.key
        shapes[tensor_name("model", *place)] = dtype, [numel]
        for state in contents.states if own.trains else ():
            key = own.states.get(state)
            states[tensor_name(state, *place)] = key
            of_states[tensor_name(state, *place)] = (
                contents.states[state] if key is None else reader.dtype(key),
                [numel],
            )
    total = sum(dtype.itemsize * torch.Size(shape).numel() for dtype, shape in [*shapes.values(), *of_states.values()])
    done = 0
    files = {}
    for file, keys, of_file in ((model_file(0), model, shapes), (optimizer_file(0), states, of_states)):
        writer = FileWriter(draft / file, of_file, {"save": token, "step": str(step), "rank": "0"})
        try:
            for name, key in keys.items():
                dtype, size = of_file[name]
                tensor = torch.zeros(size, dtype=dtype) if key is None else reader.read(key)
                writer.append(name, tensor)
                done += tensor.nbytes
                if progress is not None:
                    progress(done, total)
            writer.finish()
        finally:
            writer.close()
        files[file] = SavedFile(writer.nbytes, writer.header_crc32)
    groups = plain.encode(contents.groups, "the optimizer's options")
    text = (json.dumps({"groups": groups, "loss_scaler": None}, indent=1) + "\n").encode()
    write_whole(draft / NONPARAM, text)
    files[NONPARAM] = SavedFile(len(text), crc32(text))
    manifest = Manifest(
        save=token,
        step=step,
        ranks=1,
        stage=0,
        replicas=1,
        precision=None,
        offload={"optimizer": "device", "parameters": "device"},
        optimizer=contents.optimizer,
        states={
            state: {"dtype": _word(dtype), "scaled": False, "root": False} for state, dtype in contents.states.items()
        },
        main=False,
        parameters=parameters,
        buffers={name: [0] for name in contents.buffers},
        tied=contents.tied,
        data=plain.encode(data, "data"),
        files=files,
        written_by={"zerolab": __version__, "torch": torch.__version__, "from": "torch.distributed.checkpoint"},
    )
    write_whole(draft / MANIFEST, manifest.to_json().encode())


def _word(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
