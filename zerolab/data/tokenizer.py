"""A tokenizer without a download: every byte of UTF-8 is a token."""

from __future__ import annotations

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
        tokens = torch.as_tensor(tokens)
        if tokens.dim() != 1 or tokens.is_floating_point():
            raise InputError(
                f"tokens are {tokens.dtype} of shape {list(tokens.shape)}, but decode reads whole numbers in one "
                "dimension; pass one sequence."
            )
        ids = tokens.tolist()
        outside = next((token for token in ids if not 0 <= token < self.vocab_size), None)
        if outside is not None:
            raise InputError(f"token {outside} is not a byte, 0 to 255; decode it with the tokenizer that made it.")
        return bytes(ids).decode("utf-8", errors="replace")
