"""Which sequences a step trains on, and which of them are a rank's: the same sequences for every N.

    one step of batch_size 8, accumulation 2          4 ranks: rank r takes the r-th part of each micro-batch
    micro-batch 0:  s0 s1 s2 s3                       rank 0: s0   rank 1: s1   rank 2: s2   rank 3: s3
    micro-batch 1:  s4 s5 s6 s7                       rank 0: s4   rank 1: s5   rank 2: s6   rank 3: s7

Sequence i of a step depends on (seed, step, i) and on nothing else: not on N, not on what was read before.
Ranks that put their parts together in rank order hold the batch of one process, a resumed run goes on with
the sequences it would have had, and no rank needs to hear of another.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from zerolab.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor


def check_division(batch_size: int, ranks: int, accumulation: int) -> None:
    """Raise an InputError for a batch that cannot be cut into equal parts, one for each rank and micro-batch. Equal
    parts are what make the mean of the ranks' mean losses the mean over the batch."""
    for name, value in (("batch_size", batch_size), ("ranks", ranks), ("accumulation", accumulation)):
        if value < 1:
            raise InputError(f"{name} is {value!r}, but must be a whole number of at least 1; change it.")
    parts = ranks * accumulation
    below = batch_size // parts * parts
    if below != batch_size:
        choices = f"{below} or {below + parts}" if below else str(parts)
        raise InputError(
            f"batch_size {batch_size} is not a multiple of ranks {ranks} x accumulation {accumulation} = {parts}; "
            f"use {choices}."
        )


def sequence_start(seed: int, step: int, index: int, choices: int) -> int:
    """Where in the text sequence `index` of `step` begins: a fixed, evenly spread choice in [0, choices)."""
    digest = hashlib.blake2b(f"{seed}/{step}/{index}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") % choices


@dataclass(frozen=True, eq=False)
class Batches:
    """One rank's sequences of every step.

    tokens        one-dimensional integers, the whole text; shared by all ranks and never written
    seq_len       inputs of a sequence; it reads seq_len + 1 tokens, as targets lie one further
    batch_size    sequences of one optimizer step, over all ranks and micro-batches
    ranks, rank   how many parts, and which is ours
    accumulation  micro-batches of one optimizer step
    """

    tokens: Tensor
    seq_len: int
    batch_size: int
    ranks: int = 1
    rank: int = 0
    accumulation: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        check_division(self.batch_size, self.ranks, self.accumulation)
        if not 0 <= self.rank < self.ranks:
            raise InputError(f"rank is {self.rank}, but there are {self.ranks} ranks; use 0 to {self.ranks - 1}.")
        if self.tokens.dim() != 1 or self.tokens.is_floating_point():
            raise InputError(
                f"tokens are {self.tokens.dtype} of shape {list(self.tokens.shape)}, but must be whole numbers in one "
                "dimension; encode one text."
            )
        if not 0 < self.seq_len < len(self.tokens):
            raise InputError(
                f"seq_len is {self.seq_len}, but must be at least 1 and below the {len(self.tokens)} tokens of the "
                "text; use another one or more text."
            )

    @property
    def micro_batch_size(self) -> int:
        """Sequences of one micro-batch on this rank."""
        return self.batch_size // (self.ranks * self.accumulation)

    def micro_batch(self, step: int, micro_batch: int = 0) -> tuple[Tensor, Tensor]:
        """This rank's (inputs, targets) of one micro-batch: int64 [micro_batch_size, seq_len] each."""
        import torch

        first = (micro_batch * self.ranks + self.rank) * self.micro_batch_size
        choices = len(self.tokens) - self.seq_len
        indices = range(first, first + self.micro_batch_size)
        starts = [sequence_start(self.seed, step, index, choices) for index in indices]
        rows = torch.stack([self.tokens[start : start + self.seq_len + 1].long() for start in starts])
        return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()

    def step(self, step: int) -> list[tuple[Tensor, Tensor]]:
        """This rank's micro-batches of one optimizer step, in order."""
        return [self.micro_batch(step, micro_batch) for micro_batch in range(self.accumulation)]
