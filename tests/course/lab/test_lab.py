"""What `make lab` adds to Jupyter's server, tried on the server's own contents manager."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nbformat
import pytest

from zerolab.course import lab

LESSON = Path(__file__).resolve().parents[3] / "notebooks" / "00_start_here.ipynb"


@pytest.fixture
def manager(tmp_path: Path) -> Any:
    kernelspec = pytest.importorskip("jupyter_client.kernelspec")
    files = pytest.importorskip("jupyter_server.services.contents.largefilemanager")
    manager = files.AsyncLargeFileManager(root_dir=str(tmp_path))
    page = SimpleNamespace(settings={})
    app = SimpleNamespace(contents_manager=manager, kernel_spec_manager=kernelspec.KernelSpecManager(), web_app=page)
    lab._load_jupyter_server_extension(app)
    return manager


def test_a_lesson_that_is_opened_names_this_kernel_and_its_file_stays_as_it_was(manager: Any, tmp_path: Path) -> None:
    path = tmp_path / "lesson.ipynb"
    path.write_bytes(LESSON.read_bytes())
    metadata = asyncio.run(manager.get("lesson.ipynb"))["content"]["metadata"]
    from ipykernel.ipkernel import IPythonKernel

    # What JupyterLab asks the kernel for and would write over what it was given.
    assert metadata["language_info"] == IPythonKernel.language_info
    assert metadata["kernelspec"]["display_name"] == "Python 3 (ipykernel)"
    assert path.read_bytes() == LESSON.read_bytes()


def test_a_notebook_for_another_kernel_and_a_text_file_are_handed_out_as_they_are(manager: Any, tmp_path: Path) -> None:
    notebook = nbformat.v4.new_notebook(metadata={"kernelspec": {"name": "julia", "display_name": "Julia"}})
    nbformat.write(notebook, tmp_path / "other.ipynb")
    (tmp_path / "notes.txt").write_text("as it is")
    opened = asyncio.run(manager.get("other.ipynb"))
    assert opened["content"]["metadata"] == notebook.metadata
    assert asyncio.run(manager.get("notes.txt"))["content"] == "as it is"


def test_a_folder_and_a_notebook_without_its_content_can_be_asked_for(manager: Any, tmp_path: Path) -> None:
    (tmp_path / "lesson.ipynb").write_bytes(LESSON.read_bytes())
    assert [entry["name"] for entry in asyncio.run(manager.get(""))["content"]] == ["lesson.ipynb"]
    assert asyncio.run(manager.get("lesson.ipynb", content=False))["content"] is None


def test_what_is_saved_has_no_views_of_widgets(manager: Any, tmp_path: Path) -> None:
    cell = nbformat.v4.new_code_cell("w", execution_count=1)
    cell.outputs = [nbformat.v4.new_output("display_data", {lab.VIEW: {"model_id": "x"}, "text/plain": "picture"})]
    model = {"type": "notebook", "format": "json", "content": nbformat.v4.new_notebook(cells=[cell])}
    asyncio.run(manager.save(model, "saved.ipynb"))
    (saved,) = nbformat.read(tmp_path / "saved.ipynb", 4).cells
    assert saved.outputs[0].data == {"text/plain": "picture"}


def test_the_buttons_of_teachers_are_not_loaded() -> None:
    page = {"federated_extensions": [{"name": "@jupyter/nbgrader"}, {"name": "@jupyter-widgets/manager"}], "kept": 1}
    assert lab.without_teachers_buttons(None, page) == {
        "federated_extensions": [{"name": "@jupyter-widgets/manager"}],
        "kept": 1,
    }
