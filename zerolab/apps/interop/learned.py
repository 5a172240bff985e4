"""What was trained, as a plain model of one process: out of a checkpoint of any stage and number of ranks, or a Hugging
Face folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from zerolab.apps.interop.huggingface import from_pretrained
from zerolab.checkpoint import find_latest, read_manifest
from zerolab.checkpoint.folder import remedy_for, resolve
from zerolab.checkpoint.manifest import MANIFEST, Manifest
from zerolab.checkpoint.reader import CheckpointReader
from zerolab.data import BYTES
from zerolab.data.tokenizer import Tokenizer, read_tokenizer
from zerolab.errors import InputError
from zerolab.models import LanguageModel, build_model
from zerolab.train.model import saved_shape


@dataclass(frozen=True)
class Learned:
    """A model in fp32 on the CPU, in `eval()`, and how its tokens become text, where that is known."""

    model: LanguageModel
    tokenizer: Tokenizer | None
    path: Path


def load_learned(folder: Path) -> Learned:
    """The model of a checkpoint that `zerolab train` has saved, of the newest in a folder of some, or of a Hugging Face
    folder; the main parameters, where they were kept apart.

    Raises:
        InputError: the model is none of ours.
        CheckpointError: there is nothing of the kind, or it cannot be read.
    """
    folder = folder.expanduser()
    if (folder / "config.json").is_file() and not (folder / MANIFEST).is_file() and find_latest(folder) is None:
        model = from_pretrained(folder, dtype=torch.float32)
        known = model.config.vocab_size == BYTES.vocab_size
        return Learned(model.eval(), BYTES if known else None, folder)
    path = resolve(folder)
    remedy = remedy_for(path)
    manifest = read_manifest(path, remedy)
    data = manifest.data if isinstance(manifest.data, dict) else {}
    shape = saved_shape(data)
    if shape is None:
        raise InputError(
            f"{path} was not saved by zerolab train, so nobody knows what its model is; give a Hugging Face folder "
            "(zerolab checkpoint consolidate --huggingface makes one)"
        )
    model = build_model(shape)
    fill(model, manifest, CheckpointReader(path, manifest, remedy))
    # The first checkpoints do not speak of tokens, which were bytes.
    tokenizer = read_tokenizer(data["tokenizer"], str(path)) if "tokenizer" in data else BYTES
    return Learned(model.eval(), tokenizer, path)


@torch.no_grad()
def fill(model: LanguageModel, manifest: Manifest, reader: CheckpointReader) -> None:
    """Overwrite the parameters of a plain model by those of a checkpoint."""
    for name, parameter in model.named_parameters():
        saved = manifest.parameters.get(manifest.tied.get(name, name))
        if saved is None or tuple(saved.shape) != tuple(parameter.shape):
            there = "is not there" if saved is None else f"has the shape {list(saved.shape)}"
            raise InputError(f"{name} of the model {there} in {reader.path}; take another checkpoint")
        precise = manifest.main and saved.trains and saved.dtype != "float32"
        flat = torch.empty(saved.numel)
        reader.read_into(flat, "main" if precise else "model", manifest.tied.get(name, name), 0)
        parameter.copy_(flat.view(parameter.shape))
