"""One of our checkpoints as a folder of torch's distributed checkpoint (DCP), written tensor by tensor.

out/__0_0.distcp     values one after the other, each as torch.save writes it
out/.metadata        what each is, and which bytes it has: a pickle of torch's records
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from functools import partial
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    STORAGE_TYPES,
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from zerolab.apps.interop.dcp.folder import METADATA
from zerolab.apps.interop.drafts import refuse_used, writing
from zerolab.checkpoint.folder import remedy_for, resolve
from zerolab.checkpoint.manifest import NONPARAM, model_file, optimizer_file, read_manifest, tensor_name
from zerolab.checkpoint.reader import CheckpointReader
from zerolab.errors import CheckpointError
from zerolab.files import whole_folder, write_whole

Tensor = torch.Tensor
Progress = Callable[[int, int], None]
"""Told how many bytes of tensors were converted, and of how many."""
FILE = "__0_0.distcp"
AT_ONCE = 1 << 22
"""Elements that are decoded at a time."""
HOW = {"fused": None, "foreach": None, "capturable": False, "differentiable": False}
"""Options that say how torch's optimizer computes, as torch has them by default: who loads chooses again."""


class LazyTensor(NamedTuple):
    """A tensor that is read when it is written."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    read: Callable[[], Tensor]


def to_dcp(checkpoint: Path | str, folder: Path | str, *, progress: Progress | None = None) -> Path:
    """Write a checkpoint (its folder, or one in which it is the newest) as a DCP folder, which must be new or empty. It
    appears when it is whole. One process, which holds one tensor at a time.

    model   each parameter in the dtype with the most bits: its main parameters, where they are kept apart. That is what
            FSDP2 shards under a MixedPrecisionPolicy; where it shards 16-bit parameters, loading rounds them.
            Persistent buffers, as rank 0 had them.
    optim   the optimizer's states, those that rest in scaled blocks as fp32, unless it was never stepped; options by
            group, as the engine's optimizer had them, and by parameter: who has another number of groups loads with
            StateDictOptions(flatten_optimizer_state_dict=True).

    Returns the folder. Raises a CheckpointError for a checkpoint that is damaged and a folder that cannot be written.
    """
    path, folder = resolve(Path(checkpoint).expanduser()), Path(folder).expanduser()
    remedy = remedy_for(path)
    manifest = read_manifest(path, remedy)
    refuse_used(folder, CheckpointError)
    source = CheckpointReader(path, manifest, remedy)
    with writing(folder), whole_folder(folder) as draft:
        _write(draft, _model_of(source) | _optimizer_of(source), progress)
    return folder


def _model_of(source: CheckpointReader) -> dict[tuple[Any, ...], Any]:
    """Tensors by the path that a state dict has them at."""
    manifest = source.manifest
    found: dict[tuple[Any, ...], Any] = {}
    for name, saved in manifest.parameters.items():
        found["model", name] = _state(source, "main" if manifest.main and saved.trains else "model", name)
    for name, writers in manifest.buffers.items():
        file, key = model_file(writers[0]), f"buffer/{name}"
        entry = source.reader(file).entries[key]
        found["model", name] = LazyTensor(entry.dtype, entry.shape, partial(source.tensor, file, key))
    return found | {("model", name): found["model", first] for name, first in manifest.tied.items()}


def _optimizer_of(source: CheckpointReader) -> dict[tuple[Any, ...], Any]:
    """States and options by the path that a state dict has them at."""
    manifest = source.manifest
    found: dict[tuple[Any, ...], Any] = {}
    for number, group in enumerate(source.json(NONPARAM)["groups"]):
        options = group["options"] | {name: own for name, own in HOW.items() if name in group["options"]}
        if "lr" in options:
            # A scheduler of torch's wants it, and has set it if there was one.
            options.setdefault("initial_lr", options["lr"])
        for option, value in {**options, "params": group["parameters"]}.items():
            found["optim", "param_groups", number, option] = value
        for name in group["parameters"]:
            # A parameter that is called 0 would be taken for a group.
            if not name.isdecimal():
                found |= {("optim", f"param_groups.{name}.{option}"): value for option, value in options.items()}
            if manifest.states and manifest.parameters[name].trains:
                long = {state: _state(source, state, name) for state in manifest.states}
                for state, value in {**group["counters"], **long}.items():
                    found["optim", "state", name, state] = value
    return found


def _state(source: CheckpointReader, state: str, name: str) -> LazyTensor:
    saved, dtype = source.manifest.parameters[name], torch.float32
    if saved.stretches and not source.manifest.states.get(state, {}).get("scaled"):
        first = saved.stretches[0]
        file = (model_file if state == "model" else optimizer_file)(first.writer)
        entry = tensor_name(state, name, first.start, first.stop)
        dtype = source.reader(file).entries[entry].dtype

    def read() -> Tensor:
        out = torch.empty(saved.numel, dtype=dtype)
        for at in range(0, saved.numel, AT_ONCE):
            source.read_into(out[at : at + AT_ONCE], state, name, at)
        return out

    return LazyTensor(dtype, saved.shape, read)


def _write(folder: Path, values: dict[tuple[Any, ...], Any], progress: Progress | None) -> None:
    entries: dict[str, STORAGE_TYPES] = {}
    places: dict[MetadataIndex, _StorageInfo] = {}
    names = {".".join(map(str, path)): path for path in values}
    tensors = [value for value in values.values() if isinstance(value, Tensor | LazyTensor)]
    total, done = sum(value.dtype.itemsize * prod(value.shape) for value in tensors), 0
    with open(folder / FILE, "xb") as file:
        for key, path in names.items():
            start, value, offset = file.tell(), values[path], None
            data = value.read().view(value.shape) if isinstance(value, LazyTensor) else value
            torch.save(data, file)
            entries[key] = BytesStorageMetadata()
            if isinstance(data, Tensor):
                offset = torch.Size([0] * data.dim())
                whole = ChunkStorageMetadata(offset, data.size())
                entries[key] = TensorStorageMetadata(TensorProperties(data.dtype), data.size(), [whole])
                done += data.nbytes
                if progress is not None:
                    progress(done, total)
            places[MetadataIndex(key, offset)] = _StorageInfo(FILE, start, file.tell() - start)
            del data  # before the next one is read
        file.flush()
        os.fsync(file.fileno())
    write_whole(folder / METADATA, pickle.dumps(Metadata(entries, names, places)))
