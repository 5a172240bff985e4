"""Data for cases: whole numbers, so that any order of addition gives the same sum, and other ones on every rank."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import torch


def whole_numbers(rng: Random, numel: int) -> torch.Tensor:
    """A 1-D tensor of whole numbers from 1 to 999."""
    return torch.randint(1, 1000, (numel,), generator=torch_generator(rng)).float()


def signed(rng: Random, numel: int, dtype: torch.dtype = torch.float32, most: int = 9) -> torch.Tensor:
    """A 1-D tensor of whole numbers from -`most` to `most`, none of them 0, such as gradients."""
    generator = torch_generator(rng)
    sign = torch.randint(2, (numel,), generator=generator) * 2 - 1
    return (sign * torch.randint(1, most + 1, (numel,), generator=generator)).to(dtype)


DTYPES = (torch.float32, torch.float64, torch.bfloat16)


def fine(rng: Random, numel: int, dtype: torch.dtype = torch.float32, most: int = 9) -> torch.Tensor:
    """Like `signed`, but float64 gets numbers that no float32 holds, so that a detour through float32 shows."""
    whole = signed(rng, numel, dtype, most)
    return whole * rng.uniform(0.7, 1.3) if dtype is torch.float64 else whole


def torch_generator(rng: Random) -> torch.Generator:
    """Torch's random numbers, seeded from `rng`: a thousand at a time take a twentieth of the time that `rng` takes."""
    return torch.Generator().manual_seed(rng.getrandbits(63))


def sizes(rng: Random) -> Iterator[tuple[int, int, str]]:
    """(ranks, elements, world): every number of ranks, dividing and not, and real processes once. One rank comes late:
    what goes wrong between two says more."""
    for ranks in (2, 3, 4, 1):
        each = rng.randint(2, 5)
        yield ranks, ranks * each, "lockstep"
        if ranks > 1:
            yield ranks, ranks * each + rng.randint(1, ranks - 1), "lockstep"
    # Fewer elements than ranks: the last rank's chunk is empty.
    yield 4, 3, "lockstep"
    yield 3, 3 * rng.randint(3, 9) + rng.randint(1, 2), "processes"
