"""Lessons and solutions keep the course's rules: short cells, all run, no output that differs between runs."""

import ast
import re
import sys
from pathlib import Path

import nbformat
import pytest
from cover import nightly
from said import SAID

from zerolab.course import notebooks
from zerolab.course.exercises import LESSONS as EXERCISES
from zerolab.course.grade.cells import read_notebook, text_of
from zerolab.course.source import build

ROOT = Path(__file__).resolve().parents[3]
sys.path.append(str(ROOT / "tools"))
import compared  # noqa: E402  (a script, not a part of the package)

LESSONS = sorted((ROOT / "notebooks").glob("*.ipynb"))
RUN = [*LESSONS, *sorted((ROOT / "solutions").glob("*.ipynb"))]
ALL = [*RUN, *sorted((ROOT / "exercises").glob("*.ipynb"))]
MOST_LINES = 20


def named(path: Path) -> str:
    return f"{path.parent.name}/{path.stem}"


def code_cells(path: Path) -> list[nbformat.NotebookNode]:
    return [cell for cell in read_notebook(path).cells if cell.cell_type == "code"]


def output_texts(cell: nbformat.NotebookNode) -> list[str]:
    texts = [output.get("text", "") for output in cell.outputs]
    return texts + [data for output in cell.outputs for kind, data in output.get("data", {}).items() if "text" in kind]


def faults(cell: nbformat.NotebookNode) -> list[str]:
    """What is wrong with an executed cell."""
    found = []
    # A learner never sees the markers of a model answer.
    lines = [line for line in cell.source.splitlines() if not re.search("(BEGIN|END) SOLUTION", line)]
    if len(lines) > MOST_LINES:
        found.append(f"more than {MOST_LINES} lines")
    if not cell.execution_count:
        found.append("not run")
    if sum(line.lstrip().startswith("print(") for line in lines) > 1:
        found.append("more than one print")
    if any(output.output_type == "error" for output in cell.outputs):
        found.append("ends in a traceback, which holds paths")
    if any(output.get("name") == "stderr" for output in cell.outputs):
        found.append("writes to standard error")
    for text in output_texts(cell):
        if re.search(r"(?<![\w.])/(?:home|tmp|usr|root|Users|opt|var)/", text):
            found.append("shows a path")
        if re.search(r"0x[0-9a-f]{6,}|ipykernel", text):
            found.append("shows an address")
    return found


@pytest.mark.parametrize("path", RUN, ids=named)
def test_cells_are_short_run_and_repeatable(path: Path) -> None:
    found = {cell.source[:60]: faults(cell) for cell in code_cells(path)}
    assert code_cells(path) and not {source: wrong for source, wrong in found.items() if wrong}


def test_the_rules_for_cells_can_fail() -> None:
    cell = nbformat.v4.new_code_cell("\n".join(["print(1)"] * 21))
    cell.outputs = [
        nbformat.v4.new_output("stream", name="stderr", text="see /tmp/x"),
        nbformat.v4.new_output("error", ename="E", evalue="", traceback=[]),
        nbformat.v4.new_output("execute_result", {"text/plain": "<object at 0x7f0123456789>"}),
    ]
    assert len(faults(cell)) == 7


@pytest.mark.parametrize("path", RUN, ids=named)
def test_cells_ran_in_order_in_a_fresh_kernel(path: Path) -> None:
    counts = [cell.execution_count for cell in code_cells(path)]
    assert counts == list(range(1, len(counts) + 1))


@pytest.mark.parametrize("path", RUN, ids=named)
def test_a_notebook_is_what_its_text_makes(path: Path) -> None:
    built, stored = build(path), read_notebook(path)
    assert built is not None, "it has a text"
    notebooks.settle(built)
    assert built.metadata == stored.metadata
    for made, kept in zip(built.cells, stored.cells, strict=True):
        assert (made.id, made.cell_type, made.metadata) == (kept.id, kept.cell_type, kept.metadata)
        assert made.source == kept.source, f"{kept.id}: edit the text, then make notebooks"


@pytest.mark.parametrize("path", ALL, ids=named)
def test_a_notebook_is_stored_as_make_notebooks_stores_it(path: Path) -> None:
    notebook = read_notebook(path)
    assert path.read_text() == text_of(notebook)
    assert set(notebook.metadata) <= {"kernelspec", "language_info", "zerolab"}
    assert notebook.metadata.language_info == {"name": "python"}
    assert not any(cell.metadata.get("execution") for cell in notebook.cells)
    identities = [cell.id for cell in notebook.cells]
    assert len(set(identities)) == len(identities)


@pytest.mark.parametrize("path", LESSONS, ids=named)
def test_a_lesson_has_what_every_lesson_has(path: Path) -> None:
    notebook = read_notebook(path)
    text = "\n".join(cell.source for cell in notebook.cells)
    assert text.startswith("# ")
    assert text.count("*Predict") >= 5, "predict, then run"
    assert "launch(" in text
    assert "What you can now explain" in text or "What you take with you" in text
    graded = f"../exercises/{path.name}"
    assert graded in text and (ROOT / "exercises" / path.name).is_file() and path.stem in EXERCISES
    if path.stem != "00_start_here":
        assert "viz.Source(" in text and "meter" in text
    shown = [output for cell in code_cells(path) for output in cell.outputs if "data" in output]
    pictures = [output for output in shown if "<img" in output.data.get("text/html", "") or "image/png" in output.data]
    assert pictures and all(output.data["text/plain"].count("\n") for output in pictures), "numbers beside a picture"


@pytest.mark.parametrize(("lesson", "said", "shown"), SAID)
def test_what_a_lesson_says_is_what_its_cells_show(lesson: str, said: str, shown: str) -> None:
    (path,) = (path for path in LESSONS if path.name.startswith(f"{lesson}_"))
    cells = read_notebook(path).cells
    assert any(said in cell.source for cell in cells if cell.cell_type == "markdown")
    assert any(shown in text for cell in cells if cell.cell_type == "code" for text in output_texts(cell))


@pytest.mark.parametrize("path", LESSONS, ids=named)
def test_the_answer_to_a_prediction_is_folded_until_it_is_asked_for(path: Path) -> None:
    asked, waits = "", False
    for cell in read_notebook(path).cells:
        answers = "answer" in cell.metadata.get("tags", [])
        assert answers == (cell.metadata.get("jupyter") == {"outputs_hidden": True}), cell.id
        if cell.cell_type == "markdown":
            assert not waits, f"no cell answers {asked}"
            asked = cell.id if "*Predict:" in cell.source else ""
            waits = bool(asked)
        elif answers:
            # A question may have several answers, one a cell.
            assert asked and cell.outputs, f"{cell.id} answers no prediction"
            waits = False
    assert not waits


@pytest.mark.parametrize("path", LESSONS, ids=named)
def test_source_that_a_lesson_shows_is_the_library_as_it_is(path: Path) -> None:
    known: dict[str, object] = {}
    for cell in code_cells(path):
        imports = [line for line in ast.parse(cell.source).body if isinstance(line, ast.Import | ast.ImportFrom)]
        exec("\n".join(map(ast.unparse, imports)), known)
        if cell.source.startswith(("viz.Source(", "viz.Changes(")):
            (shown,) = (output.data["text/plain"] for output in cell.outputs)
            assert shown == repr(eval(cell.source, known)), cell.source


@pytest.mark.parametrize("path", LESSONS, ids=named)
def test_source_that_answers_an_exercise_is_folded_and_comes_after_its_link(path: Path) -> None:
    link, spoilers = f"](../exercises/{path.name})", SPOILERS.get(path.name.partition("_")[0], ())
    text = ""
    for cell in read_notebook(path).cells:
        if "viz.Changes(" in cell.source or any(f"viz.Source({name})" in cell.source for name in spoilers):
            assert link in text, f"{cell.source} comes before the exercise"
            assert cell.metadata.jupyter == {"outputs_hidden": True, "source_hidden": True}
        text += cell.source


# What a learner is asked to write, as the library has it.
SPOILERS = {
    "01": [f"RingCollectives._{name}" for name in ("reduce_scatter", "all_gather", "all_reduce", "pass_on", "relay")],
    "02": [
        "lay_out",
        "point_at",
        "Reducer._start_complete",
        "Reducer.finish",
        "Bucket.local_gradients",
        "Bucket.reduce",
    ],
    "03": ["Bucket.publish", "Bucket.reduce"],
    "04": ["Reducer._start", "gradient_norm"],
    "06": ["LossScaler.update", "LossScaler._shrink"],
    "07": ["pipeline"],
    "08": ["plan", "Folder.publish"],
}


@pytest.mark.parametrize("path", LESSONS, ids=named)
def test_the_minutes_of_a_lesson_are_those_of_reading_running_and_predicting(path: Path) -> None:
    cells = read_notebook(path).cells
    prose = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    minutes = len(prose.split()) / 200 + len(code_cells(path)) / 2 + prose.count("*Predict:")
    (said,) = re.findall(rf"{path.name}\) \| (\d+) \|", (ROOT / "README.md").read_text())
    assert abs(minutes - int(said)) <= 5, f"{minutes:.0f} minutes, and the README says {said}"


@pytest.mark.parametrize("path", LESSONS, ids=named)
def test_a_result_says_what_it_is(path: Path) -> None:
    bare = re.compile(r"(True|False|-?[\d.]+|[\[(]((True|False|-?[\d.]+)(, )?)+[\])])")
    for cell in code_cells(path):
        for output in cell.outputs:
            if output.output_type == "execute_result":
                assert not bare.fullmatch(output.data["text/plain"]), (cell.source, output.data["text/plain"])


@pytest.mark.parametrize("path", ALL, ids=named)
def test_links_to_other_files_lead_somewhere(path: Path) -> None:
    text = "\n".join(cell.source for cell in read_notebook(path).cells if cell.cell_type == "markdown")
    for target in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (path.parent / target).exists(), target


def test_most_cells_are_compared_and_the_count_can_fail(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert compared.main([str(path) for path in RUN]) == 0
    assert re.search(r"nbval: \d+ of \d+ code cells compared \(\d+%\)", capsys.readouterr().out)
    ignored = nbformat.v4.new_code_cell("1", execution_count=1, metadata={"tags": ["nbval-ignore-output"]})
    picture = nbformat.v4.new_code_cell("2", execution_count=2)
    picture.outputs = [nbformat.v4.new_output("display_data", {"image/png": "AA=="})]
    never_run, plain = nbformat.v4.new_code_cell("3"), nbformat.v4.new_code_cell("4", execution_count=4)
    assert [*map(compared.is_compared, (ignored, picture, never_run, plain))] == [False, False, False, True]
    path = tmp_path / "lesson.ipynb"
    path.write_text(text_of(nbformat.v4.new_notebook(cells=[ignored, plain])))
    assert compared.main([str(path)]) == 1 and "1 of 2 code cells compared (50%)" in capsys.readouterr().out


def test_a_refresh_drops_what_differs_between_runs() -> None:
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1", metadata={"execution": {"x": "12:00"}})])
    notebook.metadata = nbformat.from_dict(
        {"widgets": {"state": {}}, "language_info": {"version": "3.11.2"}, "zerolab": {"lesson": "01"}}
    )
    notebooks.settle(notebook)
    assert set(notebook.metadata) == {"kernelspec", "language_info", "zerolab"}
    assert notebook.metadata.language_info == {"name": "python"} and not notebook.cells[0].metadata


def test_a_refresh_folds_again_what_somebody_ran_and_so_unfolded() -> None:
    tags = ("answer", "afterwards", "ours", "other")
    cells = [nbformat.v4.new_code_cell("1", metadata={"tags": [tag]}) for tag in tags]
    notebook = nbformat.v4.new_notebook(cells=cells)
    notebooks.settle(notebook)
    folded = [cell.metadata.get("jupyter") for cell in notebook.cells]
    both = {"outputs_hidden": True, "source_hidden": True}
    assert folded == [{"outputs_hidden": True}, both, {"source_hidden": True}, None]


@nightly("runs a notebook twice; by day nbval compares all")
@pytest.mark.ranks
@pytest.mark.timeout(100)
def test_a_refresh_gives_the_same_bytes_twice(tmp_path: Path) -> None:
    path = tmp_path / "lesson.ipynb"
    sources = [
        "import torch",
        "print('a')\nprint('b')",
        "torch.arange(3)",
        "from zerolab.course import viz\nviz.ring_steps(ranks=2)",
    ]
    cells = [nbformat.v4.new_code_cell(source, id=f"cell-{n}") for n, source in enumerate(sources)]
    path.write_text(text_of(nbformat.v4.new_notebook(cells=cells)))
    assert notebooks.refresh(path)
    first = path.read_bytes()
    assert not notebooks.refresh(path) and path.read_bytes() == first
    cells = read_notebook(path).cells
    assert [len(cell.outputs) for cell in cells] == [0, 1, 1, 1] and cells[1].outputs[0].text == "a\nb\n"
