"""A checkpoint's values by state, parameter and range of elements, whoever wrote them."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import torch

from zerolab.checkpoint import plain
from zerolab.checkpoint.manifest import Manifest, ShardRange, crc32, model_file, optimizer_file, reading, tensor_name
from zerolab.checkpoint.planner import Part, plan
from zerolab.checkpoint.shards import blocks_of
from zerolab.checkpoint.tensors import AT_ONCE, FileReader
from zerolab.errors import CheckpointError
from zerolab.precision.codec import BLOCK

Tensor = torch.Tensor
MOST_OPEN = 16


class CheckpointReader:
    """The files of a checkpoint, opened when they are needed and closed with this. Raises a CheckpointError, which ends
    with `remedy`, for whatever is not as it was written.

    `nbytes_read` counts what `check` has read, in whole blocks.
    """

    def __init__(self, path: Path, manifest: Manifest, remedy: str = "take another checkpoint") -> None:
        self.path, self.manifest, self.remedy, self.nbytes_read = path, manifest, remedy, 0
        self._open: dict[str, FileReader] = {}
        self.plan = cache(lambda name, start, stop: plan(manifest.parameters[name].stretches, start, stop))

    def read_into(self, out: Tensor, state: str, parameter: str, start: int) -> None:
        """Write the elements from `start` on to `out` (1-D), decoded, in its dtype, on its device; some at a time."""
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
                before = file.nbytes_read
                file.check(name, first, last)
                self.nbytes_read += file.nbytes_read - before
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
