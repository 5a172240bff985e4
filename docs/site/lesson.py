"""A lesson as a page of the site: its notebook with stored outputs, whose pictures are files of their own."""

from __future__ import annotations

import ast
import base64
import re
from collections.abc import Container
from pathlib import Path
from typing import Any

import nbformat

PICTURE = re.compile(r'<img (?P<before>[^>]*?)src="data:image/png;base64,(?P<data>[^"]+)"(?P<after>[^>]*)>')
WORDLESS = re.compile(r"!\[\s*\]\((?P<to>[^)\s]*)")
ALT = re.compile(r'\balt="[^"]+"')
SOURCE = re.compile(r"`(?P<name>zerolab(?:\.\w+)+)`\n")
"""How a shown piece of the library begins (viz/source.py)."""
TOGGLES = {
    "answer": "hide-output",  # *Predict* is asked above: the answer waits behind a click
    "ours": "hide-input",  # our solution of what the reader writes first
    "afterwards": "hide-cell",  # the library's own, which answers an exercise
}


PROMPTS = {
    "answer": ("Show the answer", "Hide the answer"),
    "ours": ("Show our solution", "Hide our solution"),
    "afterwards": ("Show the library's own", "Hide the library's own"),
}
"""What one clicks on to see what a cell with this tag has folded away."""


class PageError(Exception):
    """A notebook that no page can be made of: one sentence with its name and cell."""


def page(source: Path, pictures: Path, link: str, modules: Container[str] = (), *, outputs: bool = True) -> Any:
    """The notebook `source` as the site shows it. Its pictures are written into the folder `pictures`, which pages
    find under the address `link`.

    modules  files of the library that have a page; the source that a lesson shows leads there
    outputs  whether each cell must have been run; those of an exercise are the reader's to run

    Raises PageError for a cell that was not run, or failed, or whose output is missing, and for a picture without words
    for who does not see it.
    """
    notebook = nbformat.read(source, as_version=4)
    notebook.metadata.setdefault("mystnb", {})["execution_mode"] = "off"
    for number, cell in enumerate(notebook.cells, 1):
        where = f"{source.parent.name}/{source.name}, cell {number}"
        tags = cell.metadata.setdefault("tags", [])
        for tag in [tag for tag in tags if tag in TOGGLES]:
            tags.append(TOGGLES[tag])
            show, hide = PROMPTS[tag]
            cell.metadata["mystnb"] = {"code_prompt_show": show, "code_prompt_hide": hide}
        if cell.metadata.get("jupyter", {}).get("source_hidden") and not {"hide-input", "hide-cell"} & set(tags):
            tags.append("hide-input")
        if cell.cell_type != "code":
            check_alt(cell.source, where)
            continue
        if outputs and cell.source.strip() and cell.execution_count is None:
            raise PageError(f"{where}: it was not run, so the page would lack its output; run `make notebooks`")
        if outputs and not cell.outputs and shows(cell.source):
            raise PageError(f"{where}: it shows something, and its output is missing; run `make notebooks`")
        for place, output in enumerate(cell.outputs):
            if output.output_type == "error":
                raise PageError(f"{where}: it ends with {output.ename}; mend it and run `make notebooks`")
            data = output.get("data", {})
            if shown := SOURCE.match(data.get("text/markdown", "")):
                data["text/markdown"] = with_source(data["text/markdown"], shown["name"], modules)
            html = data.get("text/html")
            if html is not None:
                name = f"{source.stem}-{number}-{place}"
                output.data["text/html"] = with_files(html, where, pictures, link, name)
    return notebook


def check_alt(text: str, where: str) -> None:
    """Raises PageError where Markdown has a picture without words for who does not see it."""
    if found := WORDLESS.search(text):
        to = found["to"]
        raise PageError(f"{where}: its picture {to} has no alt text; write it as ![what it shows]({to})")


def shows(source: str) -> bool:
    """Whether a cell ends with what surely shows something: a print at the outermost level, a picture of `viz`, or a
    value that is no call."""
    try:
        last = ast.parse(source).body[-1]
    except (SyntaxError, IndexError):  # IPython's own commands, or nothing but comments
        return False
    if not isinstance(last, ast.Expr) or source.rstrip().endswith(";"):
        return False
    return not isinstance(last.value, ast.Call) or ast.unparse(last.value.func).startswith(("print", "viz."))


def with_files(html: str, where: str, pictures: Path, link: str, name: str) -> str:
    """`html` with each picture that it holds as base64 in a file of its own, loaded when it comes into sight."""
    count = 0

    def outside(found: re.Match[str]) -> str:
        nonlocal count
        words = found["before"] + found["after"]
        if not ALT.search(words):
            raise PageError(f"{where}: its picture has no alt text; give its Picture one (viz/picture.py)")
        file = f"{name}-{count}.png"
        count += 1
        (pictures / file).write_bytes(base64.b64decode(found["data"]))
        return f'<img loading="lazy" {words.strip()} src="{link}/{file}">'

    return PICTURE.sub(outside, html)


def with_source(text: str, name: str, modules: Container[str]) -> str:
    """A shown piece of the library, whose name leads to the whole file."""
    parts = name.split(".")
    for length in range(len(parts) - 1, 1, -1):
        module = ".".join(parts[:length])
        if module in modules:
            return text.replace(
                f"`{name}`", f'<a href="../source/{module}.html#{parts[length]}"><code>{name}</code></a>', 1
            )
    return text
