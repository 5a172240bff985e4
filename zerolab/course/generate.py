"""Makes an exercise from its source: the solution's notebook, with holes where the answers are and no outputs.

An exercise carries a digest of its cells. A file whose cells no longer give that digest holds somebody's work, and is
not overwritten unless one insists.
"""

from __future__ import annotations

import copy
import hashlib
from pathlib import Path

from nbformat import NotebookNode

from zerolab.course.grade.cells import is_answer, is_check, lock, read_notebook, role, seal, strip_answer, text_of
from zerolab.errors import InputError


def exercise_from(solution: NotebookNode) -> NotebookNode:
    """The exercise that belongs to a solution; the solution stays as it is."""
    exercise = copy.deepcopy(solution)
    for cell in exercise.cells:
        lock(cell)
        strip_answer(cell)
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
        seal(cell)
    exercise.metadata.setdefault("zerolab", {})["digest"] = digest(exercise)
    return exercise


def digest(notebook: NotebookNode) -> str:
    """A digest of the cells' texts and types. Outputs and the order of keys do not count."""
    found = hashlib.sha256()
    for cell in notebook.cells:
        found.update(f"{cell.cell_type}\0{cell.source}\0".encode("utf-8", "surrogatepass"))
    return found.hexdigest()[:16]


def is_edited(exercise: NotebookNode) -> bool:
    """Whether somebody has worked in a generated exercise."""
    return exercise.metadata.get("zerolab", {}).get("digest") != digest(exercise)


def write_exercise(solution: Path, exercise: Path, force: bool = False) -> bool:
    """Generate `exercise` from `solution`; whether the file changed. Somebody's work is refused without `force`."""
    text = text_of(exercise_from(read_notebook(solution)))
    if exercise.exists():
        if exercise.read_text(encoding="utf-8") == text:
            return False
        if not force and is_edited(read_notebook(exercise)):
            raise InputError(f"{exercise} holds answers or edits; move it away, or overwrite it with --force")
    exercise.parent.mkdir(exist_ok=True)
    exercise.write_text(text, encoding="utf-8")
    return True


def check_source(solution: NotebookNode) -> None:
    """Refuse a source whose cells could not be graded: names missing or used twice, answers without a check."""
    names = [str(role(cell).get("grade_id", "")) for cell in solution.cells if role(cell)]
    twice = {name for name in names if names.count(name) > 1}
    if twice or "" in names:
        raise InputError(
            f"grade_id {min(twice, default='')!r} is missing or used twice; each graded cell needs its own"
        )
    answers = {str(role(cell)["grade_id"]) for cell in solution.cells if is_answer(cell)}
    checked = {str(role(cell)["grade_id"]).removeprefix("check_") for cell in solution.cells if is_check(cell)}
    if answers != checked:
        raise InputError(f"answers {sorted(answers ^ checked)} have no check cell named check_ANSWER, or the reverse")
