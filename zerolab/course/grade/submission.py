"""What a learner handed in, beside the source it was made from: answers are theirs, everything else is the source's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from zerolab.course.exercises import LESSONS
from zerolab.course.grade.cells import checksum, data_of, grade_id, is_answer, is_check, is_locked, read_notebook, role
from zerolab.course.judge.bounds import offence
from zerolab.errors import InputError

if TYPE_CHECKING:
    from nbformat import NotebookNode


@dataclass(frozen=True)
class Step:
    """A cell to run: set-up, or an answer, with the source's own as `model`; `refusal` says why it is not run."""

    name: str
    source: str
    graded: bool
    points: float = 0.0
    refusal: str = ""
    model: str = ""


@dataclass(frozen=True)
class Submission:
    """The steps of one file in the source's order, and what was put back to how it was."""

    lesson: str
    steps: tuple[Step, ...]
    restored: tuple[str, ...]


def find_notebooks(places: Sequence[Path]) -> list[Path]:
    """The files named, and of folders the exercises in them; other notebooks there are left alone."""
    found: list[Path] = []
    for place in places:
        # Those of nbgrader are in STUDENT/NN/; Jupyter keeps copies in hidden folders.
        levels = (sorted(filter(is_ours, place.glob("[!.]*/" * depth + "[!.]*.ipynb"))) for depth in range(3))
        inside = next(filter(None, levels), []) if place.is_dir() else [place]
        if not inside:
            raise InputError(f"there is no exercise of the course in the folder {place}; name a notebook")
        found += inside
    return found


def is_ours(path: Path) -> bool:
    """Whether a file in a folder is to be graded: an exercise of the course, or one that may be and cannot be read."""
    try:
        return lesson_of(read_notebook(path), path) in LESSONS
    except InputError:
        return True


def lesson_of(notebook: NotebookNode, path: Path) -> str:
    return str(data_of(notebook, "zerolab").get("lesson", path.stem))


def read_submission(path: Path, source: Path | None = None) -> Submission:
    handed_in = read_notebook(path)
    lesson = lesson_of(handed_in, path)
    if lesson not in LESSONS:
        raise InputError(f"{path} is no exercise of the course; name one like exercises/{next(iter(LESSONS))}.ipynb")
    made_from = read_notebook(source := source or find_source(path, lesson))
    if (other := lesson_of(made_from, source)) != lesson:
        raise InputError(f"{source} is the source of another lesson ({other}); give that of {lesson} as --source")
    return compare(handed_in, made_from, lesson)


def find_source(path: Path, lesson: str) -> Path:
    name = f"solutions/{lesson}.ipynb"
    for root in (Path(__file__).resolve().parents[3], path.resolve().parent.parent):
        if (root / name).is_file():
            return root / name
    raise InputError(
        f"there is no {name} beside {path}, and a grade takes points and set-up cells from there; give --source FILE, "
        f"where FILE is {name} of a checkout of the course (checks in the notebook need none)"
    )


def compare(handed_in: NotebookNode, source: NotebookNode, lesson: str) -> Submission:
    theirs: dict[str, list[NotebookNode]] = {}
    for cell in handed_in.cells:
        theirs.setdefault(grade_id(cell), []).append(cell)
    points = {grade_id(cell): float(role(cell)["points"]) for cell in source.cells if is_check(cell)}
    steps: list[Step] = []
    restored: list[str] = []
    for cell in source.cells:
        name = grade_id(cell)
        found = theirs.get(name, [])
        if is_answer(cell):
            check = f"check_{name}"
            text, why = (found[0].source if found else ""), refusal(name, found, check in theirs)
            steps.append(Step(name, text, True, points[check], why, cell.source))
        elif is_locked(cell):
            if not found or any(checksum(copy) != checksum(cell) for copy in found):
                restored.append(name)
            if not is_check(cell) and cell.cell_type == "code":
                steps.append(Step(name, cell.source, False))
    return Submission(lesson, tuple(steps), tuple(restored))


def refusal(name: str, found: list[NotebookNode], check_there: bool) -> str:
    """Why an answer scores nothing before it is run, or ''."""
    if len(found) > 1:
        return f"{len(found)} cells are called {name}: keep one of them"
    if not found or not check_there:
        gone = f"check cell check_{name}" if found else f"answer cell {name}"
        return f"the {gone} is missing: take it again from the exercise as it was handed out"
    trouble = offence(found[0].source, name)
    return trouble.message if trouble else ""
