"""Text that is really there, as tokens, in batches that are the same for every number of ranks.

corpus = load_corpus("embedded", seq_len=128)                       # once, before ranks start
batches = Batches(corpus.train, seq_len=128, batch_size=8, ranks=comm.size, rank=comm.rank)
for inputs, targets in batches.step(0): ...
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from zerolab.data.batches import Batches, check_division
from zerolab.data.text import EMBEDDED, FINEWEB, SYNTHETIC, Text, load_text
from zerolab.data.tokenizer import ByteTokenizer
from zerolab.errors import InputError


@dataclass(frozen=True, eq=False)
class Corpus:
    """A text as uint8 tokens: the front to train on, the end to validate on, and where it is from."""

    train: Tensor
    valid: Tensor
    text: Text


def split(tokens: Tensor, seq_len: int, valid_fraction: float = 0.1, source: str = "the text") -> tuple[Tensor, Tensor]:
    """Cut tokens in (train, valid), views without overlap; valid is the end, at least one sequence long.

    Raises:
        InputError: a fraction outside (0, 1), or a text too short for one sequence on either side.
    """
    if not 0 < valid_fraction < 1:
        raise InputError(f"valid_fraction is {valid_fraction}, but must lie between 0 and 1; use 0.1.")
    sequence = seq_len + 1
    if len(tokens) < 2 * sequence:
        raise InputError(
            f"{source} has {len(tokens)} tokens, but seq_len {seq_len} needs at least {2 * sequence}, one sequence "
            "to train on and one to validate; use more text or a smaller seq_len."
        )
    valid = min(max(int(len(tokens) * valid_fraction), sequence), len(tokens) - sequence)
    return tokens[:-valid], tokens[-valid:]


def load_corpus(source: str = EMBEDDED, *, seq_len: int, valid_fraction: float = 0.1) -> Corpus:
    """Load a source (see `load_text`), encode it as bytes and cut it in two.

    Raises:
        InputError: see `load_text` and `split`.
    """
    if isinstance(seq_len, bool) or not isinstance(seq_len, int) or seq_len < 1:
        raise InputError(f"seq_len is {seq_len!r}, but must be a whole number of at least 1; change it.")
    text = load_text(source)
    train, valid = split(ByteTokenizer().encode(text.text), seq_len, valid_fraction, source=repr(source))
    return Corpus(train, valid, text)


__all__ = [
    "EMBEDDED",
    "FINEWEB",
    "SYNTHETIC",
    "Batches",
    "ByteTokenizer",
    "Corpus",
    "Text",
    "check_division",
    "load_corpus",
    "load_text",
    "split",
]
