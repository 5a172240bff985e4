"""Whole parameters out of shards: safetensors that anybody loads, written tensor by tensor.

consolidate("runs/a", "out", dtype=torch.bfloat16)                     a checkpoint, without any rank
consolidate("runs/a", "out", config=LlamaConfig(...))                  as transformers' from_pretrained reads it
export(engine, "out", dtype=torch.float16)                             the model that trains, unit by unit
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import torch

from zerolab.apps.interop.huggingface import names
from zerolab.apps.interop.huggingface.folder import save_folder, save_tensors
from zerolab.checkpoint.agreement import agree, attempt
from zerolab.checkpoint.folder import remedy_for, resolve
from zerolab.checkpoint.manifest import model_file, read_manifest
from zerolab.checkpoint.reader import CheckpointReader
from zerolab.errors import InputError
from zerolab.models import Config
from zerolab.zero import ZeroEngine
from zerolab.zero.units import Unit

Tensor = torch.Tensor
MOST_SHARD = 5 * 10**9
"""Bytes of a file, as transformers cuts them."""


def consolidate(
    checkpoint: Path | str,
    folder: Path | str,
    *,
    dtype: torch.dtype | None = None,
    config: Config | None = None,
    max_shard_bytes: int = MOST_SHARD,
    progress: Callable[[str], None] = lambda name: None,
) -> None:
    """Write the parameters of a checkpoint whole, and its buffers as rank 0 had them: `model.safetensors`, or files of
    at most `max_shard_bytes` with their index.

    checkpoint  its folder, or one whose newest is meant
    dtype       of floating-point tensors; None: as they were saved. fp32 takes the main parameters where they were kept
                apart: nothing is lost to 16 bits
    config      of our LLaMA or GPT-2: writes config.json and the names of transformers
    progress    told of each tensor before it is read

    Takes the memory of one file. Raises a CheckpointError for what is missing or damaged, and an InputError for a
    folder that has something in it.
    """
    path = resolve(Path(checkpoint).expanduser())
    remedy = remedy_for(path)
    manifest = read_manifest(path, remedy)
    with CheckpointReader(path, manifest, remedy) as reader:

        def whole(name: str) -> Tensor:
            progress(name)
            saved = manifest.parameters[manifest.tied.get(name, name)]
            stored: torch.dtype = getattr(torch, saved.dtype)
            wanted = stored if dtype is None or not stored.is_floating_point else dtype
            precise = manifest.main and saved.trains and wanted != stored
            out = torch.empty(saved.numel, dtype=wanted)
            reader.read_into(out, "main" if precise else "model", manifest.tied.get(name, name), 0)
            return out.view(saved.shape)

        def buffers() -> Iterator[tuple[str, Tensor]]:
            for name, writers in manifest.buffers.items():
                file = model_file(writers[0])
                shape = reader.reader(file).entries[f"buffer/{name}"].shape
                yield name, reader.tensor(file, f"buffer/{name}").view(shape)

        _check(dtype, config, manifest.parameters)
        _write(folder, config, dtype, max_shard_bytes, list(manifest.parameters), whole, buffers)


@torch.no_grad()
def export(
    engine: ZeroEngine,
    folder: Path | str,
    *,
    dtype: torch.dtype | None = None,
    config: Config | None = None,
    max_shard_bytes: int = MOST_SHARD,
) -> None:
    """Write the model that trains, as `consolidate` does it from a checkpoint: rank 0 writes, and at stage 3 one unit
    at a time is gathered. Parameters have the precision that forward uses.

    A collective: every rank calls it, between steps. What goes wrong is raised on every rank.
    """
    unit_of = {slot.name: unit for unit in engine.units for bucket in unit.buckets for slot in bucket.layout.slots}

    def check() -> None:
        engine.check_between_steps("export")
        _check(dtype, config, unit_of)

    _, error = attempt(check)
    agree(engine, error)
    found: dict[str, Tensor] = {}
    here: list[Unit] = []

    def bring(name: str) -> None:
        """Names come unit after unit, on all ranks alike; rank 0 keeps the unit's parameters."""
        if here != [unit_of[name]]:
            here[:] = [unit_of[name]]
            found.clear()
            found.update(engine.parameters_of(unit_of[name], to=0))

    def whole(name: str) -> Tensor:
        bring(name)
        return found[name]

    def buffers() -> Iterator[tuple[str, Tensor]]:
        kept = engine.model.state_dict(keep_vars=True)
        for name, buffer in engine.model.named_buffers():
            if name in kept:
                yield name, buffer

    in_order = list(unit_of)
    turns = [row.ours for row in names.rows(config) if row.ours is not None] if config else in_order
    asked: list[str] = []

    def counted(name: str) -> Tensor:
        asked.append(name)
        return whole(name)

    error = None
    if engine.comm.rank == 0:
        _, error = attempt(lambda: _write(folder, config, dtype, max_shard_bytes, in_order, counted, buffers))
    # The others ask in the same order, and so does a rank 0 that failed on the way.
    for name in turns[len(asked) :]:
        bring(name)
    agree(engine, error)


def _check(dtype: torch.dtype | None, config: Config | None, there: Iterable[str]) -> None:
    if dtype is not None and not dtype.is_floating_point:
        raise InputError(f"dtype is {dtype}, but weights are floats; name one such as torch.bfloat16")
    if config is None:
        return
    theirs = {row.ours for row in names.rows(config) if row.ours is not None}
    strange = sorted(theirs ^ set(there))
    if strange:
        such = f"a model of this {type(config).__name__}"
        said = (
            f"{such} has {strange[0]}, which was not trained" if strange[0] in theirs else f"{such} has no {strange[0]}"
        )
        raise InputError(f"{said}; give the config of the model that was trained, or none")


def _write(
    folder: Path | str,
    config: Config | None,
    dtype: torch.dtype | None,
    max_shard_bytes: int,
    in_order: list[str],
    whole: Callable[[str], Tensor],
    buffers: Callable[[], Iterator[tuple[str, Tensor]]],
) -> None:
    if config is None:

        def tensors() -> Iterator[tuple[str, Tensor]]:
            for name in in_order:
                tensor = whole(name)
                yield name, tensor.to(dtype) if dtype is not None and tensor.is_floating_point() else tensor
            yield from buffers()

        save_tensors(folder, tensors(), max_shard_bytes=max_shard_bytes)
        return
    save_folder(
        folder, config, names.export(config, whole), dtype=dtype or torch.float32, max_shard_bytes=max_shard_bytes
    )
