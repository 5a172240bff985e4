"""What a right answer is."""

from __future__ import annotations

from typing import NamedTuple


class Right(NamedTuple):
    """`source` in the place of the answer to `exercise`, in a style of its own that `name` says; it must pass."""

    name: str
    exercise: str
    source: str
