"""One click: lines that lead from a page to where its notebook runs, lone notebooks, the commands of workflows."""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from urllib.parse import urlsplit

import nbformat
import pytest
import yaml
from cover import NIGHTLY
from test_house import make_targets, tracked

ROOT = Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / "docs" / "site"), str(ROOT / "tools")]

import one_click  # noqa: E402
from first import CLICK, PICTURE, first_page  # noqa: E402
from oneclick import AddressError, badges, lone, main, repository, services, write_lone  # noqa: E402

from zerolab.course.living import SCENES  # noqa: E402

NOTEBOOKS = [
    str(file.relative_to(ROOT)) for name in ("notebooks", "exercises") for file in (ROOT / name).glob("*.ipynb")
]
FIRST = (ROOT / "docs" / "site" / "index.md").read_text()
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


# The first page


def test_the_first_pages_figures_are_those_that_the_readme_measures() -> None:
    rows = re.findall(r"^\| ([0-3]) \| ([\d. |]+) \| [\d.]+", (ROOT / "README.md").read_text(), re.MULTILINE)
    states = {int(stage): float(row.split("|")[3]) for stage, row in rows}
    assert states[0] / 5 == 16, "bytes a parameter: the model has 5 million"
    for stage in (1, 2, 3):
        assert f"{states[stage]:.0f} MB" in FIRST and f"at stage {stage}" in FIRST
    assert f"took {states[0]:.0f} MB" in FIRST


def test_the_first_page_has_a_picture_that_moves_with_words_for_who_does_not_see_it(tmp_path: Path) -> None:
    text = first_page(FIRST, tmp_path, "OWNER/NAME")
    assert PICTURE not in text and CLICK not in text
    (scene,) = re.findall(r'<div data-scene="(\w+)" data-settings="[^"]+">', text)
    assert scene in SCENES
    (shown,) = re.findall(r'<img [^>]*src="_static/pictures/([^"]+)"', text)
    assert (tmp_path / shown).stat().st_size > 1000 and re.search(r'alt="[^"]{40,}"', text)


def test_the_first_page_offers_three_ways_to_start() -> None:
    assert FIRST.count("{grid-item-card}") == 3
    assert "notebooks/00_start_here.ipynb" in FIRST and CLICK in FIRST and "`make lab`" in FIRST


def test_a_first_page_that_lost_a_place_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"the first page has no place {CLICK}"):
        first_page(FIRST.replace(CLICK, ""), tmp_path, "")


# The repository's address


@pytest.mark.parametrize("given", ["https://github.com/OWNER/NAME", "https://github.com/OWNER/NAME.git"])
def test_the_address_is_what_the_workflow_says(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZEROLAB_REPOSITORY", given)
    assert repository() == "OWNER/NAME"


def test_an_address_that_no_service_opens_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZEROLAB_REPOSITORY", "OWNER/NAME")
    with pytest.raises(AddressError, match=r"ZEROLAB_REPOSITORY is 'OWNER/NAME'; give it as https://github\.com/O"):
        repository()


def test_no_file_says_where_the_repository_lies() -> None:
    kinds = (".md", ".yml", ".toml", ".py", ".json", ".ipynb")
    texts = {path: path.read_text() for path in tracked() if path.suffix in kinds}
    found = {path.name for path, text in texts.items() if re.search(r"github\.com/[\w.-]+/zerolab\b", text)}
    assert found == set()


@pytest.mark.parametrize("path", NOTEBOOKS)
def test_a_page_leads_to_its_own_notebook_at_each_service(path: str) -> None:
    line = badges("OWNER/NAME", path, "guide.html")
    links = dict(zip(services("OWNER/NAME", path), re.findall(r'href="(https[^"]+)"', line), strict=True))
    assert links["Binder"].endswith(f"lab/tree/{path}") and links["Colab"].endswith(f"/blob/lone/{path}")
    assert all("OWNER/NAME" in urlsplit(link).path for link in links.values()) and "guide.html" in line


def test_without_an_address_a_page_leads_to_the_guide_alone() -> None:
    assert re.findall(r'href="([^"]+)"', badges("", "notebooks/00_start_here.ipynb", "guide.html")) == ["guide.html"]


# Lone notebooks


def test_a_lone_notebook_installs_the_library_first_and_its_links_lead_into_the_repository() -> None:
    text = "[a](../exercises/05.ipynb#x) [b](../docs/design.md) [c](https://x.org) [d](#here) ![e](p.png)"
    cells = [nbformat.v4.new_markdown_cell(text)]
    made = lone(nbformat.v4.new_notebook(cells=cells), "notebooks/05.ipynb", "zerolab[course]", "OWNER/NAME")
    assert made.cells[0].source == '%pip install -q "zerolab[course]"'
    assert made.cells[1].source == (
        "[a](https://colab.research.google.com/github/OWNER/NAME/blob/lone/exercises/05.ipynb#x) "
        "[b](https://github.com/OWNER/NAME/blob/HEAD/docs/design.md) [c](https://x.org) [d](#here) ![e](p.png)"
    )


def test_each_lesson_and_exercise_has_a_lone_notebook(tmp_path: Path) -> None:
    written = write_lone(tmp_path, "OWNER/NAME")
    assert sorted(str(file.relative_to(tmp_path)) for file in written) == sorted(NOTEBOOKS)
    for file in written:
        notebook = nbformat.read(file, as_version=4)
        nbformat.validate(notebook)
        assert notebook.cells[0].source.endswith('zerolab[course] @ git+https://github.com/OWNER/NAME"')


def test_lone_notebooks_of_no_repository_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("ZEROLAB_REPOSITORY", raising=False)
    assert main(tmp_path / "lone") == 1 and not (tmp_path / "lone").exists()
    assert "which repository shall they install? Give ZEROLAB_REPOSITORY=" in capsys.readouterr().err


def test_another_text_and_a_lost_picture_of_a_lone_lesson_are_named() -> None:
    def cell(text: str, html: str) -> dict:
        return {"metadata": {}, "outputs": [{"data": {"text/plain": text, "text/html": html}}]}

    stored, shown = [cell("a", "<img>"), cell("b", "")], [cell("a", ""), cell("c", "")]
    assert one_click.differences(stored, shown) == [
        "code cell 1 shows other pictures: 0 in the place of 1",
        "code cell 2 shows other text: c in the place of b",
    ]
    assert one_click.differences(stored, stored) == []


@pytest.mark.timeout(1500)
@pytest.mark.skipif(not NIGHTLY, reason="it installs everything anew, for minutes: make nightly or make one-click")
def test_the_wheel_in_a_fresh_environment_runs_a_lesson_from_a_lone_file() -> None:
    done = subprocess.run([sys.executable, ROOT / "tools" / "one_click.py"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# Wheels


def test_the_wheel_takes_each_file_of_the_library_along() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    patterns = {package.replace(".", "/"): globs for package, globs in settings["package-data"].items()}
    files = [path.relative_to(ROOT) for path in tracked() if "zerolab" in path.relative_to(ROOT).parts[:1]]
    left = [str(f) for f in files if f.suffix != ".py" and not any(map(f.match, patterns.get(str(f.parent), [])))]
    assert left == []
    assert {str(file.parent / "__init__.py") for file in files} <= set(map(str, files)), "a folder that is no package"


def test_what_only_the_course_needs_no_one_else_gets() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = [re.match(r"[\w-]+", entry)[0] for entry in project["optional-dependencies"]["course"]]
    alone = [re.match(r"[\w-]+", entry)[0] for entry in project["dependencies"]]
    assert not set(names) & set(alone)
    asked = set(re.findall(r'"(\w+)"', one_click.ALONE.partition("missing")[2].partition("if")[0]))
    assert asked and asked <= set(names)


# What the services and workflows call


def commands(workflow: Path) -> list[str]:
    jobs = yaml.safe_load(workflow.read_text())["jobs"].values()
    return [step["run"] for job in jobs for step in job["steps"] if "run" in step]


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_each_make_command_of_a_workflow_exists(workflow: Path) -> None:
    called = [found for run in commands(workflow) for found in re.findall(r"\bmake ([a-z-]+)", run)]
    assert set(called) <= make_targets()
    assert called or commands(workflow) == [".ci/run"]


def test_the_matrix_has_each_python_and_the_oldest_and_newest_torch_that_pyproject_allows() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "matrix.yml").read_text())["jobs"]
    matrix = jobs["unit"]["strategy"]["matrix"]
    assert matrix["python"] == re.findall(r"Python :: (3\.\d+)", text)
    assert {system.partition("-")[0] for system in matrix["system"]} == {"ubuntu", "macos"}
    (oldest,) = re.findall(r'"torch>=(\d+\.\d+)', text)
    (newest,) = re.findall(r"^torch==(.*)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert matrix["torch"] == [f"{oldest}.0", newest]


def planned(*arguments: str) -> str:
    """What make would do to install everything anew."""
    bare = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS", "TORCH"))}
    command = ["make", "--dry-run", "--always-make", "setup", *arguments]
    return subprocess.run(command, cwd=ROOT, env=bare, capture_output=True, text=True, timeout=30).stdout


def test_another_torch_takes_the_place_of_the_pinned_one() -> None:
    usual, other = planned(), planned("TORCH=2.11.0")
    assert "-c constraints.txt -e" in usual
    assert "torch==2.11.0/' constraints.txt > .venv/constraints.txt" in other
    assert "-c .venv/constraints.txt -e" in other


def test_each_choice_of_extras_is_installed_once() -> None:
    usual, fewer = planned(), planned("EXTRAS=course")
    assert "-e '.[dev,instructor]'" in usual and "touch .venv/.installed-dev,instructor" in usual
    assert "-e '.[course]'" in fewer and "touch .venv/.installed-course" in fewer


def test_what_a_devcontainer_and_binder_install_is_there() -> None:
    container = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text())
    (target,) = re.findall(r"^make ([a-z-]+)", container["postCreateCommand"])
    assert target in make_targets()
    assert all((ROOT / name).is_file() for name in container["customizations"]["codespaces"]["openFiles"])
    pins, wanted = (ROOT / ".binder" / "requirements.txt").read_text().splitlines()[1:]
    assert (ROOT / ".binder" / pins.removeprefix("-c ")).is_file() and wanted == ".[course]"
    assert (ROOT / ".binder" / "runtime.txt").read_text() == "python-3.11\n"
