"""What a notebook of exercises is made of: its `lesson.md`, in MyST markdown, and the files of its exercises.

In `lesson.md` stand the text between exercises and the cells that are given; a line `{exercise} lay_out` stands for
an exercise: its heading and text, its answer between marks, its check; and `{rules}`, with what answers may use, for
`rules.md`, which all lessons share. A code cell with a `name` is the teacher's, and
locked. Cells are called by these names, and text by its number, unless they say `id` themselves.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from zerolab.course.exercises import LESSONS
from zerolab.course.judge.case import plural
from zerolab.course.judge.exercise import Exercise

if TYPE_CHECKING:
    from nbformat import NotebookNode

EXERCISE = re.compile(r"```\{exercise\} (\w+)\n```\n")
RULES = re.compile(r"```\{rules\}\n((?:.+\n)+)```\n")
CELL = "```{code-cell}\n"
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}


def build(path: Path) -> NotebookNode | None:
    """The notebook that belongs at `path`, from its text, without outputs; None where it has no text."""
    text = path.parent / "text" / f"{path.stem}.md"
    if path.parent.name == "solutions" and path.stem in LESSONS:
        return build_solution(path.stem)
    return build_lesson(text.read_text("utf-8")) if text.exists() else None


def build_lesson(text: str) -> NotebookNode:
    """A lesson's notebook from its text, in which every cell says its `id`. Without outputs."""
    return read_cells(text, lambda place, texts, name: "")


def build_solution(lesson: str) -> NotebookNode:
    """The notebook of a lesson's exercises with all answers, without outputs."""
    from nbformat import NotebookNode

    exercises = {exercise.name: (number, exercise) for number, exercise in enumerate(LESSONS[lesson], 1)}
    house = import_module(LESSONS[lesson][0].answer[0].__module__)
    text = (Path(str(house.__file__)).parent / "lesson.md").read_text("utf-8")
    prefix = "".join(re.findall(r"\A---\n(?:.*\n)*?ids: (.*)\n", text))

    def name_cell(place: int, texts: int, name: str) -> str:
        return f"{prefix}{place:02}" if prefix else name.replace("_", "-") or f"text-{texts}"

    rules = (Path(__file__).parent / "exercises" / "rules.md").read_text("utf-8").replace("LESSON", lesson)
    text = RULES.sub(lambda found: rules.replace("USES\n", found[1]), text)
    notebook = read_cells(EXERCISE.sub(lambda found: text_of_exercise(*exercises[found[1]]), text), name_cell)
    for cell in notebook.cells:
        if name := cell.metadata.pop("name", ""):
            cell.metadata["nbgrader"] = NotebookNode(role_of(name, cell.metadata.pop("role", ""), LESSONS[lesson]))
    notebook.metadata["zerolab"] = NotebookNode({"lesson": lesson})
    return notebook


def read_cells(text: str, name_cell: Callable[[int, int, str], str]) -> NotebookNode:
    """MyST as a notebook. Where a cell says no `id`, `name_cell` does, of its place, the texts so far, and its name."""
    import jupytext
    from nbformat import NotebookNode

    notebook = jupytext.reads(text, fmt="md:myst")
    texts = 0
    for place, cell in enumerate(notebook.cells, 1):
        texts += cell.cell_type == "markdown"
        called = name_cell(place, texts, cell.metadata.get("name", ""))
        cell.id = cell.metadata.pop("id", called)
    notebook.metadata = NotebookNode({"kernelspec": KERNEL, "language_info": {"name": "python"}})
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
