"""Plain assignments of Python, read and never run: NAME = a literal, or arithmetic of literals and of names above."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from zerolab.errors import InputError

OPERATORS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
SIGNS: dict[type, Callable[[Any], Any]] = {ast.UAdd: operator.pos, ast.USub: operator.neg, ast.Not: operator.not_}
LONGEST = 1000
"""The greatest exponent, bits of a number and characters of a text: arithmetic ends at once, whatever a file says."""
WORDS = {
    ast.AugAssign: "an assignment that adds to a name",
    ast.Assign: "an assignment to several things at once",
    ast.AnnAssign: "a name without a value",
    ast.Expr: "an expression alone",
    ast.FunctionDef: "a function",
    ast.ClassDef: "a class",
    ast.If: "an if",
    ast.For: "a loop",
    ast.While: "a loop",
    ast.With: "a with block",
    ast.Call: "a call",
    ast.Attribute: "an attribute",
    ast.Subscript: "an index",
    ast.JoinedStr: "a formatted string",
}


def read_assignments(
    path: Path, names: Mapping[str, Any], free: frozenset[str] = frozenset()
) -> dict[str, tuple[Any, int]]:
    """What a file assigns, by name, with the line. It may use `names`, and what it has assigned before. Imports are
    passed over, and so are the names in `free` where their values are more than this reads.

    Raises:
        InputError: a file that cannot be read, or the first line in it that is anything else than a plain assignment.
    """
    try:
        body = ast.parse(path.read_text(encoding="utf-8")).body
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read ({error}); name a file of plain assignments") from None
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None)
        raise InputError(
            f"{path}{f', line {line}' if line else ''}: this is no Python ({error.args[0]}); mend it"
        ) from None
    known, found = dict(names), {}
    for node in body:
        where = f"{path}, line {node.lineno}"
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            continue  # a text that explains
        if isinstance(node, ast.Import | ast.ImportFrom):
            continue  # it assigns nothing that is read here; who uses it is told so
        targets = targets_of(node)
        if not targets:
            raise InputError(f"{where}: {_word(node)} is not a plain assignment, and nothing else is read; take it out")
        assert isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None
        if {*targets} <= free and not readable(node.value, known):
            continue
        value = value_of(node.value, known, f"{where}: {targets[0]}")
        for name in targets:
            known[name], found[name] = value, (value, node.lineno)
    return found


def targets_of(node: ast.stmt) -> list[str]:
    """The names that a plain assignment gives a value; none if it is something else."""
    named = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    if any(not isinstance(name, ast.Name) for name in named) or getattr(node, "value", None) is None:
        return []
    return [name.id for name in named if isinstance(name, ast.Name)]


def readable(node: ast.expr, names: Mapping[str, Any]) -> bool:
    try:
        value_of(node, names, "")
    except InputError:
        return False
    return True


def value_of(node: ast.expr, names: Mapping[str, Any], where: str) -> Any:
    """The value of a literal, a name that is known, or arithmetic of those."""
    if isinstance(node, ast.Constant) and isinstance(node.value, bool | int | float | str | None):
        return node.value
    if isinstance(node, ast.Name):
        if node.id not in names:
            raise InputError(f"{where} uses {node.id}, which is not assigned before; write its value")
        return names[node.id]
    try:
        if isinstance(node, ast.UnaryOp) and type(node.op) in SIGNS:
            return SIGNS[type(node.op)](value_of(node.operand, names, where))
        if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
            left, right = (value_of(side, names, where) for side in (node.left, node.right))
            long = isinstance(node.op, ast.Pow) and max(abs(left), abs(right)) > LONGEST
            text = isinstance(left, str) or isinstance(right, str)
            if not long and not (text and not isinstance(node.op, ast.Add)):
                result = OPERATORS[type(node.op)](left, right)
                size = len(result) if isinstance(result, str) else result.bit_length() if type(result) is int else 0
                if size <= LONGEST:
                    return result
                raise OverflowError("it is too long")
    except (TypeError, ArithmeticError, RecursionError) as error:
        raise InputError(f"{where} cannot be computed ({error}); write its value") from None
    raise InputError(f"{where} is {_word(node)}, and only numbers, texts and arithmetic are read; write its value")


def _word(node: ast.AST) -> str:
    return WORDS.get(type(node), f"something else ({type(node).__name__})")
