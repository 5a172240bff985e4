"""A checkpoint's values by state, parameter and range of elements, whoever wrote them."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import torch

from zerolab.checkpoint import plain
from zerolab.checkpoint.folder import remedy_for, resolve
from zerolab.checkpoint.manifest import (
    ShardRange,
    crc32,
    model_file,
    optimizer_file,
    read_manifest,
    reading,
    tensor_name,
)
from zerolab.checkpoint.planner import Part, plan
from zerolab.checkpoint.shards import blocks_of
from zerolab.checkpoint.tensors import AT_ONCE, FileReader
from zerolab.errors import CheckpointError
from zerolab.precision.codec import BLOCK

Tensor = torch.Tensor
MOST_OPEN = 16


class CheckpointReader:
    """A checkpoint, or the newest of a folder of some. Raises a CheckpointError, which says what to load instead, for
    whatever is not as it was written."""

    def __init__(self, folder: Path | str) -> None:
        self.path = resolve(Path(folder).expanduser())
        self.remedy = remedy_for(self.path)
        self.manifest = manifest = read_manifest(self.path, self.remedy)
        self._open: dict[str, FileReader] = {}
        self.plan = cache(lambda name, start, stop: plan(manifest.parameters[name].stretches, start, stop))

    def state_of(self, parameter: str, dtype: torch.dtype | None = None) -> str:
        """From what a parameter is read: its main parameters, if it was not saved in `dtype`."""
        saved = self.manifest.parameters[parameter]
        alike = saved.dtype == str(dtype).removeprefix("torch.")
        return "main" if self.manifest.main and saved.trains and not alike else "model"

    def dtype(self, state: str, parameter: str) -> torch.dtype:
        """In which a state was saved; if in scaled blocks, that of its decoded values."""
        stretches = self.manifest.parameters[parameter].stretches
        if not stretches or self.manifest.states.get(state, {}).get("scaled"):
            return torch.float32
        file, name = self._place(state, parameter, stretches[0])
        return file.entries[name].dtype

    def read_whole(self, state: str, parameter: str, dtype: torch.dtype | None = None) -> Tensor:
        """A parameter, or a state of it, in its own dtype or another."""
        saved = self.manifest.parameters[parameter]
        out = torch.empty(saved.numel, dtype=dtype or self.dtype(state, parameter))
        self.read_into(out, state, parameter, 0)
        return out.view(saved.shape)

    def read_into(self, out: Tensor, state: str, parameter: str, start: int) -> None:
        """Write the elements from `start` on to `out` (1-D), decoded, some at a time."""
        stop = start + out.numel()
        for at in range(start, stop, AT_ONCE):
            for part in self.plan(parameter, at, min(at + AT_ONCE, stop)):
                values = self.values(state, parameter, part)
                out[part.start - start : part.stop - start] = values.to(out.device, out.dtype)

    def values(self, state: str, parameter: str, part: Part) -> Tensor:
        """Elements of a part, decoded, on the host."""
        codes = self.codes(state, parameter, part)
        codec = self.manifest.states.get(state, {})
        if not codec.get("scaled"):
            return codes
        first, last = part.within
        numbers = torch.arange(first, last) // BLOCK - first // BLOCK
        values = codes.float() * self.scales(state, parameter, part)[numbers]
        return values.square_() if codec["root"] else values

    def codes(self, state: str, parameter: str, part: Part) -> Tensor:
        """Elements of a part as they were stored."""
        file, name = self._place(state, parameter, part.source)
        return file.read(name, *part.within)

    def scales(self, state: str, parameter: str, part: Part) -> Tensor:
        """The scales of a part's blocks."""
        file, name = self._place(f"{state}.scale", parameter, part.source)
        return file.read(name, *blocks_of(*part.within))

    def check(self, state: str, parameter: str, start: int, stop: int) -> int:
        """Read elements to see that they are as they were written; returns how many bytes they take."""
        scaled, needed = self.manifest.states.get(state, {}).get("scaled"), 0
        for part in self.plan(parameter, start, stop):
            ranges = {state: part.within} | ({f"{state}.scale": blocks_of(*part.within)} if scaled else {})
            for kind, (first, last) in ranges.items():
                file, name = self._place(kind, parameter, part.source)
                file.check(name, first, last)
                needed += (last - first) * file.entries[name].dtype.itemsize
        return needed

    def _place(self, state: str, parameter: str, source: ShardRange) -> tuple[FileReader, str]:
        file = (model_file if state == "model" else optimizer_file)(source.writer)
        return self.reader(file), tensor_name(state, parameter, source.start, source.stop)

    # Whole tensors and texts.

    def tensor(self, file: str, name: str) -> Tensor:
        """A whole tensor of a file."""
        reader = self.reader(file)
        return reader.read(name).view(reader.entries[name].shape)

    def buffer(self, name: str, writer: int = 0) -> Tensor:
        """A buffer as one of the ranks had it."""
        return self.tensor(model_file(self.manifest.buffers[name][writer]), f"buffer/{name}")

    def json(self, name: str) -> Any:
        """What a JSON file of the checkpoint says."""
        with reading(self.path / name, self.remedy):
            data = (self.path / name).read_bytes()
        if name not in self.manifest.files or crc32(data) != self.manifest.files[name].crc32:
            raise CheckpointError(f"{self.path / name} is damaged, or of another checkpoint; {self.remedy}")
        return plain.decode(json.loads(data))

    def reader(self, name: str) -> FileReader:
        """An open shard file, held to what the manifest says of it."""
        if name not in self._open:
            if len(self._open) >= MOST_OPEN:
                del self._open[next(iter(self._open))]
            self._open[name] = FileReader(self.path / name, self.remedy, self.manifest)
        return self._open[name]
