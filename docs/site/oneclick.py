"""One click: the services that run a lesson in a browser, and lessons that bring the library themselves.

The repository's address stands in one place, the environment variable ZEROLAB_REPOSITORY, which the workflow sets to
the repository that it runs in: a copy of the course leads to itself. `make lone` writes notebooks for services
that open a file without the repository around it; the workflow pushes them to the branch BRANCH.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

import nbformat

ROOT = Path(__file__).resolve().parents[2]
VARIABLE, BRANCH = "ZEROLAB_REPOSITORY", "lone"
ADDRESS = re.compile(r"https://github\.com/(?P<name>[\w.-]+/[\w.-]+?)(\.git)?/?")
LINK = re.compile(r"(?<!!)(?P<text>\[[^\]]*\])\((?P<to>(?!https?:|#|mailto:)[^)#\s]+)(?P<part>#[^)]*)?\)")


class AddressError(Exception):
    """An address that no service can open: one sentence."""


def repository() -> str:
    """The repository as OWNER/NAME, or "" where nobody said which it is.

    Raises AddressError for an address that is no GitHub repository, which these services ask for.
    """
    given = os.environ.get(VARIABLE, "")
    if not given:
        return ""
    if found := ADDRESS.fullmatch(given):
        return found["name"]
    raise AddressError(f"{VARIABLE} is {given!r}; give it as https://github.com/OWNER/NAME, or leave it out")


def services(name: str, path: str) -> dict[str, str]:
    """Where a click leads, by service: to the notebook `path` of the repository `name`. A codespace opens the
    repository, not a file."""
    return {
        "Codespaces": f"https://codespaces.new/{name}?quickstart=1",
        "Binder": f"https://mybinder.org/v2/gh/{name}/HEAD?urlpath=lab/tree/{path}",
        "Colab": f"https://colab.research.google.com/github/{name}/blob/{BRANCH}/{path}",
    }


def badges(name: str, path: str, guide: str) -> str:
    """A line of HTML that leads from a page to its notebook `path` at each service, and to the page `guide`."""
    links = [f'<a class="badge-link" href="{to}">{service}</a>' for service, to in services(name, path).items()]
    how = f'<a href="{guide}">{"how" if name else "in a browser or on your laptop"}</a>'
    return f'<p class="one-click">Run it: {" ".join([*(links if name else []), how])}</p>'


def lone(notebook: Any, path: str, requirement: str, name: str) -> Any:
    """A copy of the notebook `path` that needs nothing around it: its first cell installs `requirement`, and its links
    to other files lead into the repository `name`."""
    made = nbformat.from_dict(notebook)
    for cell in made.cells:
        if cell.cell_type == "markdown":
            cell.source = LINK.sub(
                lambda found: f"{found['text']}({_outside(found['to'], path, name)}{found['part'] or ''})", cell.source
            )
    first = nbformat.v4.new_code_cell(f'%pip install -q "{requirement}"', id="install")
    made.cells.insert(0, first)
    return made


def _outside(to: str, path: str, name: str) -> str:
    """Where the link `to` of the file `path` leads to from outside the repository."""
    there = os.path.normpath(os.path.join(os.path.dirname(path), to))
    return services(name, there)["Colab"] if to.endswith(".ipynb") else f"https://github.com/{name}/blob/HEAD/{there}"


def write_lone(target: Path, name: str, requirement: str = "", root: Path = ROOT) -> list[Path]:
    """Write each lesson and exercise as a lone notebook below `target`; `requirement` is what their first cell
    installs, the library of the repository `name` unless another is given."""
    requirement = requirement or f"zerolab[course] @ git+https://github.com/{name}"
    written = []
    for file in sorted([*(root / "notebooks").glob("*.ipynb"), *(root / "exercises").glob("*.ipynb")]):
        path = str(file.relative_to(root))
        there = target / path
        there.parent.mkdir(parents=True, exist_ok=True)
        nbformat.write(lone(nbformat.read(file, as_version=4), path, requirement, name), there)
        written.append(there)
    return written


def main(target: Path = ROOT / "build" / BRANCH) -> int:
    """`make lone`. Returns an exit status; what is wrong is said in one sentence."""
    try:
        name = repository()
        if not name:
            raise AddressError(f"which repository shall they install? Give {VARIABLE}=https://github.com/OWNER/NAME")
    except AddressError as error:
        print(f"lone: {error}.", file=sys.stderr)
        return 1
    print(f"{target}: {len(write_lone(target, name))} notebooks that install zerolab from {name}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
