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
from zerolab.checkpoint.agreement import all_gather_or_raise
from zerolab.checkpoint.folder import remedy_for, resolve
from zerolab.checkpoint.manifest import model_file, read_manifest
from zerolab.checkpoint.reader import CheckpointReader
from zerolab.checkpoint.shards import buffers_of
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
    manifest = read_manifest(path, remedy_for(path))
    reader = CheckpointReader(path, manifest, remedy_for(path))

    def whole(name: str) -> Tensor:
        progress(name)
        saved = manifest.parameters[name]
        stored: torch.dtype = getattr(torch, saved.dtype)
        wanted = stored if dtype is None or not stored.is_floating_point else dtype
        out = torch.empty(saved.numel, dtype=wanted)
        reader.read_into(out, "main" if manifest.main and saved.trains and wanted != stored else "model", name, 0)
        return out.view(saved.shape)

    _check(dtype, config, manifest.parameters)
    buffers = (
        (name, reader.tensor(model_file(writers[0]), f"buffer/{name}")) for name, writers in manifest.buffers.items()
    )
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

    all_gather_or_raise(engine, check)
    in_order = list(unit_of)
    turns = iter([row.ours for row in names.rows(config) if row.ours is not None] if config else in_order)
    found: dict[str, Tensor] = {}
    here: list[Unit] = []

    def bring(name: str) -> None:
        """Names come unit after unit, on all ranks alike; rank 0 keeps the unit's parameters."""
        if here != [unit_of[name]]:
            here[:] = [unit_of[name]]
            found.clear()
            found.update(engine.parameters_of(unit_of[name], to=0))

    def whole(name: str) -> Tensor:
        assert next(turns) == name
        bring(name)
        return found[name]

    def work() -> None:
        try:
            if engine.comm.rank == 0:
                buffers = buffers_of(engine.model).items()
                _write(folder, config, dtype, max_shard_bytes, in_order, whole, buffers)
        finally:
            # The others ask in the same order, and so does a rank 0 that failed on the way.
            for name in turns:
                bring(name)

    all_gather_or_raise(engine, work)


def _check(dtype: torch.dtype | None, config: Config | None, there: Iterable[str]) -> None:
    if dtype is not None and not dtype.is_floating_point:
        raise InputError(f"dtype is {dtype}, but weights are floats; name one such as torch.bfloat16")
    theirs = {row.ours for row in names.rows(config) if row.ours is not None} if config else set(there)
    for strange in sorted(theirs ^ set(there)):
        such = f"a model of this {type(config).__name__} has"
        said = f"{such} {strange}, which was not trained" if strange in theirs else f"{such} no {strange}"
        raise InputError(f"{said}; give the config of the model that was trained, or none")


def _write(
    folder: Path | str,
    config: Config | None,
    dtype: torch.dtype | None,
    max_shard_bytes: int,
    in_order: list[str],
    whole: Callable[[str], Tensor],
    buffers: Iterable[tuple[str, Tensor]],
) -> None:
    if config is not None:
        tensors = names.export(config, whole)
        save_folder(folder, config, tensors, dtype=dtype or torch.float32, max_shard_bytes=max_shard_bytes)
        return

    def all_tensors() -> Iterator[tuple[str, Tensor]]:
        for name in in_order:
            tensor = whole(name)
            yield name, tensor.to(dtype) if dtype is not None and tensor.is_floating_point() else tensor
        yield from buffers

    save_tensors(folder, all_tensors(), max_shard_bytes=max_shard_bytes)
