"""Tokenizers without a download: every byte of UTF-8 is a token, or every character that a text has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from zerolab.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor


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
        """uint8 [bytes of the text]: one byte a token in memory; `.long()` makes what a model reads."""
        import torch

        data = bytearray(text.encode("utf-8"))
        return torch.frombuffer(data, dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)

    def decode(self, tokens: Tensor | list[int]) -> str:
        """The text of a one-dimensional run of tokens; bytes that are not UTF-8 (a cut character) become U+FFFD."""
        numbers = tokens if isinstance(tokens, list) else tokens.tolist()
        return bytes(numbers).decode("utf-8", errors="replace")


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
        """int32 [characters of the text]. Raises an InputError for one that is not among them."""
        import torch

        numbers = {character: number for number, character in enumerate(self.characters)}
        try:
            return torch.tensor([numbers[character] for character in text], dtype=torch.int32)
        except KeyError as error:
            raise InputError(f"{error} is none of the {len(numbers)} characters of the text; leave it out.") from None

    def decode(self, tokens: Tensor | list[int]) -> str:
        """The text of a one-dimensional run of tokens."""
        numbers = tokens if isinstance(tokens, list) else tokens.tolist()
        return "".join(self.characters[number] for number in numbers)


Tokenizer = ByteTokenizer | CharacterTokenizer


def read_tokenizer(said: Any, where: str) -> Tokenizer | None:
    """The tokenizer that a file speaks of; None if it names none. Raises InputError for one that there is not."""
    if said is None:
        return None
    kind, characters = (said.get("kind"), said.get("characters")) if isinstance(said, dict) else (said, None)
    if kind == "bytes":
        return ByteTokenizer()
    if kind == "characters" and isinstance(characters, str) and characters:
        return CharacterTokenizer(characters)
    raise InputError(f"{where} names the tokenizer {kind!r}; there are 'bytes', and 'characters' with a list of them")
