"""Exercises come from one source, in nbgrader's format; a file is graded by its answers alone."""

import copy
import io
import json
import re
import shutil
import sys
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import nbformat
import psutil
import pytest
import torch
from cover import NIGHTLY

from zerolab.course import generate, notebooks
from zerolab.course.exercises import LESSONS
from zerolab.course.grade import CheckFailed, cells, check, checks, cli, run, runner, worker
from zerolab.course.grade.cells import (
    grade_id,
    is_answer,
    is_check,
    is_locked,
    read_notebook,
    role,
    text_of,
)
from zerolab.course.grade.check import Failed, next_hint
from zerolab.course.grade.referee import Verdict
from zerolab.course.grade.report import Graded, as_json, as_markdown
from zerolab.course.grade.run import progress
from zerolab.course.grade.submission import Submission, compare, find_notebooks, read_submission
from zerolab.course.judge import observe
from zerolab.course.judge.bounds import NOT_WRITTEN, offence
from zerolab.course.judge.case import (
    Case,
    Observation,
    Other,
    Record,
    Trouble,
    observation_from_json,
    observation_to_json,
)
from zerolab.course.judge.exercise import Claim, Exercise
from zerolab.course.judge.verdict import Finding
from zerolab.errors import InputError, RankError

ROOT = Path(__file__).resolve().parents[3]
LESSON = "01_ring_collectives"
SOLUTION = ROOT / "solutions" / f"{LESSON}.ipynb"
EXERCISE = ROOT / "exercises" / f"{LESSON}.ipynb"


@pytest.fixture
def solution() -> nbformat.NotebookNode:
    return read_notebook(SOLUTION)


def cell_named(notebook: nbformat.NotebookNode, name: str) -> nbformat.NotebookNode:
    return next(cell for cell in notebook.cells if grade_id(cell) == name)


# Generation


@pytest.mark.parametrize("lesson", LESSONS)
def test_exercises_are_in_step_with_their_source(lesson: str) -> None:
    made = text_of(generate.exercise_from(read_notebook(ROOT / "solutions" / f"{lesson}.ipynb")))
    assert (ROOT / "exercises" / f"{lesson}.ipynb").read_text() == made, "run `make notebooks`"


@pytest.mark.parametrize("lesson", LESSONS)
def test_an_exercise_holds_no_answer_no_marker_and_no_output(lesson: str) -> None:
    solution, exercise = of(lesson), read_notebook(ROOT / "exercises" / f"{lesson}.ipynb")
    text = text_of(exercise)
    assert cells.BEGIN not in text and cells.END not in text and 'outputs": [\n' not in text
    for cell in solution.cells:
        if is_answer(cell):
            inside = cell.source.split(cells.BEGIN)[1].split(cells.END)[0]
            hidden = [line.strip() for line in inside.splitlines()[1:-1] if len(line.strip()) > 24]
            assert hidden, f"{grade_id(cell)} has no line to hide"
            shown = cell_named(exercise, grade_id(cell)).source
            assert not [line for line in hidden if line in shown]


@pytest.mark.parametrize("lesson", LESSONS)
def test_an_exercise_is_what_nbgrader_makes_of_its_source(lesson: str) -> None:
    solution = of(lesson)
    preprocessors = pytest.importorskip("nbgrader.preprocessors", reason="the instructor extra is not installed")
    names = ["LockCells", "ClearSolutions", "ClearOutput", "CheckCellMetadata", "ComputeChecksums"]
    names += ["ClearHiddenTests", "ClearMarkScheme", "ComputeChecksums", "CheckCellMetadata"]
    theirs, resources = copy.deepcopy(solution), {}
    for name in names:
        theirs, resources = getattr(preprocessors, name)().preprocess(theirs, resources)
    ours = generate.exercise_from(solution)
    del ours.metadata["zerolab"]["digest"]
    assert text_of(ours) == text_of(theirs)


def test_a_worked_exercise_is_not_overwritten(tmp_path: Path) -> None:
    target = tmp_path / "exercise.ipynb"
    assert generate.write_exercise(SOLUTION, target) and not generate.write_exercise(SOLUTION, target)
    notebook = read_notebook(target)
    cell_named(notebook, "ring_bytes").source = "def ring_bytes(*numbers):\n    return 0"
    target.write_text(text_of(notebook))
    with pytest.raises(InputError, match="holds answers or edits; move it away, or overwrite it with --force"):
        generate.write_exercise(SOLUTION, target)
    assert "return 0" in target.read_text()
    assert generate.write_exercise(SOLUTION, target, force=True)
    assert target.read_text() == EXERCISE.read_text()


def test_an_exercise_that_was_only_run_is_made_anew(tmp_path: Path) -> None:
    target = tmp_path / "exercise.ipynb"
    generate.write_exercise(SOLUTION, target)
    notebook = read_notebook(target)
    cell_named(notebook, "setup").execution_count = 7
    target.write_text(text_of(notebook))
    assert generate.write_exercise(SOLUTION, target)


def test_the_command_makes_exercises_of_any_tree(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "solutions").mkdir()
    (tmp_path / "solutions" / SOLUTION.name).write_text(SOLUTION.read_text())
    assert notebooks.main(["--root", str(tmp_path), "--no-run"]) == 0
    assert (tmp_path / "exercises" / SOLUTION.name).read_text() == EXERCISE.read_text()
    assert notebooks.main(["--root", str(tmp_path), "--no-run", "nothing-like-it"]) == 2
    assert "no notebook" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("### BEGIN SOLUTION\n1", "does not end it"),
        ("### BEGIN SOLUTION\n### BEGIN SOLUTION\n### END SOLUTION", "inside a solution"),
    ],
)
def test_markers_that_do_not_pair_are_refused(solution: nbformat.NotebookNode, source: str, says: str) -> None:
    cell_named(solution, "ring_bytes").source = source
    with pytest.raises(InputError, match=says):
        generate.exercise_from(solution)


def test_a_source_that_cannot_be_graded_is_refused(solution: nbformat.NotebookNode) -> None:
    generate.check_source(solution)
    without = copy.deepcopy(solution)
    without.cells = [cell for cell in without.cells if grade_id(cell) != "check_ring_bytes"]
    with pytest.raises(InputError, match="ring_bytes"):
        generate.check_source(without)
    solution.cells.append(copy.deepcopy(cell_named(solution, "setup")))
    with pytest.raises(InputError, match="used twice"):
        generate.check_source(solution)


@pytest.mark.parametrize("lesson", LESSONS)
def test_every_exercise_has_a_check_a_line_count_and_hints(lesson: str) -> None:
    solution = of(lesson)
    answers = [grade_id(cell) for cell in solution.cells if is_answer(cell)]
    assert answers == [exercise.name for exercise in LESSONS[lesson]]
    assert {exercise.name for exercise in LESSONS[lesson] if not exercise.hints} == set()
    text = "\n".join(cell.source for cell in solution.cells if cell.cell_type == "markdown")
    assert len(re.findall(r"About\s\w+\slines?", text)) >= len(answers), "an expected line count for each"
    checked = [cell for cell in solution.cells if is_check(cell)]
    table = {name: int(points) for name, points in re.findall(r"^\| \d+ \| `(\w+)`.*\| (\d+) \|$", text, re.MULTILINE)}
    assert table == {grade_id(cell).removeprefix("check_"): role(cell)["points"] for cell in checked}
    assert table == {exercise.name: exercise.points for exercise in LESSONS[lesson]}


# What is handed in


def test_edited_and_deleted_cells_are_put_back(solution: nbformat.NotebookNode) -> None:
    handed_in = generate.exercise_from(solution)
    cell_named(handed_in, "helpers").source = "def chunk(*anything): return None"
    handed_in.cells = [cell for cell in handed_in.cells if grade_id(cell) != "setup"]
    submission = compare(handed_in, solution, LESSON)
    assert submission.restored == ("setup", "helpers")
    sources = {step.name: step.source for step in submission.steps}
    assert sources["helpers"] == cell_named(solution, "helpers").source


def test_an_answer_or_a_check_that_is_missing_scores_nothing_and_says_so(solution: nbformat.NotebookNode) -> None:
    handed_in = copy.deepcopy(solution)
    gone = {"chunk_bounds", "check_ring_bytes"}
    handed_in.cells = [cell for cell in handed_in.cells if grade_id(cell) not in gone]
    handed_in.cells.append(copy.deepcopy(cell_named(handed_in, "mended_broadcast")))
    refusals = {step.name: step.refusal for step in compare(handed_in, solution, LESSON).steps if step.refusal}
    assert set(refusals) == {"chunk_bounds", "ring_bytes", "mended_broadcast"}
    assert "is missing" in refusals["chunk_bounds"] and "check_ring_bytes is missing" in refusals["ring_bytes"]
    assert "2 cells" in refusals["mended_broadcast"]


def test_a_learners_other_cells_are_not_run(solution: nbformat.NotebookNode) -> None:
    solution.cells.insert(0, nbformat.v4.new_code_cell("raise SystemExit"))
    names = [step.name for step in compare(solution, read_notebook(SOLUTION), LESSON).steps]
    assert names == [
        grade_id(c) for c in read_notebook(SOLUTION).cells if is_answer(c) or (is_locked(c) and not is_check(c))
    ]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "there is no file"),
        ("", "is not a notebook that can be read"),
        ("{}", "is not a notebook that can be read"),
        ('{"cells": 3, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}', "is not a notebook that can be read"),
        ('{"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}', "is no exercise of the course"),
        (b"\xff\xfe\x00", "is not a notebook that can be read"),
        ("[" * 9999, "is not a notebook that can be read"),
        ('{"cells": [7], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}', "is not a notebook that can be read"),
        (
            '{"cells": [], "metadata": {"zerolab": 7}, "nbformat": 4, "nbformat_minor": 5}',
            "is no exercise of the course",
        ),
        ('{"worksheets": [], "metadata": {}, "nbformat": 3, "nbformat_minor": 0}', "has notebook format 3"),
    ],
)
def test_a_file_that_cannot_be_graded_is_refused_in_one_sentence(
    content: str | bytes | None, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.ipynb"
    if content is not None:
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    assert cli.main([str(path)]) == 2
    said = capsys.readouterr().err
    assert says in said and said.count("\n") == 1 and "Traceback" not in said


@pytest.mark.parametrize("role", [None, 7, [], "answer"])
def test_metadata_of_another_kind_are_no_role(role: Any, tmp_path: Path) -> None:
    notebook = json.loads(EXERCISE.read_text())
    for cell in notebook["cells"]:
        if "nbgrader" in cell["metadata"]:
            cell["metadata"]["nbgrader"] = role
    path = tmp_path / "mine.ipynb"
    path.write_text(json.dumps(notebook))
    steps = read_submission(path).steps
    assert all("is missing" in step.refusal for step in steps if step.graded) and any(step.graded for step in steps)


@pytest.mark.parametrize("points", [None, "many", [], 10**400, True])
def test_a_check_whose_points_a_learner_changed_is_put_back(points: Any, solution: nbformat.NotebookNode) -> None:
    given = role(cell_named(solution, "check_ring_bytes"))
    given.pop("points") if points is None else given.update(points=points)
    assert compare(solution, read_notebook(SOLUTION), LESSON).restored == ("check_ring_bytes",)


def test_the_source_of_another_lesson_is_refused() -> None:
    with pytest.raises(InputError, match=r"02_flat_buffers.ipynb is the source of another lesson \(02_flat_buffers\)"):
        read_submission(EXERCISE, ROOT / "solutions" / "02_flat_buffers.ipynb")


def test_a_renamed_file_is_known_by_its_lesson(tmp_path: Path) -> None:
    path = tmp_path / "homework of the week.ipynb"
    path.write_text(EXERCISE.read_text())
    assert read_submission(path).lesson == LESSON


@pytest.mark.parametrize("flags", [["--seconds", "0"], ["--memory-mb", "-1"], ["--json", "no/such/folder/grade.json"]])
def test_flags_that_cannot_work_are_refused_before_anything_runs(flags: list[str]) -> None:
    assert cli.main([str(EXERCISE), *flags]) == 2


# The grade

BY_DAY = ["01_ring_collectives", "07_offloading", "07b_when_it_pays", "08_checkpoints", "09_cost_and_scale"]


@pytest.mark.ranks
@pytest.mark.timeout(300)
def test_blank_exercises_score_nothing_and_solutions_everything(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All lessons nightly; by day some, of which those that write files do so behind the fence. `make nbval` runs the
    checks of all."""
    lessons = list(LESSONS) if NIGHTLY else BY_DAY
    most = sum(role(cell)["points"] for lesson in lessons for cell in of(lesson).cells if is_check(cell))
    count = sum(len(LESSONS[lesson]) for lesson in lessons)
    exercises, solutions = (tmp_path / name for name in ("exercises", "solutions"))
    for folder in (exercises, solutions):
        folder.mkdir()
        for lesson in lessons:
            shutil.copy(ROOT / folder.name / f"{lesson}.ipynb", folder)
    assert cli.main([str(exercises), "--json", str(tmp_path / "blank.json")]) == 1
    given = ["--json", str(tmp_path / "full.json"), "--markdown", str(tmp_path / "full.md")]
    assert cli.main([str(solutions), *given]) == 0
    blank, full = (json.loads((tmp_path / name).read_text()) for name in ("blank.json", "full.json"))
    assert (blank["score"], blank["max_score"], blank["status"]) == (0, most, "failed")
    assert (full["score"], full["max_score"], full["status"]) == (most, most, "passed")
    assert len(full["tests"]) == count and all("not written yet" in test["output"] for test in blank["tests"])
    shown, said = capsys.readouterr()
    assert said == f"zerolab grade: running {count} exercises\n" * 2, "a plain line where nobody watches"
    assert f"0 / {most:g}" in shown and f"{most:g} / {most:g}" in shown and "--seed" in shown
    assert all(f"graded the file {folder / SOLUTION.name}" in shown for folder in (exercises, solutions))
    assert f"**{most:g} / {most:g}** | |" in (tmp_path / "full.md").read_text()


def of(lesson: str) -> nbformat.NotebookNode:
    return read_notebook(ROOT / "solutions" / f"{lesson}.ipynb")


def test_a_terminal_gets_a_bar_that_names_the_exercise(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr("sys.stderr", Terminal())
    with progress(6) as watch:
        for name in ("chunk_bounds", "lay_out", "owned", "culprit", "ring_bytes"):
            watch(name)
    shown = sys.stderr.getvalue()
    assert "ring_bytes" in shown and "| 4 of 6" in shown and "running" not in shown


VERDICTS = (
    Verdict("a", 2, (Finding("it runs", True), Finding("bytes", True, "", 7, 8))),
    Verdict("b", 3, (Finding("it runs", False, "add x | y\nand z"), Finding("it is right", None))),
)


def graded(lesson: str) -> Graded:
    return Graded(Path(f"{lesson}.ipynb"), Submission(lesson, (), ()), VERDICTS)


def test_the_report_has_the_shape_of_gradescope() -> None:
    assert as_json([graded("01")]) == {
        "score": 2,
        "max_score": 5,
        "status": "failed",
        "tests": [
            {"name": "a", "score": 2, "max_score": 2, "status": "passed",
             "output": "a\n  ok  it runs\n      scoreboard         yours        target\n"
                       "  ok  bytes             7             8"},
            {"name": "b", "score": 0, "max_score": 3, "status": "failed",
             "output": "b\n  NO  it runs\n  --  it is right\nadd x | y\nand z"},
        ],
    }  # fmt: skip
    assert "| 01 | b | 0 / 3 | add x / y and z |" in as_markdown([graded("01")]), "a row is one line"


def test_several_notebooks_add_up_and_say_which_lesson_is_meant() -> None:
    both = as_json([graded("01"), graded("02")])
    assert (both["score"], both["max_score"]) == (4, 10)
    assert [test["name"] for test in both["tests"]] == ["01: a", "01: b", "02: a", "02: b"]
    assert as_markdown([graded("01"), graded("02")]).endswith("| | **together** | **4 / 10** | |\n")


def test_a_folder_stands_for_the_exercises_in_it(tmp_path: Path) -> None:
    mine = tmp_path / "my answers.ipynb"
    mine.write_text(EXERCISE.read_text())
    (tmp_path / "notes.ipynb").write_text(json.dumps(nbformat.v4.new_notebook()))
    assert find_notebooks([tmp_path, EXERCISE]) == [mine, EXERCISE]
    mine.unlink()
    handed_in = [tmp_path / student / "01" / EXERCISE.name for student in ("ada", "bob")]
    for theirs in handed_in:
        theirs.parent.mkdir(parents=True)
        theirs.write_text(EXERCISE.read_text())
    assert find_notebooks([tmp_path]) == handed_in, "as nbgrader collects them"
    for theirs in handed_in:
        theirs.unlink()
    with pytest.raises(InputError, match="no exercise of the course in the folder"):
        find_notebooks([tmp_path])


def test_a_folder_of_learners_folders_is_graded_without_the_copies_that_jupyter_keeps(tmp_path: Path) -> None:
    handed_in = [tmp_path / student / EXERCISE.name for student in ("ada", "bob")]
    for path in (*handed_in, tmp_path / "ada" / ".ipynb_checkpoints" / "01-checkpoint.ipynb", tmp_path / ".old.ipynb"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(EXERCISE.read_text())
    assert find_notebooks([tmp_path]) == handed_in


@pytest.mark.parametrize("broken", ["read_submission", "grade"])
def test_a_folder_with_one_broken_file_grades_the_others(
    broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails_first(*given: Any) -> Any:
        if tried.append(1) or len(tried) == 1:
            raise ValueError("40 is not a valid Signals")
        return real(*given)

    tried: list[int] = []
    monkeypatch.setattr(run, "grade", lambda *given: VERDICTS)
    real = getattr(run, broken)
    monkeypatch.setattr(run, broken, fails_first)
    assert cli.main([str(EXERCISE), str(SOLUTION), "--json", str(tmp_path / "out.json")]) == 2
    assert f"{EXERCISE} could not be graded: ValueError: 40 is not a valid" in capsys.readouterr().err
    assert json.loads((tmp_path / "out.json").read_text())["max_score"] == 5


def test_where_the_machine_fails_at_the_first_file_all_that_was_refused_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*given: Any) -> None:
        raise RankError("the model answer to ring_bytes fails here, too")

    monkeypatch.setattr(run, "grade", fails)
    (tmp_path / "torn.ipynb").write_text("{")
    assert cli.main([str(tmp_path / "torn.ipynb"), str(EXERCISE)]) == 2
    said = capsys.readouterr().err
    assert "torn.ipynb could not be graded" in said and "ring_bytes fails here, too" in said


def test_one_source_is_not_for_two_notebooks(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([str(EXERCISE), str(EXERCISE), "--source", str(SOLUTION)]) == 2
    assert "--source is the source of one notebook" in capsys.readouterr().err


def test_a_verdict_without_findings_is_no_pass() -> None:
    assert not Verdict("a", 1, ()).passed and not Verdict("a", 1, (Finding("it runs", None),)).passed


def test_a_process_that_cannot_be_started_is_told_in_one_sentence_and_leaves_no_pipe(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(*given: Any) -> None:
        raise EOFError("unexpected EOF")

    monkeypatch.setattr(runner, "start_process", refused)
    before = psutil.Process().num_fds()
    with pytest.raises(RankError, match=r"could not be started \(unexpected EOF\); see whether memory, open files and"):
        runner.observe_apart(b"", 1)
    assert psutil.Process().num_fds() == before


def test_an_answer_whose_fence_does_not_stand_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def ends(status: int) -> None:
        raise SystemExit(status)

    for name, instead in {"settle": print, "fence": lambda folder: False, "version": lambda: 1}.items():
        monkeypatch.setattr(worker, name, instead)
    monkeypatch.setattr(worker, "limit", lambda megabytes: pytest.fail("it goes on"))
    monkeypatch.setattr(worker.gc, "freeze", lambda: None)
    monkeypatch.setattr(worker.os, "_exit", ends)
    with pytest.raises(SystemExit, match="1"):
        worker.main(worker.Cells(LESSON, [], 0, 1), SimpleNamespace(fileno=int), str(tmp_path), {})  # type: ignore[arg-type]


# What travels between the two processes


def test_observations_travel_as_json_and_come_back_whole() -> None:
    records = [Record(torch.arange(3.0), [torch.zeros(0), 4, None], [(1, 12)], [("barrier", 0)], 96, 4, 8)]
    for seen in (Observation(records), Observation(trouble=Trouble("NameError", "x", "line 2"))):
        back = observation_from_json(json.loads(json.dumps(observation_to_json(seen))))
        assert back.trouble == seen.trouble
        for before, after in zip(seen.records, back.records, strict=True):
            assert torch.equal(before.value, after.value) and before.value.dtype == after.value.dtype
            assert (before.sent, before.calls, before.peak, before.left, before.late, before.after[1:]) == (
                after.sent,
                after.calls,
                after.peak,
                after.left,
                after.late,
                after.after[1:],
            )


def test_values_that_are_no_data_travel_by_name_only() -> None:
    back = observation_from_json(observation_to_json(Observation([Record(object(), [], [])])))
    assert back.records[0].value == Other("object")


# The check in the notebook


def good_bytes(numel: int, itemsize: int, ranks: int, rank: int) -> int:
    def length(of: int) -> int:
        return numel // ranks + (of % ranks < numel % ranks)

    return (2 * numel - length(rank) - length(rank + 1)) * itemsize


def test_a_check_prints_the_same_lines_for_every_draw(capsys: pytest.CaptureFixture[str]) -> None:
    texts = []
    for _ in range(2):
        checks(LESSON).ring_bytes(good_bytes)
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1]
    assert texts[0].splitlines()[1:] == [
        "  ok  it runs to the end",
        "  ok  it returns a whole number",
        "  ok  what you predict is what the meter counts",
        "  ok  its arguments stay as they were",
        "  ok  a second call begins anew",
        "ring_bytes holds: 1 of 1 point.",
    ]


def test_what_keeps_a_check_from_judging_is_a_sentence_without_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*given: Any) -> None:
        raise RankError("the model answer to ring_bytes does not come to its end here")

    monkeypatch.setattr(check, "observe_function", lambda *given: [])
    monkeypatch.setattr(check, "judge", fails)
    with pytest.raises(CheckFailed, match="ring_bytes could not be checked: the model answer to ring_bytes does not"):
        checks(LESSON).ring_bytes(good_bytes)


def test_a_lambda_that_is_cut_out_of_its_line_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[Any] = []
    answers = {
        "bytes": lambda numel, itemsize, ranks, rank: 0,
    }
    monkeypatch.setattr(check, "observe_function", lambda exercise, fn, cases: ran.append(fn) or [])
    with pytest.raises(CheckFailed, match="it ended before every case had run"):
        checks(LESSON).ring_bytes(answers["bytes"])
    assert ran == [answers["bytes"]]


def test_a_check_raises_a_hint_without_a_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(CheckFailed, match=r"ring_bytes does not hold yet: .* the meter counts") as caught:
        checks(LESSON).ring_bytes(lambda numel, itemsize, ranks, rank: 0)
    assert caught.value._render_traceback_() == [str(caught.value)]
    assert "  NO  what you predict" in capsys.readouterr().out


def test_the_same_mistake_again_brings_one_more_hint_and_another_mistake_none() -> None:
    mine = checks(LESSON)
    hints = LESSONS[LESSON][4].hints

    def told(fn) -> str:  # type: ignore[no-untyped-def]
        with pytest.raises(CheckFailed) as caught:
            mine.ring_bytes(fn)
        return str(caught.value)

    def wrong(numel: int, itemsize: int, ranks: int, rank: int) -> int:
        return -1

    def broken(*numbers: int) -> int:
        raise ValueError("no")

    texts = [told(wrong) for _ in range(len(hints) + 2)]
    assert "Hint" not in texts[0]
    for number, text in enumerate(texts[1:], start=1):
        given = min(number, len(hints))
        assert text.endswith(f"\nHint {given} of {len(hints)}: {hints[given - 1]}")
    assert "Hint" not in told(broken) and "Hint" not in told(wrong)
    assert "Hint" not in str(told(lambda *numbers: (_ for _ in ()).throw(NotImplementedError)))


def test_a_claim_with_hints_of_its_own_gives_those() -> None:
    claims = (Claim("it is right", nothing_said, ("Of its own.",)), Claim("it is fast", nothing_said))
    exercise = Exercise("any", lambda rng: [], claims, hints=("First.", "Second."))
    failed: dict[str, Failed] = {}
    said = [next_hint(exercise, claim, failed) for claim in ("it is fast", "it is fast", "it is right", "it is right")]
    assert said == ["", "\nHint 1 of 2: First.", "", "\nHint 1 of 3: Of its own."]
    assert next_hint(exercise, "it is right", failed) == "\nHint 2 of 3: First."
    assert next_hint(exercise, "it is fast", failed) == ""
    assert next_hint(exercise, "it is fast", failed) == "\nHint 2 of 2: Second.", "counted apart"


def test_whoever_fails_in_the_same_way_again_and_again_gets_two_hints() -> None:
    claims = [(one, claim) for of in LESSONS.values() for one in of for claim in (*one.claims, *one.scores)]
    single = {one.name for one, claim in claims if len({*getattr(claim, "hints", ()), *one.hints}) < 2}
    assert single == {"in_flight", "accumulate", "clip_", "MendedBackward"}, "of these one says all"


def unwritten(numel: int, itemsize: int, ranks: int, rank: int) -> int:
    """The bytes that a rank sends."""
    # YOUR CODE HERE
    raise NotImplementedError()


def test_what_is_not_written_yet_is_told_before_any_process_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "start_process", lambda *args: pytest.fail("a process was started"))
    for _ in range(2):
        with pytest.raises(CheckFailed) as caught:
            checks(LESSON).ring_bytes(unwritten)
        assert str(caught.value) == (
            "ring_bytes does not hold yet: not written yet: put your code where it says YOUR CODE HERE"
        )


STUB = "        raise NotImplementedError"


@pytest.mark.parametrize(
    ("source", "blank"),
    [
        ("def f(x):\n    'It is due.'\n    # YOUR CODE HERE\n    raise NotImplementedError()", True),
        ("class f:\n    def a(self): return 1\n    def b(self):\n        # YOUR CODE HERE\n" + STUB, True),
        ("class f:\n    def a(self):\n        return 1\n    def b(self):\n        raise NotImplementedError", False),
        ("def f(x):\n    # YOUR CODE HERE\n    raise NotImplementedError()\ndef f(x):\n    return x", False),
        ("def f(x):\n    return x\ndef f(x):\n    # YOUR CODE HERE\n    raise NotImplementedError()", True),
        ("def f(x):\n    return x\n    raise NotImplementedError()", False),
        ("def f(x):\n    if x: raise NotImplementedError()\n    return x", False),
        ("class Base:\n    def a(self): raise NotImplementedError()\nclass f(Base):\n    pass", False),
        ("def f(x):\n    raise ValueError()", False),
    ],
)
def test_only_a_stub_is_not_written_yet(source: str, blank: bool) -> None:
    assert offence(source, "f") == (NOT_WRITTEN if blank else None)


def nothing_said(case: Case, seen: Observation) -> None:
    return None


def test_what_is_returned_twice_does_not_make_up_for_what_is_kept() -> None:
    row = torch.zeros(10)
    assert observe.returned_bytes([row, row]) == 40
    assert observe.returned_bytes([row.view(2, 5), row.view(5, 2), row[:3]]) == 40
    assert observe.returned_bytes([row[:3], torch.zeros(4)]) == 28


def test_a_clock_that_ran_out_while_others_computed_is_wound_again(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[float] = []

    def late(*given: Any, timeout: float, **where: Any) -> None:
        tried.append(timeout)
        raise RankError(f"the ranks did not finish within {timeout:g} s")

    monkeypatch.setattr(observe, "launch", late)
    exercise = LESSONS[LESSON][0]
    seen = observe.observe(exercise, good_bytes, exercise.cases(Random(0))[0])
    assert seen.trouble is not None and seen.trouble.kind == "TimeOut"
    assert tried == [observe.CASE_SECONDS, 4 * observe.CASE_SECONDS]
    tried.clear()
    two = exercise.drawn(0)[-2:]
    next(observe.observe_series(exercise, b"", two[1:]))
    calls = sum(case.ranks for case in (two[1].before, two[1]))  # one process makes the calls of all ranks
    assert tried == [calls * observe.CASE_SECONDS, 4 * calls * observe.CASE_SECONDS]


def test_a_check_refuses_what_is_no_function_and_names_its_exercises() -> None:
    with pytest.raises(InputError, match="pass your function itself"):
        checks(LESSON).ring_bytes(7)
    with pytest.raises(AttributeError, match="chunk_bounds, ring_reduce_scatter"):
        _ = checks(LESSON).no_such_exercise
    with pytest.raises(InputError, match="choose one of"):
        checks("99_nothing")
    assert "ring_all_gather" in dir(checks(LESSON))


def test_a_hint_names_the_line_of_the_learners_own_code() -> None:
    text = 'File "<answer ring_bytes>", line 3, in ring_bytes\n  File "/lib/torch/functional.py", line 9, in add\n'
    assert observe.where(text) == "line 3, in ring_bytes"
    assert observe.where("nothing of the learner's") == ""
