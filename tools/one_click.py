"""What one click does, as far as this machine can do it: `make one-click`.

Builds the wheel, makes a fresh environment in a temporary folder outside the checkout, and runs notebooks there that
have nothing around them: their first cell installs the library with what the course needs. Each must show what is
stored in the repository: each text, each picture, and the verdicts of the checks. First the library is installed alone;
it must train, and say what is missing where somebody asks for the course.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = ("notebooks/00_start_here.ipynb", "solutions/00_start_here.ipynb")
"""A lesson, and the exercises that go with it, with the answers in their places."""
ALONE = """
import importlib.util, zerolab
from zerolab import ZeroEngine, launch
missing = [name for name in ("matplotlib", "ipywidgets", "jupyterlab") if importlib.util.find_spec(name)]
assert not missing, f"pip install zerolab brought {missing}, which only the course needs"
assert "site-packages" in zerolab.__file__, zerolab.__file__
def train(comm):
    import torch
    engine = ZeroEngine(torch.nn.Linear(4, 4), comm, stage=3, lr=0.1)
    engine.backward(engine(torch.ones(2, 4)).sum())
    engine.step()
    return comm.size
if __name__ == "__main__":
    assert list(launch(train, ranks=2)) == [2, 2]
"""
RUN = """
import sys, nbformat
from nbclient import NotebookClient
notebook = nbformat.read(sys.argv[1], as_version=4)
NotebookClient(notebook, timeout=600, kernel_name="python3").execute()
nbformat.write(notebook, sys.argv[1])
"""


def differences(stored: list[dict], shown: list[dict]) -> list[str]:
    """A sentence for each code cell that shows another text than the stored one, or no picture in place of one."""
    found = []
    for number, (before, now) in enumerate(zip(stored, shown, strict=True), 1):
        if "nbval-ignore-output" in before["metadata"].get("tags", []):
            continue
        for what, of in (("text", texts), ("pictures", pictures)):
            if of(before) != of(now):
                found.append(f"code cell {number} shows other {what}: {of(now)} in the place of {of(before)}")
    return found


def texts(cell: dict) -> str:
    """What a cell prints, and its results as plain text."""
    outputs = cell["outputs"]
    return "".join("".join(one.get("text", one.get("data", {}).get("text/plain", ""))) for one in outputs)


def pictures(cell: dict) -> int:
    """How many pictures a cell shows."""
    return sum("".join(output.get("data", {}).get("text/html", "")).count("<img") for output in cell["outputs"])


def main() -> int:
    """Run it all; 1 if something differs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--notebooks", nargs="*", default=NOTEBOOKS, help="which to run, as paths in the repository")
    paths = parser.parse_args().notebooks
    sys.path.append(str(ROOT / "docs" / "site"))
    import nbformat
    from oneclick import lone

    began, wrong = time.monotonic(), []
    bare = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    with tempfile.TemporaryDirectory(prefix="zerolab-one-click-") as made:
        folder = Path(made)

        def run(*command: str | Path) -> None:
            subprocess.run([str(part) for part in command], cwd=folder, env=bare, check=True)

        # Of a copy: setuptools leaves a folder beside what it builds, and takes up what lies there from before.
        shutil.copytree(ROOT / "zerolab", folder / "source" / "zerolab")
        for name in ("pyproject.toml", "README.md", "LICENSE"):
            shutil.copy(ROOT / name, folder / "source")
        run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, folder / "source")
        (wheel,) = folder.glob("zerolab-*.whl")
        run(sys.executable, "-m", "venv", folder / "env")
        python, pins = folder / "env" / "bin" / "python", ROOT / "constraints.txt"
        run(python, "-m", "pip", "install", "--quiet", "-c", pins, wheel)
        (folder / "alone.py").write_text(ALONE)
        run(python, "alone.py")
        # What a service of notebooks has before it opens one.
        run(python, "-m", "pip", "install", "--quiet", "-c", pins, "ipykernel", "nbclient", "nbformat")
        bare["PIP_CONSTRAINT"] = str(pins)
        for path in paths:
            stored = nbformat.read(ROOT / path, as_version=4)
            file = folder / Path(path).name
            nbformat.write(lone(stored, path, f"zerolab[course] @ {wheel.as_uri()}", "OWNER/NAME"), file)
            run(python, "-c", RUN, file)
            code = [
                [cell for cell in notebook.cells if cell.cell_type == "code" and cell.id != "install"]
                for notebook in (stored, nbformat.read(file, as_version=4))
            ]
            wrong += [f"{path}: {sentence}" for sentence in differences(*code)]
    for sentence in wrong:
        print(sentence, file=sys.stderr)
    print(f"one click: {', '.join(paths)} from lone files, in {time.monotonic() - began:.0f} s with all installing")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
