"""What `make lab` adds to Jupyter's server: a notebook is saved without the views of its widgets, and one that is only
opened stays as it is.

A view is a number in the kernel that made it. Opened again with another kernel it would be one line, "Error displaying
widget: model not found", in place of the picture, its numbers and its text, which are stored beside it.

A stored lesson names its language, and not the Python that ran it. JupyterLab writes into a notebook what its kernel is
called and which version it has; where that differs from what it was given, the notebook counts as changed before
anybody has typed. So it is given what this kernel will say.

And nbgrader's buttons (Validate, Create Assignment), which teachers want and learners stumble over, stay away; they are
there in a JupyterLab that is started without this extension.
"""

from __future__ import annotations

from inspect import isawaitable
from typing import Any

VIEW = "application/vnd.jupyter.widget-view+json"
TEACHERS = "@jupyter/nbgrader"


def drop_views(notebook: dict[str, Any]) -> None:
    """Leave of each widget what needs no kernel."""
    for cell in notebook["cells"]:
        for output in cell.get("outputs", []):
            output.get("data", {}).pop(VIEW, None)


def on_save(model: dict[str, Any], **_: Any) -> None:
    """Called by the server with what it is about to write; the page in the browser keeps its widgets."""
    if model.get("type") == "notebook" and model.get("content"):
        drop_views(model["content"])


def name_kernel(notebook: dict[str, Any], kernel: dict[str, Any], language: dict[str, Any]) -> None:
    """Give a notebook for `kernel` the words in which JupyterLab would name it; one for another kernel stays."""
    metadata = notebook["metadata"]
    if metadata.get("kernelspec", {}).get("name") == kernel["name"]:
        metadata.update(kernelspec=dict(kernel), language_info=dict(language))


def name_on_opening(manager: Any, kernel: dict[str, Any], language: dict[str, Any]) -> None:
    """Let a contents manager hand out notebooks so named. The files stay as they are."""
    read = manager.get

    async def get(*args: Any, **options: Any) -> dict[str, Any]:
        model = read(*args, **options)
        model = await model if isawaitable(model) else model
        if model.get("type") == "notebook" and model.get("content"):
            name_kernel(model["content"], kernel, language)
        return dict(model)

    manager.get = get


def without_teachers_buttons(handler: Any, page: dict[str, Any]) -> dict[str, Any]:
    """Called by JupyterLab with what its page is about to load."""
    kept = [extension for extension in page.get("federated_extensions", []) if extension["name"] != TEACHERS]
    return {**page, "federated_extensions": kept}


def _jupyter_server_extension_points() -> list[dict[str, str]]:
    return [{"module": "zerolab.course.lab"}]


def _load_jupyter_server_extension(app: Any) -> None:
    from ipykernel.ipkernel import IPythonKernel
    from ipykernel.kernelspec import KERNEL_NAME

    app.web_app.settings["page_config_hook"] = without_teachers_buttons
    app.contents_manager.register_pre_save_hook(on_save)
    spec = app.kernel_spec_manager.get_kernel_spec(KERNEL_NAME)
    kernel = {"name": KERNEL_NAME, "display_name": spec.display_name, "language": spec.language}
    name_on_opening(app.contents_manager, kernel, IPythonKernel.language_info)
