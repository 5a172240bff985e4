"""Which earlier answers an answer rests on, so that a fault is mended where it is."""

from __future__ import annotations

import inspect
import symtable
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from types import FunctionType
from typing import Any

from zerolab.course.judge.verdict import Finding


def sources_beside(fn: Callable[..., Any]) -> Iterator[str]:
    """The sources of the functions that were defined where `fn` was, such as in a notebook's cells."""
    names: dict[str, Any] = getattr(fn, "__globals__", {})
    for value in [*names.values(), fn]:
        if isinstance(value, FunctionType) and value.__globals__ is names:
            with suppress(OSError, TypeError):
                yield textwrap.dedent(inspect.getsource(value))


def globals_by_name(sources: Iterable[str]) -> dict[str, set[str]]:
    """The globals that each function or class in `sources`, which are not run, reads; what is no Python has none."""
    found: dict[str, set[str]] = {}
    for source in sources:
        with suppress(SyntaxError, ValueError, RecursionError, MemoryError):
            for part in symtable.symtable(source, "<answer>", "exec").get_children():
                found[part.get_name()] = set(globals_in(part))
    return found


def globals_in(part: symtable.SymbolTable) -> Iterator[str]:
    """The globals that a part of a program reads; one that it assigns to, or is given, is its own."""
    yield from (symbol.get_name() for symbol in part.get_symbols() if symbol.is_global() and symbol.is_referenced())
    for inner in part.get_children():
        yield from globals_in(inner)


def uses(name: str, read: Mapping[str, set[str]]) -> set[str]:
    """The functions that `name` reads, those that they read, and so on."""
    found: set[str] = set()
    ahead = [name]
    while ahead:
        new = read.get(ahead.pop(), set()) & read.keys() - found
        found |= new
        ahead += new
    return found - {name}


def mend_first(findings: Sequence[Finding], causes: Sequence[str]) -> list[Finding]:
    """Findings that fail, with a hint that sends to the first of the earlier answers `causes`."""
    first = f"mend {causes[0]} first, which it uses"

    def redirected(hint: str) -> str:
        # These speak of an earlier answer, not of this one.
        of_causes = ("not written yet", *(f"'{cause}' is not defined" for cause in causes))
        return first if any(said in hint for said in of_causes) else f"{first}, then this: {hint}"

    return [replace(finding, hint=redirected(finding.hint)) if finding.hint else finding for finding in findings]
