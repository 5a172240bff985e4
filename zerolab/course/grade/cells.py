"""Cells of graded notebooks, in nbgrader's format (schema 3): roles, the hole where an answer goes, checksums.

nbgrader can assign, collect and grade what is made here, and is not needed for it. Roles, by `metadata.nbgrader`:

    answer     solution, not grade        the learner's; the source keeps a model answer between markers
    check      grade, not solution        points stand here; locked
    read-only  locked                     set-up that answers rely on
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zerolab.errors import InputError

if TYPE_CHECKING:
    from nbformat import NotebookNode

BEGIN, END = "BEGIN SOLUTION", "END SOLUTION"
STUB = {"code": ["# YOUR CODE HERE", "raise NotImplementedError()"], "markdown": ["YOUR ANSWER HERE"]}


def role(cell: NotebookNode) -> dict[str, Any]:
    """A cell's nbgrader metadata; empty for an ordinary cell."""
    return data_of(cell, "nbgrader")


def data_of(part: NotebookNode, name: str) -> dict[str, Any]:
    """What metadata say under a name; empty where that is no object, since anybody may write into a notebook."""
    found = part.metadata.get(name)
    return found if isinstance(found, dict) else {}


def grade_id(cell: NotebookNode) -> str:
    return str(role(cell).get("grade_id", ""))


def is_answer(cell: NotebookNode) -> bool:
    return bool(role(cell).get("solution"))


def is_check(cell: NotebookNode) -> bool:
    return bool(role(cell).get("grade")) and not is_answer(cell)


def is_locked(cell: NotebookNode) -> bool:
    """Whether its text is the teacher's, and is restored before grading."""
    return is_check(cell) or (bool(role(cell).get("locked")) and not is_answer(cell))


def read_notebook(path: Path) -> NotebookNode:
    """The notebook in a file, whole and valid, or an InputError that says what is wrong with it."""
    if not path.is_file():
        raise InputError(f"there is no file {path}; name a notebook, such as exercises/01_ring_collectives.ipynb")
    # A grammar of web addresses, which no notebook asks for, and which takes seconds to parse.
    sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]
    import nbformat

    try:
        notebook = nbformat.reads(path.read_text(encoding="utf-8"), as_version=nbformat.NO_CONVERT)
        nbformat.validate(notebook)
    except Exception as error:  # nbformat raises what its parsers raise
        said = next(iter(str(error).splitlines()), type(error).__name__)[:120]
        raise InputError(f"{path} is not a notebook that can be read ({said}); save it again from Jupyter") from None
    if notebook.nbformat != 4:
        raise InputError(f"{path} has notebook format {notebook.nbformat}; save it from a Jupyter that writes format 4")
    return notebook


def text_of(notebook: NotebookNode) -> str:
    import nbformat

    return nbformat.writes(notebook).rstrip("\n") + "\n"


def strip_answer(cell: NotebookNode) -> None:
    """Put the stub in the place of the lines between the markers, or of all lines of an answer without markers."""
    lines: list[str] = []
    inside = found = False
    for line in cell.source.split("\n"):
        if BEGIN in line:
            if inside:
                raise InputError(f"cell {grade_id(cell)!r} begins a solution inside a solution; end the first one")
            inside = found = True
            indent = line[: len(line) - len(line.lstrip())]
            lines += [indent + stub for stub in STUB[cell.cell_type]]
        elif END in line:
            inside = False
        elif not inside:
            lines.append(line)
    if inside:
        raise InputError(f"cell {grade_id(cell)!r} begins a solution and does not end it; add a line ### {END}")
    if found and not is_answer(cell):
        raise InputError("a cell holds a solution but is not marked as one; set solution in its nbgrader metadata")
    if is_answer(cell):
        cell.source = "\n".join(lines if found else STUB[cell.cell_type])


def lock(cell: NotebookNode) -> None:
    if is_answer(cell) or is_locked(cell):
        cell.metadata["deletable"] = False
    if is_locked(cell):
        cell.metadata["editable"] = False


def checksum(cell: NotebookNode) -> str:
    """nbgrader's checksum of a cell: its text, type, roles and name, and its points if it has some."""
    graded = bool(role(cell).get("grade"))
    parts = [cell.source, cell.cell_type, graded, is_answer(cell), is_locked(cell), grade_id(cell)]
    points = role(cell).get("points")
    # As nbgrader has it, a float; in what is handed in anything may stand there.
    parts += [f"{points}.0" if isinstance(points, int) else points] if graded else []
    text = "".join(map(str, parts)).encode("utf-8", "surrogatepass")
    return hashlib.md5(text, usedforsecurity=False).hexdigest()


def seal(cell: NotebookNode) -> None:
    if is_answer(cell) or is_locked(cell):
        cell.metadata["nbgrader"]["checksum"] = checksum(cell)
        cell.metadata["nbgrader"]["cell_type"] = cell.cell_type
