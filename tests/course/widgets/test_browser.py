"""The widgets in a real browser: a real JupyterLab runs a notebook of them, and each control is moved by hand."""

import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.error import URLError
from urllib.request import urlopen

import nbformat
import pace
import psutil
import pytest
from cover import NIGHTLY
from nbconvert import HTMLExporter

from zerolab.course import widgets
from zerolab.ranks.forkserver import die_with_parent

pytestmark = [pytest.mark.browser, pytest.mark.timeout(180)]

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
SHAPES = '{"w": (400, 300), "b": (403,), "v": (170_000,)}'
# Each widget, and the call that makes it. The step starts where a move of each control changes the picture.
CALLS = {
    "bucket_sliders": f"bucket_sliders({SHAPES})",
    "number_sliders": "number_sliders()",
    "scale_sliders": "scale_sliders(course='growing')",
    "pipeline_sliders": "pipeline_sliders()",
}
SCENES = {
    "memory_sliders": "memory_sliders(precision='fp32')",
    "shard_sliders": f"shard_sliders({SHAPES})",
    "ring_stepper": "ring_stepper()",
    "stage_stepper": "stage_stepper()",
    "step_timeline": "step_timeline(stage=3, ranks=2)",
    "reshard_sliders": f"reshard_sliders({SHAPES})",
}
"""Pictures that move, which a kernel draws as they are asked for."""
EACH = CALLS | SCENES
PATIENCE = pace.seconds(40)
"""Seconds for one thing to happen on a busy machine."""

# Cells out of sight must be there, too, and nothing must ask the network.
SETTINGS = {
    "notebook-extension/tracker": '{"windowingMode": "none"}',
    "apputils-extension/notification": '{"fetchNews": "false", "checkForUpdates": false}',
    # A save that takes longer than the margin, or that meets another, asks whether the file has been changed.
    "docmanager-extension/plugin": '{"autosave": false, "lastModifiedCheckMargin": 3600000}',
}


ROOT = Path(__file__).resolve().parents[3]
MAKE_LAB = re.findall(r"--ServerApp\.jpserver_extensions=\S+", (ROOT / "Makefile").read_text())
"""What `make lab` tells the server."""


class Lab(NamedTuple):
    """A notebook in a JupyterLab, and where it is saved."""

    address: str
    notebook: Path


def a_notebook(path: Path) -> None:
    cells = [
        nbformat.v4.new_code_cell(f"from zerolab.course.widgets import {name}\n\n{call}") for name, call in EACH.items()
    ]
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=kernel), path)


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


def wait_for(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        assert server.poll() is None, f"JupyterLab ended: {log.read_text()[-2000:]}"
        try:
            with urlopen(url, timeout=5):
                return
        except (URLError, ConnectionError, TimeoutError):
            time.sleep(0.2)
    pytest.fail(f"JupyterLab did not answer: {log.read_text()[-2000:]}")


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """The address of the notebook in a JupyterLab with folders of its own; nothing of it is left afterwards."""
    home = tmp_path_factory.mktemp("lab")
    (home / "work").mkdir()
    a_notebook(home / "work" / "widgets.ipynb")
    for name, setting in SETTINGS.items():
        path = home / "settings" / "@jupyterlab" / f"{name}.jupyterlab-settings"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(setting)
    port, log = free_port(), home / "log"
    own = {
        "JUPYTER_CONFIG_DIR": home / "config", "JUPYTER_DATA_DIR": home / "data", "JUPYTER_RUNTIME_DIR": home / "run",
        "JUPYTERLAB_SETTINGS_DIR": home / "settings", "JUPYTERLAB_WORKSPACES_DIR": home / "workspaces",
        "IPYTHONDIR": home / "ipython",
    }  # fmt: skip
    command = [
        sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--expose-app-in-browser", *MAKE_LAB,
        "--ServerApp.ip=127.0.0.1", f"--ServerApp.port={port}", "--ServerApp.port_retries=0",
        "--IdentityProvider.token=", "--ServerApp.password=", f"--ServerApp.root_dir={home / 'work'}",
    ]  # fmt: skip
    with log.open("wb") as output:
        # A run of the tests that is killed ends no fixture, and shall leave no server.
        server = subprocess.Popen(
            command, env={**os.environ, **{name: str(path) for name, path in own.items()}},
            stdout=output, stderr=output, start_new_session=True, preexec_fn=die_with_parent,
        )  # fmt: skip
    try:
        wait_for(f"http://127.0.0.1:{port}/api", server, log)
        yield Lab(f"http://127.0.0.1:{port}/lab/tree/widgets.ipynb", home / "work" / "widgets.ipynb")
    finally:
        end(server)


def end(server: subprocess.Popen[bytes]) -> None:
    """The server and all that it started: a kernel is in a process group of its own."""
    with_children = [psutil.Process(server.pid), *psutil.Process(server.pid).children(recursive=True)]
    server.terminate()
    _, left = psutil.wait_procs(with_children, timeout=10)
    for process in left:
        process.kill()
    psutil.wait_procs(left, timeout=5)
    server.wait(timeout=5)


@pytest.fixture(scope="module")
def page(request: pytest.FixtureRequest) -> Iterator[Any]:
    """The notebook in a browser, all its cells run."""
    if CHROMIUM is None:
        pytest.skip("there is no Chromium on PATH; install your system's chromium package")
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed; install the dev extra")
    lab = request.getfixturevalue("lab")
    # Chromium's sandbox refuses root, and a container has little shared memory.
    arguments = ["--disable-dev-shm-usage", *(["--no-sandbox"] if os.geteuid() == 0 else [])]
    with api.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=arguments)
        try:
            page = browser.new_page(viewport={"width": 1300, "height": 1000})
            page.set_default_timeout(1000 * PATIENCE)
            page.goto(lab.address)
            page.wait_for_selector(".jp-Notebook .jp-CodeCell")
            page.wait_for_function(
                "window.jupyterapp.shell.currentWidget.sessionContext?.session?.kernel?.status=='idle'"
            )
            # Not awaited: who looks at a cell's output waits for it.
            page.evaluate("void window.jupyterapp.commands.execute('notebook:run-all-cells')")
            yield page
        finally:
            browser.close()


def test_the_page_of_make_lab_loads_widgets_and_no_teachers_buttons(lab: Lab) -> None:
    with urlopen(lab.address, timeout=PATIENCE) as answer:
        page = answer.read().decode()
    assert "jupyterlab-manager" in page and "nbgrader" not in page


def test_a_lesson_that_is_opened_counts_as_unchanged_and_hides_its_answers(page: Any, lab: Lab) -> None:
    lesson = ROOT / "notebooks" / "00_start_here.ipynb"
    shutil.copy(lesson, lab.notebook.parent)
    opened = page.context.browser.new_page()
    opened.set_default_timeout(1000 * PATIENCE)
    opened.goto(lab.address.replace(lab.notebook.name, lesson.name))
    opened.wait_for_selector(".jp-Notebook .jp-CodeCell")
    current = "window.jupyterapp.shell.currentWidget"
    opened.wait_for_function(f"{current}.sessionContext?.session?.kernel?.status=='idle'")
    # JupyterLab writes the kernel's version into a notebook that has another or none.
    opened.wait_for_function(f"{current}.context.model.toJSON().metadata.language_info?.version")
    # While it is read, once or twice, it counts as changed: both are asked at one moment.
    named = f"{current}.context?.isReady && {current}.context.model.toJSON().metadata.language_info?.version"
    idle = f"{current}.sessionContext?.session?.kernel?.status=='idle'"
    state = opened.wait_for_function(f"{named} && {idle} ? {{changed: {current}.context.model.dirty}} : null")
    assert state.json_value() == {"changed": False}
    folds = lesson.read_text().count('"outputs_hidden": true')
    opened.wait_for_function(f"document.querySelectorAll('.jp-OutputPlaceholder').length == {folds}")
    opened.evaluate(f"{current}.sessionContext.shutdown()")
    opened.close()


def state(widget: Any) -> tuple[str, str]:
    """The picture's bytes, and what is said beside it."""
    return widget.locator("img").get_attribute("src"), widget.locator("figure").text_content()


def cell_of(page: Any, name: str) -> Any:
    return page.locator(".jp-Notebook .jp-CodeCell").nth(list(EACH).index(name))


def widget_of(page: Any, name: str) -> Any:
    widget = cell_of(page, name).locator(".jp-OutputArea .widget-vbox").first
    widget.locator("img").wait_for()
    return widget


def move(control: Any) -> None:
    """One step on, or back from the end."""
    handle, choice = control.locator(".noUi-handle"), control.locator("select")
    box, number = control.locator("input[type=checkbox]"), control.locator("input[type=number]")
    if handle.count():
        before = control.locator(".widget-readout").inner_text()
        handle.press("ArrowRight")
        if control.locator(".widget-readout").inner_text() == before:
            handle.press("ArrowLeft")
    elif choice.count():
        choices = choice.locator("option").count()
        choice.select_option(index=(choice.evaluate("it => it.selectedIndex") + 1) % choices)
    elif box.count():
        box.click()
    else:
        number.fill(f"{float(number.input_value()) + 1:g}")
        number.press("Enter")


def kinds_of(controls: Any) -> list[tuple[str, bool]]:
    """Of each control the kind, such as a slider of words, and whether it is the first of its kind here."""
    kinds = [type(control).__name__ for control in controls.values()]
    return [(kind, kind not in kinds[:at]) for at, kind in enumerate(kinds)]


@pytest.mark.parametrize("name", CALLS)
def test_each_control_of_a_widget_changes_its_picture_and_its_numbers(page: Any, name: str) -> None:
    widget = widget_of(page, name)
    controls = widget.locator(".widget-box .widget-inline-hbox")
    made = eval(CALLS[name], vars(widgets))
    assert controls.count() == len(made.controls)
    assert widget.locator("pre").text_content() == made.picture.numbers
    assert widget.locator("img").get_attribute("alt") == made.picture.alt
    for number, (named, (_, first)) in enumerate(zip(made.controls, kinds_of(made.controls), strict=True)):
        # By day one of each kind: that each changes picture and numbers in Python is held by test_widgets*.py.
        if not (first or NIGHTLY):
            continue
        before, until = state(widget), time.monotonic() + PATIENCE
        move(controls.nth(number))
        while any(new == old for new, old in zip(state(widget), before, strict=True)):
            assert time.monotonic() < until, f"{named} changed nothing, or only one of picture and numbers"
            page.wait_for_timeout(50)
        image = widget.locator("img")
        page.wait_for_function("image => image.complete && image.naturalWidth > 100", arg=image.element_handle())
        assert image.bounding_box()["width"] <= 900
    assert not cell_of(page, name).locator("[data-mime-type='application/vnd.jupyter.stderr']").count()
    # Folded numbers show themselves to whoever asks.
    if widget.locator("summary").count():
        widget.locator("summary").click()
        assert widget.locator("pre").is_visible()
        widget.locator("summary").click()


@pytest.mark.parametrize("name", SCENES)
def test_a_kernel_draws_what_each_control_of_a_scene_asks_for(page: Any, name: str) -> None:
    scene = cell_of(page, name).locator(".jp-OutputArea .zerolab-living").first
    made = eval(SCENES[name], vars(widgets))
    scene.locator("svg text").first.wait_for()
    assert scene.locator("pre").text_content() == made.picture.numbers
    assert scene.locator(".verdict").inner_text() == made.picture.verdict
    controls, seen = scene.locator("input, select").all(), set()
    for number, control in enumerate(controls):
        # By day one of each kind, and the last, which may go through stops: each is moved in test_scenes.py.
        kind = control.get_attribute("type")
        if kind in seen and control is not controls[-1] and not NIGHTLY:
            continue
        seen.add(kind)
        before, until = scene.locator(".shown").inner_html(), time.monotonic() + PATIENCE
        if control.evaluate("it => it.tagName === 'SELECT'"):
            control.select_option(index=1)
        elif kind == "checkbox":
            control.click()
        else:
            at = control.input_value()
            control.press("ArrowRight")
            if control.input_value() == at:
                control.press("ArrowLeft")
        while scene.locator(".shown").inner_html() == before or scene.locator(".stale").count():
            assert time.monotonic() < until, f"control {number} changed nothing"
            page.wait_for_timeout(50)
    assert not cell_of(page, name).locator("[data-mime-type='application/vnd.jupyter.stderr']").count()


@pytest.mark.parametrize("name", CALLS)
def test_a_widget_fits_into_the_window_with_its_controls_and_its_verdict(page: Any, name: str) -> None:
    page.set_viewport_size({"width": 1440, "height": 900})
    cell_of(page, name).scroll_into_view_if_needed()
    assert widget_of(page, name).bounding_box()["height"] <= 700
    page.set_viewport_size({"width": 820, "height": 900})
    # The page lays itself out anew over several frames, so both boxes are taken in one look, again and again.
    page.wait_for_function(
        """image => {
            const output = image.closest('.jp-Cell').querySelector('.jp-OutputArea-output');
            const [it, room] = [image, output].map(one => one.getBoundingClientRect());
            return it.width > 100 && it.left >= room.left && it.right <= room.right + 1;
        }""",
        arg=widget_of(page, name).locator("img").element_handle(),
    )


def test_a_saved_notebook_shows_its_pictures_with_a_new_kernel_and_in_html_with_none(page: Any, lab: Lab) -> None:
    def kernel() -> str:
        return page.evaluate("window.jupyterapp.shell.currentWidget.sessionContext.session?.kernel?.id ?? ''")

    first = kernel()
    # Not awaited: a save that asks something ends only with the answer.
    page.evaluate("void window.jupyterapp.commands.execute('docmanager:save')")
    page.wait_for_function(
        "!window.jupyterapp.shell.currentWidget.context.model.dirty || document.querySelector('.jp-Dialog')"
    )
    assert page.locator(".jp-Dialog").all_inner_texts() == []
    assert widget_of(page, "bucket_sliders").is_visible(), "saving takes nothing away from the page"
    page.evaluate("window.jupyterapp.shell.currentWidget.sessionContext.shutdown()")
    page.reload()
    page.wait_for_selector(".jp-Notebook .jp-CodeCell")
    page.wait_for_function("window.jupyterapp.shell.currentWidget.sessionContext?.session?.kernel?.status=='idle'")
    assert kernel() not in ("", first)
    for name in EACH:
        image = cell_of(page, name).locator(".jp-OutputArea figure img")
        image.wait_for()
        page.wait_for_function("image => image.complete && image.naturalWidth > 100", arg=image.element_handle())
    assert page.locator(".jp-OutputArea", has_text="Error displaying widget").count() == 0
    # Without a kernel.
    html, _ = HTMLExporter(template_name="lab").from_filename(str(lab.notebook))
    # What is stored is the picture that the cell made when it was run, with its words.
    assert html.count("<figure") == len(EACH) and 'alt="reduce_scatter over 4 ranks, after 0 of 3 steps' in html
