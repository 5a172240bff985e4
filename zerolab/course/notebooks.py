"""`python -m zerolab.course.notebooks`: builds lessons, solutions and exercises from their texts, and runs them.

Running it twice gives the same bytes: no times, no widget state, streams joined, no version of the Python that ran it.
"""

from __future__ import annotations

import argparse
import copy
import sys
from collections.abc import Sequence
from pathlib import Path

from nbformat import NotebookNode

from zerolab.course.generate import check_source, write_exercise
from zerolab.course.grade.cells import read_notebook, text_of
from zerolab.course.lab import drop_views
from zerolab.course.source import build
from zerolab.errors import InputError, ZerolabError

KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}
FOLDS = {
    "answer": {"outputs_hidden": True},
    "afterwards": {"outputs_hidden": True, "source_hidden": True},
    "ours": {"source_hidden": True},
}
"""What JupyterLab hides of a cell with this tag until the cell runs or somebody clicks: what was asked in the text
before it, source of the library that an exercise asks for, and code that the reader is asked to write first."""


def execute(notebook: NotebookNode, folder: Path, seconds: int = 300) -> None:
    """Run all cells in a fresh kernel that starts in `folder`, and keep their outputs in the notebook."""
    from nbclient import NotebookClient

    NotebookClient(
        notebook,
        kernel_name="python3",
        timeout=seconds,
        record_timing=False,
        store_widget_state=False,
        coalesce_streams=True,
        resources={"metadata": {"path": str(folder)}},
    ).execute()
    settle(notebook)


def settle(notebook: NotebookNode) -> None:
    """Drop what differs between two runs or two machines, and fold what is to be folded: running a cell unfolds it."""
    kept = {"zerolab": notebook.metadata["zerolab"]} if "zerolab" in notebook.metadata else {}
    notebook.metadata = NotebookNode({"kernelspec": KERNEL, "language_info": {"name": "python"}, **kept})
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        for tag in set(cell.metadata.get("tags", [])) & set(FOLDS):
            cell.metadata.jupyter = NotebookNode(FOLDS[tag])
    # A widget's number is another in each run.
    drop_views(notebook)


def refresh(path: Path, run: bool = True) -> bool:
    """Build a notebook from its text, run it or keep the outputs that it has, and write it; whether its bytes changed.
    One without a text is its own."""
    stored = read_notebook(path) if path.exists() else None
    notebook = build(path) or copy.deepcopy(stored)
    if run:
        execute(notebook, path.parent)
    else:
        keep_outputs(notebook, stored)
        settle(notebook)
    text = text_of(notebook)
    if path.exists() and text == path.read_text(encoding="utf-8"):
        return False
    path.write_text(text, encoding="utf-8")
    return True


def keep_outputs(notebook: NotebookNode, stored: NotebookNode | None) -> None:
    """Give cells the outputs of the stored ones of the same id and source."""
    of = {cell.id: cell for cell in stored.cells if cell.cell_type == "code"} if stored else {}
    for cell in notebook.cells:
        if cell.cell_type == "code" and cell.id in of and of[cell.id].source == cell.source:
            cell.outputs, cell.execution_count = of[cell.id].outputs, of[cell.id].execution_count


def main(argv: Sequence[str] | None = None) -> int:
    """Refresh outputs and exercises of the tree in the current folder, or of --root."""
    parser = argparse.ArgumentParser(prog="python -m zerolab.course.notebooks", description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", help="only notebooks whose name holds one of these")
    parser.add_argument("--root", type=Path, default=Path(), help="the folder with notebooks/ and solutions/")
    parser.add_argument("--no-run", action="store_true", help="run nothing, and keep outputs")
    parser.add_argument("--force", action="store_true", help="overwrite exercises that somebody has worked in")
    options = parser.parse_args(argv)
    try:
        for path in chosen(options.root, options.names):
            print(f"{path}: {'written' if refresh(path, not options.no_run) else 'unchanged'}", flush=True)
            if path.parent.name == "solutions":
                check_source(read_notebook(path))
                target = options.root / "exercises" / path.name
                made = write_exercise(path, target, options.force)
                print(f"{target}: {'written' if made else 'unchanged'}", flush=True)
    except ZerolabError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def chosen(root: Path, names: Sequence[str]) -> list[Path]:
    """Lessons and solutions in order, or those whose names hold one of `names`."""
    texts = (root / "notebooks" / f"{text.stem}.ipynb" for text in root.glob("notebooks/text/*.md"))
    stored = (path for folder in ("notebooks", "solutions") for path in root.glob(f"{folder}/*.ipynb"))
    paths = sorted({*texts, *stored}, key=lambda path: (path.name, str(path)))
    found = [path for path in paths if not names or any(name in str(path) for name in names)]
    if not found:
        raise InputError(f"no notebook in {root}/notebooks or {root}/solutions fits {' '.join(names) or 'anything'}")
    return found


if __name__ == "__main__":
    sys.exit(main())
