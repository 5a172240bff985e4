"""What a notebook of exercises is made of: its `lesson.md`, in MyST markdown, and the files of its exercises.

In `lesson.md` stand the text between exercises and the cells that are given; a line `{exercise} lay_out` stands for
an exercise: its heading and text, its answer between marks, its check. A code cell with a `name` is the teacher's, and
locked. Cells are called by these names, and text by its number, unless they say `id` themselves.
"""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from zerolab.course.exercises import LESSONS
from zerolab.course.judge.case import plural
from zerolab.course.judge.exercise import Exercise

if TYPE_CHECKING:
    from nbformat import NotebookNode

DIRECTIVE = re.compile(r"```\{exercise\} (\w+)\n```\n")
CELL = "```{code-cell}\n"
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}


def build_solution(lesson: str) -> NotebookNode:
    """The notebook with all answers, without outputs."""
    import jupytext
    from nbformat import NotebookNode

    house = import_module(LESSONS[lesson][0].answer[0].__module__).__package__
    assert house is not None
    folder = Path(str(import_module(house).__file__)).parent
    exercises = {exercise.name: number for number, exercise in enumerate(LESSONS[lesson], 1)}

    def expand(found: re.Match[str]) -> str:
        number = exercises[found[1]]
        return text_of_exercise(number, LESSONS[lesson][number - 1])

    notebook = jupytext.reads(DIRECTIVE.sub(expand, (folder / "lesson.md").read_text("utf-8")), fmt="md:myst")
    prefix = notebook.metadata.pop("ids", "")
    texts = 0
    for place, cell in enumerate(notebook.cells, 1):
        texts += cell.cell_type == "markdown"
        name = cell.metadata.pop("name", "")
        called = f"{prefix}{place:02}" if prefix else name.replace("_", "-") or f"text-{texts}"
        cell.id = cell.metadata.pop("id", called)
        if name:
            cell.metadata["nbgrader"] = NotebookNode(role_of(name, cell.metadata.pop("role", ""), LESSONS[lesson]))
    notebook.metadata = NotebookNode(
        {"kernelspec": KERNEL, "language_info": {"name": "python"}, "zerolab": {"lesson": lesson}}
    )
    notebook.nbformat_minor = 5
    return notebook


def text_of_exercise(number: int, exercise: Exercise) -> str:
    """An exercise as MyST."""
    title, _, text = exercise.text.strip("\n").partition("\n")
    source = "\n\n\n".join(inspect.getsource(part).rstrip("\n") for part in exercise.answer)
    return (
        f"## {number}. {title} ({plural(exercise.points, 'point')})\n{text}\n\n"
        f"{CELL}:name: {exercise.name}\n:role: answer\n\n{source}\n```\n\n"
        f"{CELL}:name: check_{exercise.name}\n:role: check\n\ncheck.{exercise.name}({exercise.name})\n```\n"
    )


def role_of(name: str, role: str, exercises: tuple[Exercise, ...]) -> dict[str, object]:
    """A cell's metadata for nbgrader."""
    found: dict[str, object] = {"grade": role == "check", "grade_id": name, "locked": role != "answer"}
    if role == "check":
        found["points"] = next(one.points for one in exercises if f"check_{one.name}" == name)
    return {**found, "schema_version": 3, "solution": role == "answer", "task": False}
