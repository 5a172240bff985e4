"""Whole parameters out of shards: safetensors that anybody loads, or a plain model.

consolidate("runs/a", "out", dtype=torch.bfloat16)      a checkpoint, without any rank
consolidate("runs/a", "out", config=LlamaConfig(...))   as transformers' from_pretrained reads it
export(engine, "out", dtype=torch.float16)              the model that trains, unit by unit
load_learned("runs/a")                                  what was trained, as a model of one process
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path

import torch

from zerolab.apps.interop.huggingface.weights import CONFIG, MOST_SHARD, assemble, from_pretrained, rows, save_folder
from zerolab.apps.interop.huggingface.weights import export as to_theirs
from zerolab.checkpoint import find_latest
from zerolab.checkpoint.agreement import all_gather_or_raise
from zerolab.checkpoint.manifest import MANIFEST
from zerolab.checkpoint.reader import CheckpointReader
from zerolab.checkpoint.shards import buffers_of
from zerolab.data import BYTES
from zerolab.data.tokenizer import Tokenizer, read_tokenizer
from zerolab.errors import InputError
from zerolab.models import Config, LanguageModel
from zerolab.train.model import saved_shape
from zerolab.zero import ZeroEngine

Tensor = torch.Tensor


def consolidate(
    checkpoint: Path | str,
    folder: Path | str,
    *,
    dtype: torch.dtype | None = None,
    config: Config | None = None,
    max_shard_bytes: int = MOST_SHARD,
    progress: Callable[[str], None] = lambda name: None,
) -> None:
    """Write the parameters of a checkpoint whole, and its buffers as rank 0 had them.

    checkpoint  its folder, or one whose newest is meant
    dtype       of floats; None: as they were saved. fp32 takes the main parameters where they were kept apart
    config      of our LLaMA or GPT-2: writes config.json and the names of transformers
    progress    told of each tensor before it is read

    Takes the memory of one file. Raises a CheckpointError for what is missing or damaged.
    """
    source = CheckpointReader(checkpoint)
    manifest = source.manifest

    def read(name: str) -> Tensor:
        progress(name)
        stored: torch.dtype = getattr(torch, manifest.parameters[name].dtype)
        wanted = dtype if dtype and stored.is_floating_point else stored
        return source.read_whole(source.state_of(name, wanted), name, wanted)

    parameters = ((name, read(name)) for name in order_names(manifest.parameters, config))
    buffers = ((name, source.buffer(name)) for name in manifest.buffers)
    tensors = name_tensors(config, parameters, buffers)
    save_folder(folder, config, tensors, dtype=dtype, max_shard_bytes=max_shard_bytes)


def load_learned(folder: Path) -> tuple[LanguageModel, Tokenizer | None]:
    """The model of a checkpoint that `zerolab train` has saved, or of a Hugging Face folder, in fp32 and `eval()`; and
    how its tokens become text, where that is known."""
    folder, dtype = folder.expanduser(), torch.float32
    if (folder / CONFIG).is_file() and not (folder / MANIFEST).is_file() and find_latest(folder) is None:
        model = from_pretrained(folder, dtype=dtype)
        return model.eval(), BYTES if model.config.vocab_size == BYTES.vocab_size else None
    source = CheckpointReader(folder)
    data = source.manifest.data if isinstance(source.manifest.data, dict) else {}
    shape = saved_shape(data)
    if shape is None:
        raise InputError(
            f"{source.path} was not saved by zerolab train, so nobody knows what its model is; give a Hugging Face "
            "folder (zerolab checkpoint consolidate --huggingface makes one)"
        )
    names = source.manifest.parameters
    model = assemble(shape, ((name, source.read_whole(source.state_of(name, dtype), name, dtype)) for name in names))
    # The first checkpoints do not speak of tokens, which were bytes.
    return model.eval(), read_tokenizer(data["tokenizer"], str(source.path)) if "tokenizer" in data else BYTES


@torch.no_grad()
def export(
    engine: ZeroEngine,
    folder: Path | str,
    *,
    dtype: torch.dtype | None = None,
    config: Config | None = None,
    max_shard_bytes: int = MOST_SHARD,
) -> None:
    """Write the model that trains, in the precision that forward uses. A collective: every rank calls it, between
    steps, and rank 0 writes; at stage 3 one unit at a time is gathered."""
    unit_of = {slot.name: unit for unit in engine.units for bucket in unit.buckets for slot in bucket.layout.slots}

    def check() -> None:
        engine.check_between_steps("export")
        order_names(unit_of, config)

    def gather() -> Iterator[tuple[str, Tensor]]:
        """Parameters on rank 0; the others gather the same units."""
        unit, found = None, dict[str, Tensor]()
        for name in order_names(unit_of, config):
            if unit is not unit_of[name]:
                unit = unit_of[name]
                found.clear()
                found.update(engine.parameters_of(unit, to=0))
            if found:
                tensor = found[name]
                yield name, tensor.to(dtype) if dtype and tensor.is_floating_point() else tensor

    def work() -> None:
        try:
            if engine.comm.rank == 0:
                tensors = name_tensors(config, parameters, buffers_of(engine.model).items())
                save_folder(folder, config, tensors, dtype=dtype, max_shard_bytes=max_shard_bytes)
        finally:
            # So does a rank 0 that failed on the way.
            for _ in parameters:
                pass

    all_gather_or_raise(engine, check)
    parameters = gather()
    all_gather_or_raise(engine, work)


def order_names(names: Iterable[str], config: Config | None) -> list[str]:
    """The parameters as they are written one by one. Raises an InputError for a config of another model."""
    there = list(names)
    theirs = [row.ours for row in rows(config) if row.ours is not None] if config else there
    for strange in sorted({*theirs} ^ {*there}):
        such = f"a model of this {type(config).__name__} has"
        said = f"{such} {strange}, which was not trained" if strange in theirs else f"{such} no {strange}"
        raise InputError(f"{said}; give the config of the model that was trained, or none")
    return theirs


def name_tensors(
    config: Config | None, parameters: Iterator[tuple[str, Tensor]], buffers: Iterable[tuple[str, Tensor]]
) -> Iterable[tuple[str, Tensor]]:
    """Under their names, where there is a config, and else under our own."""
    return to_theirs(config, lambda name: next(parameters)[1]) if config else chain(parameters, buffers)
