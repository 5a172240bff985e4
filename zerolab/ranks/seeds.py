"""The random numbers of a rank: every launch starts all of its ranks alike, in every world."""

from __future__ import annotations

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

    @classmethod
    def capture(cls) -> RandomState:
        return cls(torch.get_rng_state(), numpy.random.get_state(), random.getstate())

    def restore(self) -> None:
        torch.set_rng_state(self.of_torch)
        numpy.random.set_state(self.of_numpy)
        random.setstate(self.of_python)
