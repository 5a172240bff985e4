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


# What a sentence says, and what a cell of the same lesson shows: a cell that changes may not leave its sentence behind.
SAID = [
    ("00", "is 2.29, not four", "{'mixed': [2.29, 3.82, 4.0], 'fp32': [1.6, 1.97, 2.0]}"),
    ("00", "From 120 GB", "{0: 120.0, 1: 31.4, 2: 16.6, 3: 1.9}"),
    ("00", "keeps six megabytes", "6,000,012 bytes of activations"),
    ("01", "It is right for two ranks only",
     "2: 'claimed 1.0 times the bytes',\n 3: 'claimed 1.5 times the bytes'"),
    ("01", "the all-reduce takes 4.9 ms, the computing 5 ms", "'9.9 ms one after the other, 5.0 ms together'"),
    ("02", "nearly all of it is waiting",
     "['6.16 ms, of which 6.00 waiting', '0.46 ms, of which 0.30 waiting']"),
    ("02", "the next multiple of `2 * 4` is 16",
     "rank 1          b  [0, 3) of 3      3     12\nrank 1    padding                   5"),
    ("03", "Two, three, two.", "{'stage 0': 2.0, 'stage 1, all-reduce': 3.0, 'stage 1, reduce-scatter': 2.0}"),
    ("03", "almost a third of the model", "4 ranks                       31                        25"),
    ("03", "three quarters of its parameters", "'old parameters on each rank': [768, 768, 768, 768]"),
    ("04", "At the end 4.2 MB are left", "(10.0, 4194304)"),
    ("04", "Stage 1 keeps 8.4 MB", "{1: {'gradients': 8.4, 'gradient_buffers': 0.0},\n 2: {'gradients': 4.2,"),
    ("04", "all gradients whole", "4, each                                    5.0                        7.3"),
    ("04", "One norm, to the bit", "{'different norms': 1, 'beside one process': 1.0}"),
    ("05", "Two for gathering, one for gradients", "{'all_gather': 2.0, 'reduce_scatter': 1.0}"),
    ("05", "gathering one takes 0.86", "{'prefetch False': '29.8 ms', 'prefetch True': '23.7 ms'}"),
    ("05", "One layer, or two.", "{'prefetch False': [1.0, 1.0], 'prefetch True': [2.0, 2.0]}"),
    ("06", "2049 went down and 2051 up", "{2049: 2048.0, 2051: 2052.0, 65519: 65504.0, 65520: inf}"),
    ("06", "76 % of them lose bits and 8 %", "fp16          8 %    76 %"),
    ("06", "queries and keys would get no gradient at all",
     "{'queries': '100 % lost', 'keys': '100 % lost', 'values': '0 % lost'}"),
    ("06", "The scale brings them back", "{'fp16': '8 % lost', 'fp16, loss x 2^16': '0 % lost', 'bf16': '0 % lost'}"),
    ("06", "stands where it was", "{'kept in bf16': 1.0, 'kept in fp32': 2.0, 'its cast to bf16': 2.0}"),
    ("06", "Most parameters are around a twentieth",
     "{'10% are below': 0.01, '50% are below': 0.06, '90% are below': 0.14}"),
    ("06", "At 0.01 none, at 0.0001 most of them, at 0.00001 nearly all",
     "{0.01: '0 %', 0.001: '0 %', 0.0001: '73 %', 1e-05: '96 %'}"),
    ("06", "After eight of them the scale fits", "8 of 20 steps skipped"),
    ("06", "*set the window to 1000 and the initial power to 16*", "{'window': 1000, 'initial power': 16}"),
    ("06", "one parameter is NaN",
     "{'own gradients': {'differ': 34976, 'NaN': [1, 0]},\n 'mean of all': {'differ': 0, 'NaN': [0, 0]}}"),
    ("06", "rank 0 skips and rank 1 does not", "{'each alone': {'scales': [32768.0, 65536.0], 'steps taken': [7, 8]},"),
    ("06", "Above 256 the next number is two away", "(255.0, 256.0, 258.0)"),
    ("06", "**2 + 2 + 12 = 16**, as many as in fp32 (4 + 4 + 8)", "{'fp32': '4 + 4 + 8',\n 'bf16': '2 + 2 + 12',"),
    ("06", "All of them, on both ranks", "{'runs': 29, 'on two ranks': 58, 'ledgers equal': 58, 'bits equal': 58}"),
    ("06", "It is 29, since `fsdp2` exists at stage 3 only", "{'runs': 29, 'on two ranks': 58,"),
    ("06", "at its largest number, 448", "e4m3     8       448"),
    ("06", "of two bytes instead of four: half the traffic",
     "{'fp32': {'stage 2': 8.0, 'stage 3': 12.0},\n 'bf16': {'stage 2': 4.0, 'stage 3': 6.0},"),
    ("06", "Half the bytes of bf16, and some ten times its error",
     "'bf16': '2 bytes, error 0.3 %',\n 'fp8': '1 bytes, error 3.7 %'"),
    ("06", "fits into one byte and a little", "'bytes a value': 1.03"),
    ("06", "the first loss was 5.5, and fp32 ended at 2.4",
     "{'fp32': {'first': 5.5, 'last': 2.4, 'ranks agree': True},"),
    ("06", "None, to this digit", "{'fp32': 2.4,\n 'bf16': 2.4,\n 'fp16': 2.4,"),
    ("06", "Gradients in fp32 cost two bytes more", "{'mixed': 46.6,\n 'mixed_fp32_grads': 59.9,"),
    ("07", "at least four bytes a parameter", "gradients, optimizer                            4                   2"),
    ("07", "keeps 2Ψ there, however many ranks", "'stage 2, host': '2.0 bytes a parameter'"),
    ("07", "Stage 1 keeps 4Ψ", "'stage 1, host': '4.0 bytes a parameter'"),
    ("07", "Twelve for the states and two for the parameter: seven times", "'times the 16-bit model': 7.0"),
    ("07", "A fourth has nothing left to do", "{1: 36.0, 2: 20.0, 3: 16.0, 4: 16.0}"),
    ("07", "Three are enough for all", "{1: 0, 2: 87, 3: 125, 4: 125}"),
    ("07", "Six bytes a parameter on each of two ranks", "'bytes read a parameter': 6.0"),
    ("07", "eight bytes more between the ranks", "{'all_gather': 8, 'reduce_scatter': 0}"),
    ("07", "Rank 0 stopped, too", "step 2: rank 1 failed to swap (see there)"),
    ("07", "the bits of one that nothing disturbed", "the same bits at the end: True"),
    ("07", "A skipped step costs the disk nothing", "'skipped True: 0 read, 0 written'"),
    ("07", "Above a hundred thousand", "'equal at tokens': 133333"),
    ("07", "Each holds in a narrow strip", "80,000 to 120,000  10,000 to 15,000  1,250 to 1,875"),
]  # fmt: skip


@pytest.mark.parametrize(("lesson", "said", "shown"), SAID)
def test_what_a_lesson_says_is_what_its_cells_show(lesson: str, said: str, shown: str) -> None:
    (path,) = (path for path in LESSONS if path.name.startswith(lesson))
    cells = read_notebook(path).cells
    assert any(said in cell.source for cell in cells if cell.cell_type == "markdown")
    assert any(shown in text for cell in cells if cell.cell_type == "code" for text in output_texts(cell))


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
