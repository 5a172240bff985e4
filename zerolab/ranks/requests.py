"""A rank's messages that nobody has waited for yet.

A request that is thrown away takes its message with it: torch gives it up, and the other rank waits for ever. Here it
is kept until somebody waits for it, so that its message passes, and it is named when the rank returns.
"""

from __future__ import annotations

from typing import NamedTuple

from zerolab.ranks.failure import RequestLeft


class Asked(NamedTuple):
    """What a request was for."""

    sends: bool
    peer: int
    nbytes: int

    def __str__(self) -> str:
        way = "sending to" if self.sends else "receiving from"
        return f"{way} rank {self.peer} ({self.nbytes} {'byte' if self.nbytes == 1 else 'bytes'})"


class OpenRequests:
    """Requests of one rank, of all its threads."""

    def __init__(self) -> None:
        self._asked: dict[object, Asked] = {}

    def add(self, request: object, asked: Asked) -> None:
        self._asked[request] = asked

    def drop(self, request: object) -> None:
        """Somebody waits for it."""
        self._asked.pop(request, None)

    def check(self) -> None:
        """Raise if the rank function has returned and left requests behind."""
        if not self._asked:
            return
        first, *more = self._asked.values()
        others = f", and for {len(more)} more" if more else ""
        name = "isend" if first.sends else "irecv"
        raise RequestLeft(
            f"returned before it had waited for what it is {first}{others}; keep the request that {name} returns, and "
            "wait() for it before you use the tensor again"
        )
