"""Tokenizers without a download: every byte of UTF-8 is a token, or every character that a text has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from zerolab.errors import InputError


class ByteTokenizer:
    """Text to bytes and back; 256 tokens, no unknown ones.

    >>> ByteTokenizer().encode("ZeRO").tolist()
    [90, 101, 82, 79]
    >>> ByteTokenizer().decode([90, 101, 82, 79])
    'ZeRO'
    """

    vocab_size = 256

    def said(self) -> dict[str, Any]:
        """What a file says of it; `read_tokenizer` reads that."""
        return {"kind": "bytes"}

    def encode(self, text: str) -> Tensor:
        """uint8 [bytes of the text]: one byte a token in memory; `.long()` makes what a model reads.

        Raises:
            InputError: a lone surrogate, which UTF-8 has no bytes for.
        """
        try:
            data = text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise InputError(
                f"character {error.start} of the text, {text[error.start]!r}, is half of a surrogate pair and has no "
                "UTF-8; remove it."
            ) from None
        return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)

    def decode(self, tokens: Tensor | list[int]) -> str:
        """The text of a one-dimensional run of tokens; bytes that are not UTF-8 (a cut character) become U+FFFD.

        Raises:
            InputError: tokens of another shape, or outside [0, 256).
        """
        ids = _ids(tokens)
        outside = next((token for token in ids if not 0 <= token < self.vocab_size), None)
        if outside is not None:
            raise InputError(f"token {outside} is not a byte, 0 to 255; decode it with the tokenizer that made it.")
        return bytes(ids).decode("utf-8", errors="replace")


@dataclass(frozen=True)
class CharacterTokenizer:
    """The characters of a text, numbered in their order; no others.

    >>> zero = CharacterTokenizer.of("ZeRO")
    >>> zero.characters, zero.encode("Ze").tolist(), zero.decode([1, 0])
    ('ORZe', [2, 3], 'RO')
    """

    characters: str

    @classmethod
    def of(cls, text: str) -> CharacterTokenizer:
        found = "".join(sorted(set(text)))
        if len(found) > 1 << 16:
            raise InputError(f"the text has {len(found)} different characters and tokens have 16 bits; take bytes")
        return cls(found)

    @property
    def vocab_size(self) -> int:
        return len(self.characters)

    def said(self) -> dict[str, Any]:
        """What a file says of it; `read_tokenizer` reads that."""
        return {"kind": "characters", "characters": self.characters}

    def encode(self, text: str) -> Tensor:
        """int32 [characters of the text].

        Raises:
            InputError: a character that is not among them.
        """
        numbers = {character: number for number, character in enumerate(self.characters)}
        unknown = next((character for character in text if character not in numbers), None)
        if unknown is not None:
            raise InputError(f"{unknown!r} is none of the {len(numbers)} characters of the text; leave it out.")
        return torch.tensor([numbers[character] for character in text], dtype=torch.int32)

    def decode(self, tokens: Tensor | list[int]) -> str:
        """The text of a one-dimensional run of tokens.

        Raises:
            InputError: tokens of another shape, or outside the vocabulary.
        """
        ids = _ids(tokens)
        outside = next((token for token in ids if not 0 <= token < self.vocab_size), None)
        if outside is not None:
            raise InputError(f"token {outside} is none of the {self.vocab_size} characters; use their own tokenizer.")
        return "".join(self.characters[token] for token in ids)


def _ids(tokens: Tensor | list[int]) -> list[int]:
    tokens = torch.as_tensor(tokens)
    if tokens.dim() != 1 or tokens.is_floating_point():
        raise InputError(
            f"tokens are {tokens.dtype} of shape {list(tokens.shape)}, but decode reads whole numbers in one "
            "dimension; pass one sequence."
        )
    return [int(token) for token in tokens.tolist()]


Tokenizer = ByteTokenizer | CharacterTokenizer


def read_tokenizer(said: Any, where: str) -> Tokenizer | None:
    """The tokenizer that a file speaks of; None if it names none. Raises InputError for one that there is not."""
    if said is None:
        return None
    kind = said.get("kind") if isinstance(said, dict) else said
    if kind == "bytes":
        return ByteTokenizer()
    characters = said.get("characters") if isinstance(said, dict) else None
    if kind == "characters" and isinstance(characters, str) and characters:
        return CharacterTokenizer(characters)
    raise InputError(f"{where} names the tokenizer {kind!r}; there are 'bytes', and 'characters' with a list of them")
