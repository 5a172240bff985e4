"""One file of a checkpoint: tensors in the safetensors format, written as they come and read by the byte range.

    8 bytes     length of the header
    header      JSON: {name: {"dtype": "F32", "shape": [n], "data_offsets": [start, stop]}, ...}
    data        the tensors end to end, wide dtypes first, so that each lies at a multiple of its own width

One tensor is ours: `checksums` has a CRC-32 for each block of 64 KiB of each other tensor, in the file's order. So
whoever reads a range can tell whether it is what was written, and reads hardly more than that range: whole blocks, and
4 bytes for each. Anything that reads safetensors reads these files; nothing in them is ever executed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy
import torch

from zerolab.checkpoint.checksum import crc32
from zerolab.errors import CheckpointError
from zerolab.flat.layout import round_up
from zerolab.ranks.folders import reason

BLOCK = 1 << 16
CHECKSUMS = "checksums"
MOST_HEADER = 100_000_000
"""Bytes of a header, as the safetensors library has it."""
_AT_ONCE = 1 << 23
DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
    torch.complex64: "C64",
}
"""The format's names of torch's dtypes."""
NAMED = {name: dtype for dtype, name in DTYPES.items()} | {
    "U32": torch.uint32,
    "U16": torch.uint16,
    "U64": torch.uint64,
}


Shapes = Mapping[str, tuple[torch.dtype, Sequence[int]]]
"""The tensors of a file: dtype and shape by name."""


@dataclass(frozen=True)
class Entry:
    """A tensor of a file: `start` is where its bytes begin in the file, `first_block` the number of its first
    checksum."""

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


def lay_out_file(shapes: Shapes, about: Mapping[str, str]) -> tuple[bytes, dict[str, Entry]]:
    """The header of a file of such tensors, and where each will lie. `about` is text that goes into the header."""
    for name, (dtype, _) in shapes.items():
        if dtype not in DTYPES:
            raise CheckpointError(f"{name} has the dtype {dtype}, for which safetensors has no name; keep it elsewhere")
    in_order = sorted(shapes.items(), key=lambda item: -item[1][0].itemsize)
    blocks = sum(Entry(dtype, tuple(shape)).blocks for _, (dtype, shape) in in_order)
    # Unsigned 32-bit numbers, behind all that is as wide or wider.
    place = sum(dtype.itemsize >= 4 for _, (dtype, _) in in_order)
    in_order.insert(place, (CHECKSUMS, (torch.uint32, [blocks])))
    header: dict[str, Any] = {"__metadata__": dict(about)} if about else {}
    at = 0
    for name, (dtype, shape) in in_order:
        nbytes = prod(shape) * dtype.itemsize
        named = DTYPES.get(dtype, "U32")
        header[name] = {"dtype": named, "shape": list(shape), "data_offsets": [at, at + nbytes]}
        at += nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text = text.ljust(round_up(len(text) + 8, 64) - 8)
    return len(text).to_bytes(8, "little") + text, entries_of(header, len(text) + 8)


def entries_of(header: Mapping[str, Any], start: int) -> dict[str, Entry]:
    """What a header says, for data that begin at byte `start` of the file."""
    entries, block = {}, 0
    for name, said in header.items():
        if name == "__metadata__":
            continue
        entry = Entry(NAMED[said["dtype"]], tuple(said["shape"]), start + said["data_offsets"][0], block)
        entries[name] = entry
        if name != CHECKSUMS:
            block += entry.blocks
    return entries


class FileWriter:
    """A new file, whose tensors are written in any order, a part at a time. It is whole and on the disk once `finish`
    has returned."""

    def __init__(self, path: Path, shapes: Shapes, about: Mapping[str, str]) -> None:
        self.path = path
        self._header, self._entries = lay_out_file(shapes, about)
        # Bytes of each tensor that are written.
        self._done = dict.fromkeys(self._entries.keys() - {CHECKSUMS}, 0)
        self._sums = numpy.zeros(self._entries[CHECKSUMS].shape, "<u4")
        self.nbytes = max(entry.start + entry.nbytes for entry in self._entries.values())
        self.descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            self._write(self._header, 0)
        except BaseException:
            self.close()
            raise

    @property
    def header_crc32(self) -> int:
        return crc32(self._header)

    def append(self, name: str, tensor: torch.Tensor) -> None:
        """Write the next elements of a tensor, in its dtype."""
        entry, data, at = self._entries[name], bytes_of(tensor), self._done[name]
        assert tensor.dtype == entry.dtype and at + len(data) <= entry.nbytes, name
        self._done[name] += len(data)
        while data:
            # Up to the end of a block, from where whole blocks follow.
            part = data[: _AT_ONCE - at % BLOCK]
            self._write(part, entry.start + at)
            for start in range(-(at % BLOCK), len(part), BLOCK):
                number = entry.first_block + (at + start) // BLOCK
                self._sums[number] = crc32(part[max(start, 0) : start + BLOCK], int(self._sums[number]))
            data, at = data[len(part) :], at + len(part)

    def finish(self) -> None:
        """Return once all is on the disk."""
        short = [name for name, done in self._done.items() if done != self._entries[name].nbytes]
        assert not short, short
        self._write(self._sums.tobytes(), self._entries[CHECKSUMS].start)
        os.fsync(self.descriptor)
        self.close()

    def close(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def _write(self, data: bytes | memoryview, at: int) -> None:
        view = memoryview(data)
        while view:
            done = os.pwrite(self.descriptor, view, at)
            view, at = view[done:], at + done


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """The bytes of a tensor, on the host."""
    flat = tensor.detach().contiguous().view(-1)
    return flat.view(torch.uint8).cpu().numpy().data


class FileReader:
    """An open file of a checkpoint. `nbytes_read` counts what was read of its tensors; `remedy` is what an error says
    at its end that one can do."""

    def __init__(self, path: Path, remedy: str = "take another checkpoint") -> None:
        self.path, self.remedy = path, remedy
        self.nbytes_read = 0
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise CheckpointError(f"{path} is missing; {remedy}") from None
        except OSError as error:
            raise CheckpointError(f"{path} cannot be read ({reason(error)}); see to its rights and its disk") from None
        try:
            self.size = os.fstat(self._descriptor).st_size
            self.header = self._read_header()
            self._check_entries()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> FileReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    @property
    def about(self) -> dict[str, str]:
        """The text that stands in the header."""
        return dict(self._said.get("__metadata__", {}))

    def read(self, name: str, start: int = 0, stop: int | None = None) -> torch.Tensor:
        """Elements `[start, stop)` of a tensor, flat, on the host. Raises a CheckpointError if they are not those that
        were written."""
        entry = self.entries[name]
        stop = prod(entry.shape) if stop is None else stop
        size = entry.dtype.itemsize
        raw = torch.empty((stop - start) * size, dtype=torch.uint8)
        self.read_bytes(name, start * size, stop * size, raw.numpy().data)
        return raw.view(entry.dtype)

    def read_bytes(self, name: str, start: int, stop: int, out: memoryview) -> None:
        """Bytes `[start, stop)` of a tensor, into `out`."""
        for at, part in self._blocks(name, start, stop):
            first, last = max(at, start), min(at + len(part), stop)
            out[first - start : last - start] = part[first - at : last - at]

    def check(self, name: str, start: int = 0, stop: int | None = None) -> None:
        """Read bytes `[start, stop)` of a tensor, and nothing else: raises a CheckpointError if they are damaged."""
        for _ in self._blocks(name, start, self.entries[name].nbytes if stop is None else stop):
            pass

    def _blocks(self, name: str, start: int, stop: int) -> Iterator[tuple[int, memoryview]]:
        """The blocks around `[start, stop)`, some at a time, with the byte of the tensor where they begin."""
        entry = self.entries[name]
        if start >= stop:
            return
        first, last = start // BLOCK, -(-stop // BLOCK)
        sums = self._sums(entry.first_block + first, last - first)
        for begin in range(first, last, _AT_ONCE // BLOCK):
            at = begin * BLOCK
            part = self._read(entry.start + at, min(entry.nbytes, last * BLOCK, at + _AT_ONCE) - at)
            self.nbytes_read += len(part)
            if sums is not None:
                for number in range(begin, begin - (-len(part) // BLOCK)):
                    block = part[(number - begin) * BLOCK : (number - begin + 1) * BLOCK]
                    if crc32(block) != sums[number - first]:
                        raise CheckpointError(f"{self.path} is damaged: {name} is not what was written; {self.remedy}")
            yield at, part

    def _sums(self, first: int, count: int) -> Any:
        """Checksums from one block on; None of a file that has none, as others write them."""
        entry = self.entries.get(CHECKSUMS)
        if entry is None:
            return None
        return numpy.frombuffer(self._read(entry.start + 4 * first, 4 * count), "<u4")

    def _read(self, at: int, count: int) -> memoryview:
        out = memoryview(bytearray(count))
        done = 0
        try:
            while done < count and (got := os.preadv(self._descriptor, [out[done:]], at + done)):
                done += got
        except OSError as error:
            raise CheckpointError(f"{self.path} cannot be read ({reason(error)}); {self.remedy}") from None
        if done < count:
            raise CheckpointError(f"{self.path} is cut off at byte {at + done:,}; {self.remedy}")
        return out

    def _read_header(self) -> bytes:
        length = int.from_bytes(self._read(0, 8), "little") if self.size >= 8 else -1
        if not 0 < length <= min(MOST_HEADER, self.size - 8):
            raise CheckpointError(f"{self.path} is cut off or no safetensors file; {self.remedy}")
        return bytes(self._read(0, 8 + length))

    def _check_entries(self) -> None:
        try:
            self._said = json.loads(self.header[8:])
            self.entries = entries_of(self._said, len(self.header))
            ends = [entry.start + entry.nbytes for entry in self.entries.values()]
            sane = all(
                said["data_offsets"][1] - said["data_offsets"][0] == self.entries[name].nbytes >= 0
                and said["data_offsets"][0] >= 0
                for name, said in self._said.items()
                if name != "__metadata__"
            )
            sums = self.entries.get(CHECKSUMS)
            blocks = sum(entry.blocks for name, entry in self.entries.items() if name != CHECKSUMS)
            sane = sane and (sums is None or sums.shape == (blocks,))
        except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError):
            raise CheckpointError(f"{self.path} has a damaged header; {self.remedy}") from None
        if not sane:
            raise CheckpointError(f"{self.path} has a damaged header; {self.remedy}")
        if max(ends, default=0) > self.size:
            raise CheckpointError(f"{self.path} is cut off: it has {self.size:,} of {max(ends):,} bytes; {self.remedy}")
