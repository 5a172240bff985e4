"""A DCP folder: `.metadata`, which says what tensors and values there are and where, and files with shards of them.

Torch writes `.metadata` as a pickle, and a pickle is a program: torch's own reader runs it, whoever wrote it. Here it
may make the records that torch describes tensors with, and nothing else.
"""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint import DefaultLoadPlanner, FileSystemReader
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, Metadata, MetadataIndex, TensorStorageMetadata
from torch.distributed.checkpoint.planner import ReadItem

from zerolab.errors import CheckpointError
from zerolab.ranks.folders import reason

METADATA = ".metadata"
_ROOMS = ("torch.distributed.checkpoint.metadata", "torch.distributed.checkpoint.filesystem")
_RECORDS = {
    *("Metadata", "MetadataIndex", "_StorageInfo"),
    *("TensorStorageMetadata", "BytesStorageMetadata", "ChunkStorageMetadata"),
}


class _Inert:
    """What stands for all else that a pickle would make. It takes whatever it is given, and does nothing."""

    def __new__(cls, *_: Any, **__: Any) -> _Inert:
        return super().__new__(cls)

    def __setstate__(self, state: Any) -> None:
        pass


class _Properties(_Inert):
    """A tensor's, of which its dtype is used."""

    def __setstate__(self, state: Any) -> None:
        self.dtype: torch.dtype = state[0]


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if module in _ROOMS and name in _RECORDS:
            # A class of its own, since a pickle may overwrite what a class has.
            return type(name, (super().find_class(module, name),), {})
        if name == "TensorProperties":
            return _Properties
        known = getattr(torch, name, None) if module == "torch" else None
        return known if isinstance(known, torch.dtype) or known is torch.Size else _Inert


def read_metadata(folder: Path) -> Metadata:
    """What a DCP folder says of its tensors and values. Raises a CheckpointError that names the file if it is missing,
    damaged, or says something else."""
    path = folder / METADATA
    try:
        metadata = _Unpickler(io.BytesIO(path.read_bytes())).load()
        entries = metadata.state_dict_metadata.values()
        places = {MetadataIndex(at.fqn, at.offset): place for at, place in metadata.storage_data.items()}
        known = all(isinstance(entry, TensorStorageMetadata | BytesStorageMetadata) for entry in entries)
        if not known or any(Path(place.relative_path).name != place.relative_path for place in places.values()):
            raise ValueError("it names what is not here")
    except OSError as error:
        raise CheckpointError(
            f"{folder} has no {METADATA} that can be read ({reason(error)}), so it is no finished folder of "
            "torch.distributed.checkpoint; name another"
        ) from None
    except Exception:
        # Whatever bytes may lead to.
        raise CheckpointError(
            f"{path} is damaged, or not as torch.distributed.checkpoint writes it; take another checkpoint"
        ) from None
    metadata.storage_data = places
    return metadata


class DcpFolder:
    """Entries of a DCP folder by key, read by torch."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metadata = read_metadata(path)
        self.entries: dict[str, Any] = dict(self.metadata.state_dict_metadata)
        self._reader = FileSystemReader(path)
        self._reader.set_up_storage_reader(self.metadata, True)

    def is_tensor(self, key: str) -> bool:
        return isinstance(self.entries[key], TensorStorageMetadata)

    def shape(self, key: str) -> tuple[int, ...]:
        return tuple(self.entries[key].size) if self.is_tensor(key) else ()

    def dtype(self, key: str) -> torch.dtype:
        return self.entries[key].properties.dtype

    def read(self, key: str) -> Any:
        """A tensor, whole, or another value."""
        is_tensor, shape = self.is_tensor(key), self.shape(key)
        values = {key: torch.empty(shape, dtype=self.dtype(key)) if is_tensor else None}
        planner = _Planner(flatten_state_dict=False, flatten_sharded_tensors=False)
        try:
            planner.set_up_planner(values, self.metadata, True)
            plan = planner.create_local_plan()
            if is_tensor and sum(item.lengths.numel() for item in plan.items) != torch.Size(shape).numel():
                raise ValueError("elements are missing")
            self._reader.read_data(plan, planner).wait()
        except Exception as error:
            files = {place.relative_path for index, place in self.metadata.storage_data.items() if index.fqn == key}
            said = reason(error) if isinstance(error, OSError) else str(error).partition("\n")[0] or repr(error)
            raise CheckpointError(
                f"{self.path / min(files, default='no file')}, which has {key}, cannot be read ({said}); take another "
                "checkpoint"
            ) from None
        return planner.state_dict[key]


class _Planner(DefaultLoadPlanner):
    """Torch's planner, but values that are no tensors are not unpickled freely either."""

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        self.state_dict[read_item.dest_index.fqn] = torch.load(value, weights_only=True)
