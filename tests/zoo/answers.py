"""What a wrong and a right answer are, and how most are written: as the model answer with one place changed."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

from nbformat import NotebookNode

from zerolab.course.grade.cells import grade_id, is_answer, read_notebook

SOLUTIONS = Path(__file__).resolve().parents[2] / "solutions"


class Wrong(NamedTuple):
    """`source` in the place of the answer to `exercise`; `hint` is a piece of what its author must read."""

    name: str
    source: str
    hint: str
    exercise: str = ""  # set by the loader, from the file's name


class Right(NamedTuple):
    """`source` in the place of the answer to `exercise`, in a style of its own that `name` says; it must pass."""

    name: str
    source: str
    exercise: str = ""  # set by the loader, from the file's name


@cache
def solution(lesson: str) -> NotebookNode:
    return read_notebook(SOLUTIONS / f"{lesson}.ipynb")


@cache
def model(lesson: str, exercise: str) -> str:
    """The model answer as the answers here are written: its markers, types, docstrings and comments left out."""
    (cell,) = (cell for cell in solution(lesson).cells if is_answer(cell) and grade_id(cell) == exercise)
    return plain(cell.source)


def plain(source: str) -> str:
    """`source` without comments, docstrings and types, between two line breaks."""
    lines = [re.sub(r"\s*#.*", "", line) for line in source.split("\n")]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node):
            first, last = node.body[0].lineno - 1, node.body[0].end_lineno
            lines[first:last] = [""] * len(lines[first:last])
        if isinstance(node, ast.FunctionDef):
            for argument in ast.walk(node.args):
                if isinstance(argument, ast.arg):
                    argument.annotation = None
            first = node.lineno - 1
            last = next(number for number in range(first, len(lines)) if lines[number].endswith(":"))
            head = " " * node.col_offset + f"def {node.name}({ast.unparse(node.args)}):"
            lines[first : last + 1] = [head] + [""] * (last - first)
    text = re.sub(r":\n\n+", ":\n", "\n".join(lines))
    return "\n" + re.sub(r"\n{3,}", "\n\n", text).strip("\n") + "\n"


def changed(source: str, old: str, new: str) -> str:
    """`source` with one place changed."""
    assert source.count(old) == 1, f"{old!r} stands {source.count(old)} times in {source}"
    return source.replace(old, new)


def everywhere(source: str, old: str, new: str) -> str:
    """`source` with several places changed in the same way."""
    assert source.count(old) > 1, f"{old!r} stands {source.count(old)} times in {source}"
    return source.replace(old, new)


def blank(exercise: str, head: str = "") -> Wrong:
    """The exercise as it was handed out; `head` opens a class."""
    head = head or f"def {exercise}(*args):\n"
    return Wrong("blank", f"{head}    raise NotImplementedError()", "not written yet")
