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


def read_wrong(path: Path, model: str) -> list[Wrong]:
    """The wrong answers in a file of ours: after `===` a name, a line with a piece of the hint, and what is changed in
    the model answer, as in a diff without context, or a whole program."""
    found = []
    for part in path.read_text("utf-8").split("=== ")[1:]:
        name, hint, *lines = part.removesuffix("\n").split("\n")
        found.append(Wrong(name, patched(model.split("\n"), lines), hint))
    return found


def patched(kept: list[str], lines: list[str]) -> str:
    """The model's lines after a diff."""
    starts = [at for at, line in enumerate(lines) if line.startswith("@@ ")]
    if lines[0] == "@@ whole":
        return "\n".join(line[1:] for line in lines[1:])
    # From the end on, so that the numbers of lines before hold.
    for start, stop in zip(reversed(starts), [None, *reversed(starts[1:])], strict=True):
        first, count = map(int, lines[start].split()[1:])
        place = slice(first - 1, first - 1 + count) if count else slice(first, first)
        gone, new = ([line[1:] for line in lines[start + 1 : stop] if line[0] == sign] for sign in "-+")
        assert kept[place] == gone, f"{kept[place]} where {gone} was: the model answer has changed, write it anew"
        kept[place] = new
    return "\n".join(kept)


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
