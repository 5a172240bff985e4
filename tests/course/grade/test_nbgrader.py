"""The same notebooks go through nbgrader itself: assigned, handed in, graded, exported."""

import csv
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from cover import nightly

from zerolab.course.exercises import LESSONS
from zerolab.course.grade.cells import is_check, read_notebook, role

ROOT = Path(__file__).resolve().parents[3]
COURSE = "zero"
HANDED_IN = list(LESSONS) if os.environ.get("ZEROLAB_NIGHTLY") else list(LESSONS)[:1]
"""nbgrader takes six seconds for each; `make nightly` hands in all of them. All are released and compared, and run by
nbval and `zerolab grade`."""


@pytest.fixture
def course(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A course of nbgrader's with our solutions as its source."""
    pytest.importorskip("nbgrader", reason="the instructor extra is not installed")
    # nbgrader calls alembic by name.
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    source = tmp_path / "source" / COURSE
    source.mkdir(parents=True)
    for lesson in LESSONS:
        shutil.copy(ROOT / "solutions" / f"{lesson}.ipynb", source)
    (tmp_path / "nbgrader_config.py").write_text(
        f"c = get_config()\nc.CourseDirectory.course_id = 'zerolab'\nc.CourseDirectory.root = {str(tmp_path)!r}\n"
    )
    return tmp_path


def run(course: Path, *words: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "nbgrader", *words], cwd=course, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]


def hand_in(course: Path, student: str, folder: Path, lessons: Iterable[str] = LESSONS) -> None:
    target = course / "submitted" / student / COURSE
    target.mkdir(parents=True)
    for lesson in lessons:
        shutil.copy(folder / f"{lesson}.ipynb", target)


@nightly("a minute of nbgrader starting; by day test_notebooks.py holds cells to its format")
@pytest.mark.ranks
@pytest.mark.timeout(600)
def test_nbgrader_assigns_grades_and_exports_every_exercise(course: Path) -> None:
    run(course, "generate_assignment", COURSE)
    for lesson in LESSONS:
        released = read_notebook(course / "release" / COURSE / f"{lesson}.ipynb")
        assert released.cells == read_notebook(ROOT / "exercises" / f"{lesson}.ipynb").cells, lesson
    # One says how nbgrader sees a blank one; `zerolab grade` is held to all of them elsewhere.
    hand_in(course, "blank", ROOT / "exercises", list(LESSONS)[-1:])
    hand_in(course, "full", ROOT / "solutions", HANDED_IN)
    run(course, "autograde", COURSE)
    run(course, "export", "--to", "grades.csv")
    with (course / "grades.csv").open() as file:
        rows: dict[str, dict[str, Any]] = {row["student_id"]: row for row in csv.DictReader(file)}
    points = {lesson: points_of(ROOT / "solutions" / f"{lesson}.ipynb") for lesson in LESSONS}
    reached, most = sum(points[lesson] for lesson in HANDED_IN), sum(points.values())
    assert {name: (float(row["score"]), float(row["max_score"])) for name, row in rows.items()} == {
        "blank": (0, most),
        "full": (reached, most),
    }


def points_of(solution: Path) -> int:
    return sum(role(cell)["points"] for cell in read_notebook(solution).cells if is_check(cell))
