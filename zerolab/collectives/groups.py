"""How ranks find out who is in a group with them. Both ways are calls of all ranks of `comm`, as others are.

What a rank says is a row of integers, and every rank sees all rows; so all ranks know the same, and one that said
something else than the others is named by all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from zerolab.collectives.agree import told
from zerolab.errors import InputError, MismatchError

if TYPE_CHECKING:
    from zerolab.collectives.contract import Collectives

LONGEST = 40
"""Bytes of a group's name."""
LARGEST = 2**62
"""Colours and keys travel as 64-bit integers."""


Number = int | None | Callable[[int], int | None]
"""A colour or a key: this rank's, or a function from any rank's number."""


def by_colour(comm: Collectives, color: Number, key: Number, name: str) -> list[int] | None:
    """The ranks of `comm` that give this rank's colour, in the order of (key, rank); None without a colour."""

    def said(rank: int) -> list[int]:
        """A rank's row: whether it has a colour, the colour, the key, the name. What no function gives is our own."""
        its = color(rank) if callable(color) else color
        place = key(rank) if callable(key) else key
        if its is not None:
            its = check_number("color", its, "or None for no group")
        place = rank if place is None else check_number("key", place, "or None for the order of ranks")
        return [int(its is not None), its or 0, place, *packed(name)]

    own = said(comm.rank)
    rows = told(comm, own, "split", said if callable(color) and (key is None or callable(key)) else None)
    if not own[0]:
        return None
    ranks = [rank for rank in range(comm.size) if rows[rank][:2] == own[:2]]
    names = {rank: unpacked(rows[rank][3:]) for rank in ranks}
    if len(set(names.values())) > 1:
        listed = ", ".join(f"rank {comm.ranks[rank]} {said!r}" for rank, said in names.items())
        raise MismatchError(f"the ranks of colour {own[1]} gave their group different names ({listed}); give one")
    return sorted(ranks, key=lambda rank: (rows[rank][2], rank))


def as_listed(comm: Collectives, ranks: Sequence[int], name: str) -> list[int]:
    """`ranks` of `comm`, checked, and the same on all of them."""
    ranks = check_ranks(ranks, comm.size)
    rows = told(comm, [*ranks, *[-1] * (comm.size - len(ranks)), *packed(name)], "subgroup")
    if any(row != rows[0] for row in rows):
        listed = ", ".join(f"rank {rank} {_said(row, comm.size)}" for rank, row in zip(comm.ranks, rows, strict=True))
        raise MismatchError(
            f"the ranks named different groups ({listed}); call subgroup with the same ranks, in the "
            "same order, and the same name on every rank"
        )
    return ranks


def _said(row: list[int], size: int) -> str:
    ranks, name = [rank for rank in row[:size] if rank >= 0], unpacked(row[size:])
    return f"{name!r} {ranks}" if name else str(ranks)


def check_ranks(ranks: Sequence[int], size: int) -> list[int]:
    try:
        ranks = list(ranks)
    except TypeError:
        raise InputError(f"ranks is {ranks!r}; give a list of ranks, such as [0, 2]") from None
    wrong = [rank for rank in ranks if isinstance(rank, bool) or not isinstance(rank, int) or not 0 <= rank < size]
    if wrong or not ranks:
        about = f"there is no rank {wrong[0]!r}" if wrong else "a group of no ranks talks to nobody"
        raise InputError(f"a group of ranks {ranks}: {about}; name ranks from 0 to {size - 1}")
    if len(set(ranks)) < len(ranks):
        twice = next(rank for rank in ranks if ranks.count(rank) > 1)
        raise InputError(f"a group of ranks {ranks}: rank {twice} is there twice; name each rank once")
    return ranks


def check_number(what: str, number: int, other: str) -> int:
    if not isinstance(number, int) or not -LARGEST < number < LARGEST:
        raise InputError(f"{what} is {number!r}; give an integer of 62 bits, {other}")
    return int(number)


def packed(name: str) -> list[int]:
    """A name as `LONGEST` integers, one a byte and zeros after them: the rows of all ranks are equally long."""
    if not isinstance(name, str) or not name.isprintable() or len(name.encode()) > LONGEST:
        raise InputError(f"a group's name is {name!r}; give at most {LONGEST} bytes of printable text, such as 'dp'")
    return list(name.encode().ljust(LONGEST, b"\0"))


def unpacked(numbers: list[int]) -> str:
    return bytes(numbers).rstrip(b"\0").decode()
