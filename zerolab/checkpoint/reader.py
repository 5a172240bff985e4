"""A checkpoint's values by state, parameter and range of elements, whoever wrote them."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import torch

from zerolab.checkpoint.checksum import crc32
from zerolab.checkpoint.manifest import Manifest, Stretch, model_file, optimizer_file, tensor_name
from zerolab.checkpoint.planner import Part, plan
from zerolab.checkpoint.shards import blocks_of
from zerolab.checkpoint.tensors import FileReader
from zerolab.errors import CheckpointError
from zerolab.precision.codec import BLOCK
from zerolab.ranks.folders import reason

Tensor = torch.Tensor
MOST_OPEN = 16


class CheckpointReader:
    """The files of a checkpoint, opened when they are needed. Raises a CheckpointError, which ends with `remedy`, for
    whatever is not as it was written."""

    def __init__(self, path: Path, manifest: Manifest, remedy: str = "take another checkpoint") -> None:
        self.path, self.manifest, self.remedy = path, manifest, remedy
        self._open: dict[str, FileReader] = {}
        self._closed_read = 0
        self.plan = cache(self._plan)

    def __enter__(self) -> CheckpointReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for name in list(self._open):
            self._close(name)

    @property
    def nbytes_read(self) -> int:
        """Of tensors, in whole blocks."""
        return self._closed_read + sum(reader.nbytes_read for reader in self._open.values())

    # Values.

    def read_into(self, out: Tensor, state: str, parameter: str, start: int) -> None:
        """Write the elements from `start` on to `out` (1-D), decoded, in its dtype and on its device."""
        for part in self.plan(parameter, start, start + out.numel()):
            out[part.start - start : part.stop - start] = self.values(state, parameter, part).to(out.device, out.dtype)

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
        return self._reader_of(state, part.source).read(self._name(state, parameter, part.source), *part.within)

    def scales(self, state: str, parameter: str, part: Part) -> Tensor:
        """The scales of a part's blocks."""
        name = self._name(f"{state}.scale", parameter, part.source)
        return self._reader_of(state, part.source).read(name, *blocks_of(*part.within))

    def check(self, state: str, parameter: str, start: int, stop: int) -> int:
        """Read elements to see that they are as they were written; returns how many bytes they take."""
        needed = 0
        for part in self.plan(parameter, start, stop):
            reader, name = self._reader_of(state, part.source), self._name(state, parameter, part.source)
            size = reader.entries[name].dtype.itemsize
            reader.check(name, *(size * at for at in part.within))
            needed += size * (part.stop - part.start)
            if self.manifest.states.get(state, {}).get("scaled"):
                first, last = blocks_of(*part.within)
                reader.check(self._name(f"{state}.scale", parameter, part.source), 4 * first, 4 * last)
                needed += 4 * (last - first)
        return needed

    def _plan(self, parameter: str, start: int, stop: int) -> list[Part]:
        return plan(self.manifest.parameters[parameter].stretches, start, stop)

    # Whole tensors and texts.

    def tensor(self, file: str, name: str) -> Tensor:
        """A whole tensor of a file, flat."""
        self.check_name(file, name)
        return self.reader(file).read(name)

    def check_tensor(self, file: str, name: str) -> None:
        self.check_name(file, name)
        self.reader(file).check(name)

    def all_of(self, file: str, prefix: str) -> dict[str, Tensor]:
        """All tensors of a file whose names begin so."""
        return {name: self.tensor(file, name) for name in self.reader(file).entries if name.startswith(prefix)}

    def text(self, name: str) -> str:
        """A JSON file of the checkpoint."""
        path = self.path / name
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            raise CheckpointError(f"{path} is missing; {self.remedy}") from None
        except OSError as error:
            raise CheckpointError(f"{path} cannot be read ({reason(error)}); {self.remedy}") from None
        if name not in self.manifest.files or crc32(data) != self.manifest.files[name].crc32:
            raise CheckpointError(f"{path} is damaged, or of another checkpoint; {self.remedy}")
        return data.decode()

    # Files.

    def reader(self, name: str) -> FileReader:
        """An open shard file, held to what the manifest says of it."""
        if name in self._open:
            return self._open[name]
        said = self.manifest.files.get(name)
        if said is None:
            raise CheckpointError(f"the manifest of {self.path} knows no file {name}; {self.remedy}")
        if len(self._open) >= MOST_OPEN:
            self._close(next(iter(self._open)))
        reader = self._open[name] = FileReader(self.path / name, self.remedy)
        if crc32(reader.header) != said.crc32:
            saved = reader.about.get("save")
            why = "is of another save" if saved not in (None, self.manifest.save) else "has a damaged header"
            raise CheckpointError(f"{reader.path} {why}; {self.remedy}")
        if reader.size != said.nbytes:
            raise CheckpointError(
                f"{reader.path} has {reader.size:,} bytes where {said.nbytes:,} were written; {self.remedy}"
            )
        return reader

    def check_name(self, file: str, name: str) -> None:
        if name not in self.reader(file).entries:
            raise CheckpointError(f"{self.path / file} has no tensor {name}; {self.remedy}")

    def _reader_of(self, state: str, stretch: Stretch) -> FileReader:
        return self.reader((model_file if state == "model" else optimizer_file)(stretch.writer))

    def _name(self, state: str, parameter: str, stretch: Stretch) -> str:
        name = tensor_name(state, parameter, stretch.start, stretch.stop)
        is_model = state == "model"
        self.check_name((model_file if is_model else optimizer_file)(stretch.writer), name)
        return name

    def _close(self, name: str) -> None:
        reader = self._open.pop(name)
        self._closed_read += reader.nbytes_read
        reader.close()
