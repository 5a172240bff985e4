"""One file of a checkpoint: tensors in the safetensors format, written as they come and read by the byte range.

    8 bytes     length of the header
    header      JSON: {name: {"dtype": "F32", "shape": [n], "data_offsets": [start, stop]}, ...}
    data        the tensors end to end, wide dtypes first, so that each lies at a multiple of its own width

One tensor is ours: `checksums` has a CRC-32 for each block of 64 KiB of each other tensor, in the file's order, so
that a range can be checked by reading it in whole blocks.
Anything that reads safetensors reads these files; nothing in them is ever executed.
"""

from __future__ import annotations

import json
import os
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy
import torch

from zerolab.checkpoint.manifest import Manifest, crc32, read_header, reading
from zerolab.errors import CheckpointError
from zerolab.flat.layout import round_up
from zerolab.system import has

BLOCK = 1 << 16
CHECKSUMS = "checksums"
AT_ONCE = 1 << 22
"""Elements that are read, and bytes that are written at a time."""
NAMED = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "BOOL": torch.bool,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2, "C64": torch.complex64, "U32": torch.uint32,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8,
}  # fmt: skip
DTYPES = {dtype: name for name, dtype in NAMED.items()}
"""The format's names of torch's dtypes."""
Shapes = Mapping[str, tuple[torch.dtype, Sequence[int]]]
"""The tensors of a file: dtype and shape by name."""


@dataclass(frozen=True)
class Entry:
    """A tensor of a file: where its bytes begin, and the number of its first checksum."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int = 0
    first_block: int = 0

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize

    @property
    def blocks(self) -> int:
        return -(-self.nbytes // BLOCK)


def lay_out_file(shapes: Shapes, about: Mapping[str, str]) -> bytes:
    """The header of a file of such tensors. `about` is text that goes into it."""
    in_order = sorted(shapes.items(), key=lambda item: -item[1][0].itemsize)
    blocks = sum(Entry(dtype, tuple(shape)).blocks for dtype, shape in shapes.values())
    # Unsigned 32-bit numbers, behind all that is as wide or wider.
    place = sum(dtype.itemsize >= 4 for dtype, _ in shapes.values())
    in_order.insert(place, (CHECKSUMS, (torch.uint32, [blocks])))
    header: dict[str, Any] = {"__metadata__": dict(about)}
    at = 0
    for name, (dtype, shape) in in_order:
        end = at + prod(shape) * dtype.itemsize
        header[name] = {"dtype": DTYPES[dtype], "shape": list(shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text = text.ljust(round_up(len(text) + 8, 64) - 8)
    return len(text).to_bytes(8, "little") + text


def entries_of(header: bytes) -> dict[str, Entry]:
    """The tensors of a file with this header."""
    entries, block = {}, 0
    for name, said in json.loads(header[8:]).items():
        if name != "__metadata__":
            start = len(header) + said["data_offsets"][0]
            entries[name] = Entry(NAMED[said["dtype"]], tuple(said["shape"]), start, block)
            block += entries[name].blocks if name != CHECKSUMS else 0
    return entries


class FileWriter:
    """A new file, whose tensors are written in any order, a part at a time."""

    def __init__(self, path: Path, shapes: Shapes, about: Mapping[str, str]) -> None:
        self.path, self._header = path, lay_out_file(shapes, about)
        self.header_crc32, self._entries = crc32(self._header), entries_of(self._header)
        # Bytes of each tensor that are written.
        self._done = dict.fromkeys(shapes, 0)
        self._kept: list[tuple[str, torch.Tensor]] = []
        self._sums = [0] * prod(self._entries[CHECKSUMS].shape)
        self.nbytes = max(entry.start + entry.nbytes for entry in self._entries.values())
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        self.close = weakref.finalize(self, os.close, self._descriptor)

    def append(self, name: str, tensor: torch.Tensor) -> None:
        """Write the next elements of a tensor, in its dtype."""
        entry, data, at = self._entries[name], bytes_of(tensor), self._done[name]
        assert tensor.dtype == entry.dtype and at + len(data) <= entry.nbytes, name
        self._write(data, entry.start + at)
        for start in range(-(at % BLOCK), len(data), BLOCK):
            number = entry.first_block + (at + start) // BLOCK
            self._sums[number] = crc32(data[max(start, 0) : start + BLOCK], self._sums[number])
        self._done[name] += len(data)

    def keep(self, name: str, tensor: torch.Tensor) -> None:
        """Copy the next elements of a tensor, for `finish` to write."""
        self._kept.append((name, tensor.detach().to("cpu", copy=True)))

    def finish(self) -> None:
        """Write what was kept, and return once all is on the disk."""
        while self._kept:
            self.append(*self._kept.pop(0))
        short = [name for name, done in self._done.items() if done != self._entries[name].nbytes]
        assert not short, short
        self._write(numpy.array(self._sums, "<u4").tobytes(), self._entries[CHECKSUMS].start)
        self._write(self._header, 0)
        os.fsync(self._descriptor)
        self.close()

    def _write(self, data: bytes | memoryview, at: int) -> None:
        view = memoryview(data)
        while view:
            done = os.pwrite(self._descriptor, view[:AT_ONCE], at)
            if done >= BLOCK and has("advice"):
                # It goes to the disk now, not when it is synced.
                os.posix_fadvise(self._descriptor, at, done, os.POSIX_FADV_DONTNEED)
            view, at = view[done:], at + done


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """The bytes of a tensor, on the host."""
    flat = tensor.detach().contiguous().view(-1)
    return flat.view(torch.uint8).cpu().numpy().data


class FileReader:
    """A file of a checkpoint, held to what a manifest says of it; open for as long as this lives.

    (safetensors' own reader maps the file, which the system refuses where memory is smaller.)
    """

    def __init__(self, path: Path, remedy: str = "take another checkpoint", manifest: Manifest | None = None) -> None:
        self.path, self.remedy = path, remedy
        with reading(path, remedy):
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            weakref.finalize(self, os.close, self._descriptor)
        self.entries = entries_of(read_header(self._descriptor, path, remedy, manifest))
        # A file of others has none.
        sums = self.entries.get(CHECKSUMS, Entry(torch.uint32, (0,)))
        self._sums = self._read(sums.start, sums.nbytes).numpy().view("<u4")

    def read(self, name: str, start: int = 0, stop: int | None = None) -> torch.Tensor:
        """Elements `[start, stop)` of a tensor, flat, on the host, whose blocks are held to their checksums."""
        entry = self.entries[name]
        size, stop = entry.dtype.itemsize, prod(entry.shape) if stop is None else stop
        first, last = start * size // BLOCK, -(-stop * size // BLOCK)
        begin = first * BLOCK
        raw = self._read(entry.start + begin, max(min(last * BLOCK, entry.nbytes) - begin, 0))
        sums = self._sums[entry.first_block + first : entry.first_block + last]
        for part, checksum in zip(raw.split(BLOCK), sums, strict=False):
            if crc32(part.numpy().data) != checksum:
                raise self._error(f"is damaged: {name} is not what was written")
        return raw[start * size - begin : stop * size - begin].view(entry.dtype)

    def check(self, name: str, start: int = 0, stop: int | None = None) -> None:
        """Read elements, some at a time, and keep nothing."""
        stop = prod(self.entries[name].shape) if stop is None else stop
        for at in range(start - start % BLOCK, stop, AT_ONCE):
            self.read(name, max(start, at), min(stop, at + AT_ONCE))

    def _read(self, at: int, count: int) -> torch.Tensor:
        out = torch.empty(count, dtype=torch.uint8)
        view, done = out.numpy().data, 0
        with reading(self.path, self.remedy):
            while done < count and (got := os.preadv(self._descriptor, [view[done:]], at + done)):
                done += got
        if done < count:
            raise self._error(f"is cut off at byte {at + done:,}")
        return out

    def _error(self, what: str) -> CheckpointError:
        return CheckpointError(f"{self.path} {what}; {self.remedy}")
