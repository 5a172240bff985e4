"""Whether a checkpoint is what was written: every byte of every file, and every element of every parameter."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from zerolab.checkpoint.checksum import crc32
from zerolab.checkpoint.folder import remedy_for
from zerolab.checkpoint.manifest import Manifest, SavedFile, model_file, optimizer_file, read_manifest, tensor_name
from zerolab.checkpoint.reader import CheckpointReader
from zerolab.checkpoint.shards import blocks_of
from zerolab.checkpoint.tensors import CHECKSUMS
from zerolab.errors import CheckpointError

Lengths = dict[str, dict[str, int]]
"""{file: {tensor: elements}}."""


def verify(path: Path, advance: Callable[[int], None] = lambda nbytes: None) -> dict[str, str]:
    """Read all of the checkpoint in `path`; returns what is wrong, by file: nothing if all is as it was written.
    `advance` is called with how many more bytes were read; in all they are at most the manifest's `nbytes`.

    Raises a CheckpointError for a manifest that is missing or damaged: it says what all the rest should be.
    """
    remedy = remedy_for(path)
    manifest = read_manifest(path, remedy)
    wrong: dict[str, str] = {}
    for name, gap in _gaps(manifest):
        wrong.setdefault("the manifest", f"{path} is damaged: {gap} of {name} is in no file, or in two")
    lengths = expected(manifest)
    with CheckpointReader(path, manifest, remedy) as reader:
        for file in [*manifest.files, *sorted(lengths.keys() - manifest.files.keys())]:
            try:
                if file.endswith(".json"):
                    _check_text(path / file, manifest.files[file])
                    advance(manifest.files[file].nbytes)
                else:
                    _check_tensors(reader, file, lengths.get(file, {}), advance)
            except CheckpointError as error:
                wrong[file] = str(error).removesuffix(f"; {remedy}")
    return wrong


def expected(manifest: Manifest) -> Lengths:
    """The tensors that a checkpoint must have beside random states, with their numbers of elements (-1: any)."""
    found: Lengths = {model_file(writer): {} for writer in range(manifest.writers)}
    found |= {optimizer_file(writer): {} for writer in range(manifest.ranks)}
    states = {name: bool(state["scaled"]) for name, state in manifest.states.items()}
    if manifest.main:
        states["main"] = False
    for name, saved in manifest.parameters.items():
        for stretch in saved.stretches:
            place, numel = (name, stretch.start, stretch.stop), stretch.stop - stretch.start
            found.setdefault(model_file(stretch.writer), {})[tensor_name("model", *place)] = numel
            for state, scaled in states.items() if saved.trains else ():
                of_writer = found.setdefault(optimizer_file(stretch.writer), {})
                of_writer[tensor_name(state, *place)] = numel
                if scaled:
                    first, last = blocks_of(stretch.start, stretch.stop)
                    of_writer[tensor_name(f"{state}.scale", *place)] = last - first
    for name, writers in manifest.buffers.items():
        for writer in writers:
            found.setdefault(model_file(writer), {})[f"buffer/{name}"] = -1
    return found


def _gaps(manifest: Manifest) -> Iterator[tuple[str, str]]:
    """Parameters whose stretches do not lie end to end, with the elements where they do not."""
    for name, saved in manifest.parameters.items():
        at = 0
        for stretch in sorted(saved.stretches, key=lambda stretch: stretch.start):
            if stretch.start != at:
                yield name, f"[{min(at, stretch.start)}:{max(at, stretch.start)}]"
            at = max(at, stretch.stop)
        if at != saved.numel:
            yield name, f"[{min(at, saved.numel)}:{max(at, saved.numel)}]"


def _check_text(path: Path, said: SavedFile) -> None:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise CheckpointError(f"{path} is missing") from None
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read ({error.strerror})") from None
    if len(data) != said.nbytes or crc32(data) != said.crc32:
        raise CheckpointError(f"{path} is damaged: it has {len(data):,} bytes that are not the {said.nbytes:,} written")


def _check_tensors(
    reader: CheckpointReader, file: str, lengths: dict[str, int], advance: Callable[[int], None]
) -> None:
    opened = reader.reader(file)
    for name, numel in lengths.items():
        reader.check_name(file, name)
        shape = opened.entries[name].shape
        if numel >= 0 and shape != (numel,):
            raise CheckpointError(f"{opened.path} is damaged: {name} has the shape {shape} and should have {(numel,)}")
    if CHECKSUMS not in opened.entries:
        raise CheckpointError(f"{opened.path} has no checksums, so nobody can tell whether it is whole")
    for name, entry in opened.entries.items():
        if name != CHECKSUMS:
            opened.check(name)
            advance(entry.nbytes)
