"""What the site is made of: pages, copied to one folder as Sphinx wants them. Nothing is edited by hand there."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import nbformat
from first import first_page
from lesson import PageError, check_alt, page
from oneclick import badges, repository
from reference import read_library, write_reference
from social import FOLDER, write_cards

from zerolab.course.living import SCENES, player, record, style

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
TEXTS = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "docs/*.md", "benchmarks/README.md"]
PICTURES = ["docs/*.png", "docs/*.gif", "benchmarks/*.png"]
LINK = re.compile(r"(?<!!)\[(?P<text>[^\]]*)\]\((?P<to>(?!https?:|#|mailto:)[^)#\s]+)(?P<part>#[^)]*)?\)")


def stage(target: Path, root: Path = ROOT) -> None:
    """Fill the folder `target` anew with all pages of the site, from the repository in `root`. Pages keep their places,
    so that links among them hold; what is no page is copied for download.

    Raises PageError for a notebook or a text of which no page can be made, and AddressError where the repository's
    address is none.
    """
    shutil.rmtree(target, ignore_errors=True)
    pictures = target / "_static" / "pictures"
    pictures.mkdir(parents=True)
    known = repository()
    modules = read_library(root)
    write_reference(modules, target)
    for file in (HERE / "static").iterdir():
        shutil.copy(file, target / "_static")
    living = target / "_static" / "living"
    living.mkdir()
    (living / "player.js").write_text(player())
    for name, scene in SCENES.items():
        (living / f"{name}.json").write_text(json.dumps(record(scene), separators=(",", ":"), ensure_ascii=False))
    (target / "_static" / "living.css").write_text(style())
    for name in ("conf.py", "mathml.py", "oneclick.py", "social.py", "terms.py"):
        shutil.copy(HERE / name, target)
    for file in HERE.glob("*.md"):
        shutil.copy(file, target)
    (target / "index.md").write_text(first_page((HERE / "index.md").read_text(), pictures, known))
    for pattern in PICTURES:
        for file in root.glob(pattern):
            copy(file, root, target)
    for pattern in TEXTS:
        for file in sorted(root.glob(pattern)):
            check_alt(file.read_text(), str(file.relative_to(root)))
            place(file, root, target).write_text(with_links(file, file.read_text(), root, target))
    for folder in ("notebooks", "exercises"):
        found = sorted((root / folder).glob("*.ipynb"))
        if not found:
            raise PageError(f"{folder}/ has no notebook, so the site would have no {folder}; run `make notebooks`")
        for file in found:
            made = page(file, pictures, "../_static/pictures", modules, outputs=folder == "notebooks")
            for cell in made.cells:
                if cell.cell_type == "markdown":
                    cell.source = with_links(file, cell.source, root, target)
            title = made.cells[0]
            line = badges(known, f"{folder}/{file.name}", "../docs/one_click.html")
            title.source = title.source.replace("\n", f"\n\n{line}\n", 1)
            nbformat.write(made, place(file, root, target))
    title, about = re.findall(r"^(?:# |\*\*)(.*?)(?:\*\*)?$", (HERE / "index.md").read_text(), re.MULTILINE)[:2]
    write_cards(target / "notebooks", pictures, (title, about), target / FOLDER)


def place(file: Path, root: Path, target: Path) -> Path:
    """Where a file of the repository lies in the site's folder."""
    there = target / file.relative_to(root)
    there.parent.mkdir(parents=True, exist_ok=True)
    return there


def copy(file: Path, root: Path, target: Path) -> None:
    """A file as it is."""
    shutil.copy(file, place(file, root, target))


def with_links(file: Path, text: str, root: Path, target: Path) -> str:
    """`text` with links to files that are no pages made links to copies of them."""

    def linked(found: re.Match[str]) -> str:
        to = (file.parent / found["to"]).resolve()
        if to.suffix in (".md", ".ipynb", ".png") or not to.is_relative_to(root) or not to.is_file():
            return found[0]
        name = str(to.relative_to(root)).lstrip(".").replace("/", "-") + ".txt"
        shutil.copy(to, target / "_static" / name)
        up = "../" * len(file.relative_to(root).parent.parts)
        return f'<a href="{up}_static/{name}">{found["text"]}</a>'

    return LINK.sub(linked, text)
