"""Which earlier answers an answer rests on, so that a fault is mended where it is."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from types import FunctionType
from typing import Any

from zerolab.course.judge.verdict import Finding

Mentions = dict[str, set[str]]
"""The names in the source of each function or class."""


def mentions(sources: Iterable[str]) -> Mentions:
    """What the functions in `sources` mention; a source that is not Python has none. Nothing is run."""
    found: Mentions = {}
    for source in sources:
        try:
            tree = ast.parse(textwrap.dedent(source))
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        for node in tree.body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                found[node.name] = {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}
    return found


def sources_beside(fn: Callable[..., Any]) -> list[str]:
    """The sources of the functions that were defined where `fn` was, such as in a notebook's cells."""
    names: dict[str, Any] = getattr(fn, "__globals__", {})
    found = []
    for value in [*names.values(), fn]:
        if isinstance(value, FunctionType) and value.__globals__ is names:
            try:
                found.append(inspect.getsource(value))
            except (OSError, TypeError):
                continue
    return found


def uses(name: str, mentioned: Mentions) -> set[str]:
    """The functions that `name` mentions, those that they mention, and so on."""
    found: set[str] = set()
    ahead = [name]
    while ahead:
        new = mentioned.get(ahead.pop(), set()) & mentioned.keys() - found
        found |= new
        ahead += new
    return found - {name}


def mend_first(findings: Sequence[Finding], cause: str) -> list[Finding]:
    """Findings that fail, with a hint that sends to the earlier answer `cause`."""
    return [replace(finding, hint=redirected(finding.hint, cause)) if finding.hint else finding for finding in findings]


def redirected(hint: str, cause: str) -> str:
    first = f"mend {cause} first, which it uses"
    # These speak of the earlier answer, not of this one.
    if hint.startswith("not written yet") or f"'{cause}' is not defined" in hint:
        return first
    return f"{first}, then this: {hint}"
