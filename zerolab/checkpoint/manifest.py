"""What a checkpoint says of itself: `optimizer_manifest.json`, from which every other file follows.

A parameter's states are keyed by its name and by ranges of its elements, not by who held them: a reader needs no
knowledge of ranks, buckets, padding or stages. Tensors in the shard files are called

    STATE/PARAMETER[START:STOP]         exp_avg/blocks.0.norm.weight[0:512]

with STATE `model` (as forward uses them), `main` (master weights, where they are kept apart), or the optimizer's own
name. A state that is stored in scaled blocks (fp8 and fp16 moments) has its scales beside it, as `STATE.scale/...`.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import TypeAdapter

from zerolab.errors import CheckpointError
from zerolab.ranks.folders import reason

try:
    # The quicker one; the values are zlib's.
    from isal.isal_zlib import crc32
except ImportError:  # pragma: no cover (a system for which there is no such package)
    from zlib import crc32

FORMAT, VERSION = "zerolab checkpoint", 2
MANIFEST = "optimizer_manifest.json"
NONPARAM = "optimizer_nonparam.json"
SCHEDULER = "scheduler.json"
RNG = "rng/"
"""How the names of the states of random generators begin."""
MOST_HEADER = 100_000_000


def model_file(writer: int) -> str:
    return f"model_shard_rank{writer}.safetensors"


def optimizer_file(writer: int) -> str:
    return f"optimizer_shard_rank{writer}.safetensors"


def tensor_name(state: str, parameter: str, start: int, stop: int) -> str:
    """What the elements `[start, stop)` of a parameter's state are called in a file."""
    return f"{state}/{parameter}[{start}:{stop}]"


class ShardRange(NamedTuple):
    """The elements `[start, stop)` of a parameter, and the number of the rank whose files have their states."""

    start: int
    stop: int
    writer: int


@dataclass(frozen=True)
class SavedParameter:
    """A parameter, and who wrote what of it: stretches end to end, from its first element to its last."""

    shape: tuple[int, ...]
    dtype: str
    trains: bool
    unit: str
    stretches: tuple[ShardRange, ...]

    @property
    def numel(self) -> int:
        return prod(self.shape)


@dataclass(frozen=True)
class SavedFile:
    """A file beside the manifest: its bytes, and the CRC-32 of its header, or of all of it if it is JSON."""

    nbytes: int
    crc32: int


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """A checkpoint; by default that of one process.

    save        a word drawn for each save, which its files have in common
    replicas    how many ranks held each shard
    states      the optimizer's long states: {name: {"dtype", "scaled", "root"}}; empty before the first step
    main        whether main parameters are kept apart
    parameters  by name, in the order of the units
    buffers     persistent buffers: {name: [the writer whose value each writer has, ...]}
    tied        other names of parameters and buffers: {name: first name}
    data        what the caller wants to find again: the position in its data, its settings
    files       all files but this one
    """

    save: str
    step: int
    ranks: int = 1
    stage: int = 0
    replicas: int = 1
    precision: Mapping[str, Any] | None = None
    offload: Mapping[str, str] = field(default_factory=lambda: {"optimizer": "device", "parameters": "device"})
    optimizer: str
    states: Mapping[str, Mapping[str, Any]]
    main: bool = False
    parameters: Mapping[str, SavedParameter]
    buffers: Mapping[str, list[int]]
    tied: Mapping[str, str]
    data: Any
    files: Mapping[str, SavedFile] = field(default_factory=dict)
    written_by: Mapping[str, str] = field(default_factory=dict)

    @property
    def writers(self) -> int:
        return self.ranks * self.replicas

    @property
    def nbytes(self) -> int:
        """Of all files but the manifest."""
        return sum(file.nbytes for file in self.files.values())

    def to_json(self) -> str:
        # The checksum on the first line covers all other lines.
        rest = json.dumps({"format": FORMAT, "version": VERSION, **asdict(self)}, indent=1).removeprefix("{\n")
        return f'{{"crc32": {crc32(rest.encode())},\n{rest}\n'


@contextmanager
def reading(path: Path, remedy: str) -> Iterator[None]:
    """What the system refuses within is a CheckpointError that names the file and ends with `remedy`."""
    try:
        yield
    except OSError as error:
        why = "is missing" if isinstance(error, FileNotFoundError) else f"cannot be read ({reason(error)})"
        raise CheckpointError(f"{path} {why}; {remedy}") from None


def read_manifest(folder: Path, remedy: str = "take another checkpoint") -> Manifest:
    """The manifest of a checkpoint's folder."""
    path = folder / MANIFEST
    with reading(path, remedy):
        first, _, rest = path.read_bytes().partition(b"\n")
    checksum = re.fullmatch(rb'\{"crc32": (\d{1,10})[,}]', first)
    if checksum is None or int(checksum[1]) != crc32(rest.rstrip(b"\n")):
        raise CheckpointError(f"{path} is damaged, or was not written by zerolab; {remedy}")
    # Version 1, refused below, had its checksum in a document of its own.
    said = json.loads(b"{" + rest.removeprefix(b"{"))
    if (said.get("format"), said.get("version")) != (FORMAT, VERSION):
        raise CheckpointError(
            f"{path} has version {said.get('version')} of the format and this zerolab reads version {VERSION}; read it "
            f"with the zerolab that wrote it ({said.get('written_by', {}).get('zerolab', 'unknown')})"
        )
    return TypeAdapter(Manifest).validate_python(said)


def read_header(file: int, path: Path, remedy: str, manifest: Manifest | None) -> bytes:
    """The header of an open file of tensors, held to what a manifest says of it, and with it the file's length."""
    with reading(path, remedy):
        size = os.fstat(file).st_size
        length = int.from_bytes(os.pread(file, 8, 0), "little")
        header = os.pread(file, min(8 + length, size, MOST_HEADER), 0)
    if manifest is not None and crc32(header) != manifest.files[path.name].crc32:
        other = b'"save":' in header and f'"save":"{manifest.save}"'.encode() not in header
        what = "is of another save" if other else "has a damaged header"
        raise CheckpointError(f"{path} {what}; {remedy}")
    tensors = [said for name, said in json.loads(header[8:]).items() if name != "__metadata__"]
    whole = len(header) + max((said["data_offsets"][1] for said in tensors), default=0)
    if size != whole:
        what = "is cut off" if size < whole else "is damaged"
        raise CheckpointError(f"{path} {what}: it has {size:,} bytes where {whole:,} were written; {remedy}")
    return header
