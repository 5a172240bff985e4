"""The random numbers of a rank: every launch starts all of its ranks alike, in every world."""

from __future__ import annotations

import ctypes
import random
from dataclasses import dataclass
from typing import Any

import numpy
import torch

SEED = 0


def seed_all() -> None:
    """Seed torch, numpy and Python. All ranks start from one seed, as models that must start equal want it; a rank
    that wants numbers of its own seeds with its number."""
    # torch.manual_seed writes down the caller's stack for each kind of device that nobody uses yet, which takes a
    # hundred times as long as to seed.
    torch.default_generator.manual_seed(SEED)
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(SEED)
    numpy.random.seed(SEED)
    random.seed(SEED)


@dataclass(frozen=True)
class RandomState:
    """The states of the three generators on the CPU, so that ranks that share a process can take turns."""

    of_torch: torch.Tensor
    of_numpy: Any
    of_python: Any
    numpy_words: bytes = b""

    @classmethod
    def capture(cls, seeded: RandomState | None = None) -> RandomState:
        """The states of now. Numpy takes many times as long as the other two to say its own. So it is not asked while
        its generator has the words of `seeded`, the state right after seeding: once a number is drawn, they never come
        again."""
        words = numpy_words()
        same = seeded is not None and words != b"" and words == seeded.numpy_words
        of_numpy = seeded.of_numpy if seeded is not None and same else numpy.random.get_state()
        return cls(torch.get_rng_state(), of_numpy, random.getstate(), words)

    def restore(self, now: RandomState | None = None) -> None:
        """Go back to these states; `now` are those of the generators, if they are known."""
        torch.set_rng_state(self.of_torch)
        if now is None or now.of_numpy is not self.of_numpy:
            numpy.random.set_state(self.of_numpy)
        random.setstate(self.of_python)


def numpy_words() -> bytes:
    """The numbers that numpy's own generator goes on from, as they lie in memory; nothing if it is another kind."""
    generator = numpy.random.get_bit_generator()  # type: ignore[attr-defined]  # stubs of some versions lack it
    if type(generator) is not numpy.random.MT19937:
        return b""
    # 624 words and the place among them.
    return ctypes.string_at(generator.ctypes.state_address, 625 * 4)
