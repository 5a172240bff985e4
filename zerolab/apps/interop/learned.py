"""What was trained, as a plain model of one process: out of a checkpoint of any stage and number of ranks, or a Hugging
Face folder."""

from __future__ import annotations

from pathlib import Path

import torch

from zerolab.apps.interop.huggingface import CONFIG, assemble, from_pretrained
from zerolab.checkpoint import find_latest
from zerolab.checkpoint.manifest import MANIFEST
from zerolab.checkpoint.reader import CheckpointReader
from zerolab.data import BYTES
from zerolab.data.tokenizer import Tokenizer, read_tokenizer
from zerolab.errors import InputError
from zerolab.models import LanguageModel
from zerolab.train.model import saved_shape


def load_learned(folder: Path) -> tuple[LanguageModel, Tokenizer | None]:
    """The model of a checkpoint that `zerolab train` has saved, of the newest in a folder of some, or of a Hugging Face
    folder; the main parameters, where they were kept apart. In fp32 on the CPU, in `eval()`, and how its tokens become
    text, where that is known.

    Raises:
        InputError: the model is none of ours.
        CheckpointError: there is nothing of the kind, or it cannot be read.
    """
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
