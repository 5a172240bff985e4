"""What one stage does otherwise than another: a diff of the library's own code, method by method."""

from __future__ import annotations

import ast
import difflib
import inspect
import re
import textwrap
from collections.abc import Iterator
from html import escape
from typing import Any, NamedTuple

from zerolab.errors import InputError

KINDS = {
    "call": ("all_reduce_async", "reduce_scatter_async", "all_gather_async", "broadcast"),
    "memory": (
        *("allocate", "whole_buffer", "beside_states", "new_empty", "clone", "resize_", "fill", "empty", "_empty"),
        *("keep", "fetch", "shard_of", "point", "nothings"),
    ),
}
"""What a changed line is marked as, by the functions that it calls: what ranks say to each other, and memory that lies
elsewhere, or comes and goes."""
LEGEND = "call: what ranks say to each other; memory: what lies elsewhere, or comes and goes"
GREEN, RED = "rgba(46, 160, 67, 0.2)", "rgba(220, 80, 60, 0.2)"
"""Grounds of lines that came and went, on white and on black."""


class Line(NamedTuple):
    """A line of a diff: its sign ("+", "-" or " "), what it is marked as ("" for nothing), and its text."""

    sign: str
    kind: str
    text: str


class Changes:
    """What `after` does otherwise than `before`, both classes of the library: their flags, and their methods as they
    act, wherever these are inherited from; without docstrings.

    elsewhere  methods that are named and not shown

    Raises InputError for a name in `elsewhere` that is no changed method.
    """

    def __init__(self, before: type, after: type, elsewhere: tuple[str, ...] = ()) -> None:
        self.title = f"{_place(before)} -> {_place(after)}"
        old, new = _methods(before), _methods(after)
        changed = [name for name in old | new if old.get(name) != new.get(name)]
        for name in elsewhere:
            if name not in changed:
                raise InputError(f"{name!r} is no method that changes from {self.title}; name one of {changed}")
        self.parts = [[line for line in _compared(_flags(before), _flags(after)) if line.sign != " "]]
        for name in changed:
            if name not in elsewhere:
                code = new.get(name, ())
                # What calls the method that it takes the place of adds to it.
                adds = any(f"super().{name}(" in line for line in code)
                self.parts.append([*_compared(() if adds else old.get(name, ()), code)])
        self.elsewhere = elsewhere
        self.same = [name for name in new if name not in changed]

    @property
    def lines(self) -> list[Line]:
        """All lines, part after part."""
        return [line for part in self.parts for line in part]

    def notes(self) -> list[str]:
        """What the signs do not say."""
        came, went = (sum(line.sign == sign for line in self.lines) for sign in "+-")
        notes = [f"{came} lines came (+), {went} went (-). {LEGEND}."]
        if self.elsewhere:
            notes.append(f"Changed as well: {', '.join(self.elsewhere)}.")
        if self.same:
            notes.append(f"The same: {', '.join(self.same)}.")
        return notes

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        return {"text/html": self._html(), "text/plain": repr(self)}

    def __repr__(self) -> str:
        parts = ["\n".join(f"{line.sign} {line.kind:6}  {line.text}".rstrip() for line in part) for part in self.parts]
        return "\n\n".join([self.title, *parts, "\n".join(self.notes())])

    def _html(self) -> str:
        rows = "<br>".join("".join(map(_row, part)) for part in self.parts)
        notes = "".join(f"<p style='margin: 0.3em 0'>{escape(note)}</p>" for note in self.notes())
        style = "overflow-x: auto; white-space: pre; font-family: monospace; line-height: 1.35; margin: 0.4em 0"
        wide = "display: inline-block; min-width: 100%"
        code = f'<pre style="{style}"><span style="{wide}">{rows}</span></pre>'
        return f"<p><b>{escape(self.title)}</b></p>{code}{notes}"


def _row(line: Line) -> str:
    ground = {"+": f"background: {GREEN}", "-": f"background: {RED}"}.get(line.sign, "")
    return f'<span style="display: block; {ground}">{line.sign} <b>{line.kind:6}</b>  {escape(line.text)}</span>'


def _place(kind: type) -> str:
    return f"{kind.__name__} ({kind.__module__.rpartition('.')[2]}.py)"


def _flags(kind: type) -> tuple[str, ...]:
    """The constants of a class, as lines; its number first."""
    names = dict.fromkeys(name for base in reversed(kind.__mro__) for name in vars(base) if not name.startswith("_"))
    return tuple(f"{name} = {value!r}" for name in names if isinstance(value := getattr(kind, name), int))


def _methods(kind: type) -> dict[str, tuple[str, ...]]:
    """The code of each method by name, in the order in which the classes have them, the oldest first."""
    found: dict[str, tuple[str, ...]] = {}
    for base in reversed(kind.__mro__):
        if base.__module__ not in ("abc", "builtins"):
            found |= {name: _code(value) for name, value in vars(base).items() if inspect.isfunction(value)}
    return found


def _code(function: Any) -> tuple[str, ...]:
    """The lines of a function without its docstring."""
    lines = textwrap.dedent(inspect.getsource(function)).rstrip().split("\n")
    (defined,) = ast.parse("\n".join(lines)).body
    assert isinstance(defined, ast.FunctionDef)
    first = defined.body[0]
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and first.end_lineno is not None:
        del lines[first.lineno - 1 : first.end_lineno]
    return tuple(lines)


def _compared(old: tuple[str, ...], new: tuple[str, ...]) -> Iterator[Line]:
    for sign, _, text in (row.partition(" ") for row in difflib.ndiff(old, new)):
        if sign in ("+", "-", ""):
            yield Line(sign or " ", _kind(text) if sign else "", text if sign else text[1:])


def _kind(text: str) -> str:
    """What a changed line is marked as: the first kind one of whose functions it calls."""
    called = set(re.findall(r"(?<!def )\b(\w+)\(", text))
    return next((kind for kind, names in KINDS.items() if called & set(names)), "")
