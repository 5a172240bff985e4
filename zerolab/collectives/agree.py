"""What ranks agree on afterwards, where their messages cannot tell which call they belong to.

Our rings and shared memory name the call in each message, with its label: ranks in other calls never meet. Gloo's and
NCCL's own collectives, and messages over NCCL, have no such name, so two tensors of one size may meet that mean
different things. There a rank keeps its labels, and all compare them at a point that all reach alike.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from zerolab.collectives.transport import tell_all
from zerolab.errors import MismatchError

if TYPE_CHECKING:
    from zerolab.collectives.contract import Collectives

LONGEST = 96
"""Bytes of a line that an error shows."""


def compare_labels(comm: Collectives, labels: list[str]) -> None:
    """Raise a MismatchError, on every rank, if the ranks' labels differ."""
    compare_lines(
        comm,
        labels,
        "the ranks gathered other units ({listed}: number {number} since they last agreed) and took each other's "
        "values for their own; run the same units in the same order on every rank",
    )


def compare_lines(comm: Collectives, lines: list[str], differ: str) -> None:
    """Raise a MismatchError, on every rank, if the ranks' lines differ. `differ` says so of the first that does: what
    each rank has there (`listed`) and its `number`. Two numbers per rank travel if they do not."""
    seen = told(comm, [zlib.crc32(repr(lines).encode()), len(lines)], "agree")
    if all(row == seen[0] for row in seen):
        return
    longest = max(count for _, count in seen)
    sums = [zlib.crc32(line.encode()) for line in lines]
    rows = told(comm, [*sums, *[-1] * (longest - len(sums))], "agree")
    at = next((at for at in range(longest) if len({row[at] for row in rows}) > 1), longest - 1)
    words = lines[at].encode()[:LONGEST] if at < len(lines) else b"nothing"
    texts = told(comm, [*words, *[0] * (LONGEST - len(words))], "agree")
    named = [bytes(text).rstrip(b"\0").decode(errors="replace") for text in texts]
    listed = ", ".join(f"rank {rank} {name}" for rank, name in zip(comm.ranks, named, strict=True))
    raise MismatchError(differ.format(listed=listed, number=at + 1))


def told(
    comm: Collectives, numbers: list[int], name: str, said: Callable[[int], list[int]] | None = None
) -> list[list[int]]:
    """Every rank's numbers, in rank order. All ranks give as many, in a collective that reports call `name`. `said`, if
    given, computes the numbers of a rank from its number, for worlds in which the others do not answer.

    The numbers are in the host's memory, also where ranks have GPUs, for which nobody then waits. They travel in
    messages with a tag: a rank that is in another call waits, and an error names it, where gloo's own collective would
    end the process over a tensor of another size."""
    rows: list[list[int]] = []
    comm.run(name, lambda: rows.extend(tell_all(comm.transport, numbers, said)))
    return rows
