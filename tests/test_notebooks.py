"""Lessons and solutions keep the course's rules: short cells, all run, no output that differs between runs."""

import re
import sys
from pathlib import Path

import nbformat
import pytest

from zerolab.grading import notebooks
from zerolab.grading.cells import read_notebook, text_of
from zerolab.grading.lessons import LESSONS as EXERCISES

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))
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
    if len(cell.source.splitlines()) > MOST_LINES:
        found.append(f"more than {MOST_LINES} lines")
    if not cell.execution_count:
        found.append("not run")
    if sum(line.lstrip().startswith("print(") for line in cell.source.splitlines()) > 1:
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
    pictures = [output for cell in code_cells(path) for output in cell.outputs if "image/png" in output.get("data", {})]
    assert pictures and all(output.data["text/plain"].count("\n") for output in pictures), "numbers beside a picture"


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


@pytest.mark.ranks
@pytest.mark.timeout(100)
def test_a_refresh_gives_the_same_bytes_twice(tmp_path: Path) -> None:
    path = tmp_path / "lesson.ipynb"
    sources = [
        "import torch",
        "print('a')\nprint('b')",
        "torch.arange(3)",
        "from zerolab import viz\nviz.ring_steps(ranks=2)",
    ]
    cells = [nbformat.v4.new_code_cell(source, id=f"cell-{n}") for n, source in enumerate(sources)]
    path.write_text(text_of(nbformat.v4.new_notebook(cells=cells)))
    assert notebooks.refresh(path)
    first = path.read_bytes()
    assert not notebooks.refresh(path) and path.read_bytes() == first
    cells = read_notebook(path).cells
    assert [len(cell.outputs) for cell in cells] == [0, 1, 1, 1] and cells[1].outputs[0].text == "a\nb\n"
