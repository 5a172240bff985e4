"""What a wrong answer is."""

from __future__ import annotations

from typing import NamedTuple


class Wrong(NamedTuple):
    """`source` in the place of the answer to `exercise`; `hint` is a piece of what its author must read."""

    name: str
    exercise: str
    source: str
    hint: str


def changed(source: str, old: str, new: str) -> str:
    """A model answer with one thing done wrong."""
    assert old in source
    return source.replace(old, new)


def blank(exercise: str, head: str = "") -> Wrong:
    """The exercise as it was handed out; `head` opens a class."""
    head = head or f"def {exercise}(*args):\n"
    return Wrong("blank", exercise, f"{head}    raise NotImplementedError()", "not written yet")
