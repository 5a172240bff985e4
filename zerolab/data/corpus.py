"""A text as tokens, cut in what is trained on and what is held out."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from zerolab.data.bins import AT_ONCE, META, TRAIN, VALID, describe, find_dataset, read_bin, read_meta
from zerolab.data.text import EMBEDDED, Text, load_text
from zerolab.data.tokenizer import ByteTokenizer, Tokenizer
from zerolab.errors import InputError

BYTES = ByteTokenizer()


@dataclass(frozen=True, eq=False)
class Corpus:
    """A text as tokens (uint8, or uint16 of a data set): the front to train on, the end to validate on, where it is
    from, how many different tokens there may be, and how they become text, where that is known."""

    train: Tensor
    valid: Tensor
    text: Text
    vocab_size: int = ByteTokenizer.vocab_size
    tokenizer: Tokenizer | None = BYTES


@dataclass(frozen=True, eq=False)
class MappedCorpus(Corpus):
    """A data set in files, which each process maps for itself."""

    folder: Path = Path()

    def __reduce__(self) -> Any:
        return mapped, (self.folder, self.text, self.vocab_size, self.tokenizer)


def mapped(folder: Path, text: Text, vocab_size: int, tokenizer: Tokenizer | None) -> MappedCorpus:
    train, valid = (read_bin(folder / name) for name in (TRAIN, VALID))
    return MappedCorpus(train, valid, text, vocab_size, tokenizer, folder)


def load_dataset(name: str, *, seq_len: int) -> Corpus:
    """A prepared data set (`bins.py`) by its folder or its name in data/. Raises an InputError if there is none, its
    files are no tokens or too few, or meta.json says what is not so."""
    folder = find_dataset(name)
    size, tokenizer = read_meta(folder)
    needed = 1
    for path in (folder / TRAIN, folder / VALID):
        tokens = read_bin(path)
        if len(tokens) <= seq_len:
            raise InputError(
                f"{path} has {len(tokens)} tokens, and one sequence reads seq_len + 1, {seq_len + 1}; prepare a longer "
                "text, or give a smaller seq_len"
            )
        needed = max(needed, *(1 + int(part.to(torch.int32).max()) for part in tokens.split(AT_ONCE)))
    if size is not None and size < needed:
        raise InputError(f"{folder / META} gives {size} as vocab_size, but has a token {needed - 1}; give {needed}")
    size = size or needed
    return mapped(folder, describe(name, folder, size), size, tokenizer)


def split(tokens: Tensor, seq_len: int, valid_fraction: float = 0.1, source: str = "the text") -> tuple[Tensor, Tensor]:
    """Cut tokens in (train, valid), views without overlap; valid is the end, at least one sequence long. Raises an
    InputError for a text too short for one sequence on either side."""
    sequence = seq_len + 1
    if len(tokens) < 2 * sequence:
        raise InputError(
            f"{source} has {len(tokens)} tokens, but seq_len {seq_len} needs at least {2 * sequence}, one sequence "
            "to train on and one to validate; use more text or a smaller seq_len."
        )
    valid = min(max(int(len(tokens) * valid_fraction), sequence), len(tokens) - sequence)
    return tokens[:-valid], tokens[-valid:]


def load_corpus(source: str = EMBEDDED, *, seq_len: int) -> Corpus:
    """Load a source (see `load_text`), encode it as bytes and cut it in two (see `split`)."""
    text = load_text(source)
    return Corpus(*split(BYTES.encode(text.text), seq_len, source=repr(source)), text)
