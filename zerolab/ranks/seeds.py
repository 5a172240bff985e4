"""The random numbers of a rank: every launch starts all of its ranks alike, in every world."""

from __future__ import annotations

import ctypes
import random
from typing import Any

import numpy
import torch

SEED = 0


def seed_all() -> None:
    """Seed torch, numpy and Python. A rank that wants numbers of its own seeds with its number."""
    # torch.manual_seed looks at the caller's stack, which takes long.
    torch.default_generator.manual_seed(SEED)
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(SEED)
    numpy.random.seed(SEED)
    random.seed(SEED)


State = tuple[torch.Tensor, Any, Any, bytes]
"""What torch, Python and numpy go on from, and numpy's words."""


class RandomTurns:
    """Keeps the random numbers of each rank while another one runs, and the caller's while ranks do."""

    def __init__(self) -> None:
        self._states: dict[int | None, State] = {}
        self._rank: int | None = None
        self._seeded: State | None = None

    def switch(self, rank: int | None) -> None:
        """Go on as `rank`, which starts seeded; as None go on as the caller."""
        now = self._states[self._rank] = self._capture()
        self._rank = rank
        if rank not in self._states:
            seed_all()
            self._seeded = self._seeded or self._capture()
            return
        state = self._states[rank]
        torch.set_rng_state(state[0])
        random.setstate(state[1])
        if state[2] is not now[2]:
            numpy.random.set_state(state[2])

    def _capture(self) -> State:
        """The states of now. Numpy is slow to say its own, and not asked while its generator has the words of the state
        right after seeding: once a number is drawn, they never come again."""
        generator = numpy.random.get_bit_generator()  # type: ignore[attr-defined]  # stubs of some versions lack it
        words = b""
        if type(generator) is numpy.random.MT19937:
            # As they lie in memory: 624 words and the place among them.
            words = ctypes.string_at(generator.ctypes.state_address, 625 * 4)
        known = self._seeded is not None and words != b"" and words == self._seeded[3]
        of_numpy = self._seeded[2] if self._seeded and known else numpy.random.get_state()
        return torch.get_rng_state(), random.getstate(), of_numpy, words
