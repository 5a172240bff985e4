"""What the collectives of lesson 01 are tried on, and held to.

Data differ by rank and are drawn anew for each check; they are whole numbers, so that any order of addition gives the
same sum, and as large as their dtype allows, so that a narrower one shows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import cycle
from random import Random
from typing import Any

import torch

from zerolab.course.judge.case import Case, Record
from zerolab.course.judge.claims import each_rank, most_held, most_messages, most_sent
from zerolab.course.judge.draw import sizes, torch_generator
from zerolab.course.judge.exercise import Claim, Exercise, Score
from zerolab.course.judge.model import Gives

Tensor = torch.Tensor

BOARD = (4, 4096)
"""Ranks and float32 elements of the case on the scoreboard."""

MOST = {
    torch.float64: 2**40,
    torch.float32: 2**20,
    torch.int64: 2**60,
    torch.bfloat16: 20,
    torch.float16: 99,
    torch.int32: 2**27,
}
"""The largest number of each dtype that is drawn: the sum of four, halved and quartered, and half as much again, is
still exact. float32 cannot hold those of float64 and int64."""

DTYPES = tuple(MOST)
"""In turn, so that each check tries them all: two ranks with a size that divides come first, and there float64 tells
a narrower dtype apart from a whole tensor; the next size does so for a wider one."""


def draws(rng: Random) -> Iterator[tuple[int, int, str, torch.dtype, bool]]:
    """(ranks, elements, world, dtype, whether to poison): the usual sizes, one of them again, one element, none, and
    poison."""
    usual = [(*size, dtype, False) for size, dtype in zip(sizes(rng), cycle(DTYPES), strict=False)]
    # What an answer keeps by size shows if other data of the same size come after.
    yield from [*usual, usual[3]]
    yield rng.randint(2, 4), 1, "lockstep", rng.choice(DTYPES), False
    # Without elements a tensor of the default dtype is a wrong one, too.
    yield rng.randint(2, 4), 0, "lockstep", rng.choice([dtype for dtype in DTYPES if dtype is not torch.float32]), False
    ranks, floats = rng.randint(2, 4), [dtype for dtype in DTYPES if dtype.is_floating_point]
    yield ranks, ranks * rng.randint(2 * ranks, 9) + 1, "lockstep", rng.choice(floats), True


def numbers(rng: Random, numel: int, dtype: torch.dtype) -> Tensor:
    """Whole numbers of either sign, and zeros; those of bfloat16 are larger than any of float16."""
    most = MOST[dtype]
    drawn = torch.randint(-most, most + 1, (numel,), generator=torch_generator(rng)).to(dtype)
    return drawn * 2**20 if dtype == torch.bfloat16 else drawn


def each_ranks(rng: Random, ranks: int, numel: int, dtype: torch.dtype, poisoned: bool = False) -> list[Tensor]:
    """A tensor for each rank. With poison each has a NaN and an inf in each chunk, where no other rank has one: whoever
    begins a sum, passes it on or ends it, none may be lost."""
    tensors = [numbers(rng, numel, dtype) for _ in range(ranks)]
    for rank, tensor in enumerate(tensors if poisoned else ()):
        for part in tensor.tensor_split(ranks):
            part[rank], part[ranks + rank] = torch.nan, torch.inf
    return tensors


@each_rank
def no_library_collective(case: Case, rank: int, record: Record) -> str | None:
    for name, _ in record.calls:
        return f"it calls comm.{name}, which is the library's own: build it from comm.isend and comm.irecv"
    return None


@each_rank
def to_the_right(case: Case, rank: int, record: Record) -> str | None:
    right = (rank + 1) % case.ranks
    wrong = [receiver for receiver, _ in record.sent if receiver != right]
    return f"rank {rank} sent to rank {wrong[0]}: in this ring it sends to rank {right} only" if wrong else None


@each_rank
def new_tensor(case: Case, rank: int, record: Record) -> str | None:
    """What comes back shares no memory with the input."""
    gave = f"rank {rank} returned the memory of its input, so that who changes one changes both"
    return f"{gave}: return a new tensor" if record.left < 0 else None


FROM_MESSAGES = Claim("it is built from messages, not from a finished collective", no_library_collective)
TO_THE_RIGHT = Claim("each message goes to the right neighbour", to_the_right)


def right_values(says: str, look: str, of: str = "") -> Claim:
    """Every number is the right one, to the last bit."""

    def where(case: Case) -> str:
        special = not all(bool(args[0].isfinite().all()) for args in case.args)
        return "NaN and inf are not to be lost: where one goes in, it comes out" if special else look

    return Claim(says, Gives(of, where, tolerance=0.0, dtype="new tensors take the input's dtype"))


def as_a_ring(of: Callable[[Record], Any], look: str) -> Claim:
    """Each rank sends as much as the model's."""
    sent = Gives(of, look, say=lambda args, got, want: f"sent {got} bytes, a ring {want}")
    return Claim("it sends what a ring sends, to the byte", sent)


def ring_exercise(
    name: str,
    cases: Callable[[Random], list[Case]],
    values: Claim,
    look: str = "",
    chunks: int | None = None,
    **about: Any,
) -> Exercise:
    """An exercise whose function is a collective that returns a new tensor. It may hold a whole tensor and so many
    `chunks` at most, or what the model holds; `look` is for who holds more."""

    def held(case: Case) -> int:
        return 4 * BOARD[1] * (case.ranks + (chunks or 0)) // case.ranks + 64

    look_sent = "N-1 steps are enough for each half, and each sends one chunk, as long as it is, in the input's dtype"
    sends = as_a_ring(lambda record: record.nbytes, look_sent)
    return Exercise(
        name,
        cases,
        (FROM_MESSAGES, values, TO_THE_RIGHT, sends, Claim("it returns a new tensor", new_tensor)),
        scores=(
            Score("bytes a rank sends", most_sent, None, "in each step one chunk travels"),
            Score("messages a rank sends", most_messages, None, "each one waits for the network: send chunks whole"),
            Score("bytes held at the worst moment", most_held, held if chunks else None, look, slack=64),
        ),
        memory=True,
        # What travels in another dtype shows in the bytes, and a library's collective must be told first.
        without=frozenset({"dtype"}),
        **about,
    )


def board_case(tensors: Sequence[Tensor], *rest: Any) -> Case:
    return Case([(tensor, *rest) for tensor in tensors], board=True)
