"""What others show of a page when somebody sends its address: a title, a sentence and a picture, from the page itself.

The picture of a lesson has its title and the first picture that its stored outputs show, and so what a run recorded.
Such pictures need whole addresses: ZEROLAB_SITE says where the site will lie, and without it pages name none.
"""

from __future__ import annotations

import os
import re
import textwrap
from html import escape
from io import BytesIO
from pathlib import Path
from typing import Any

import nbformat
from docutils import nodes
from matplotlib import font_manager
from PIL import Image, ImageDraw, ImageFont
from sphinx.application import Sphinx

NAME, VARIABLE, FOLDER = "zerolab", "ZEROLAB_SITE", "_static/social"
SIZE, EDGE, GAP = (1200, 630), 50, 24
"""Dots: what services show whole, the margin, and what is between a text and a picture."""
COLOURS = 256
"""Fewer would make one kind of memory look like another."""
EVERY = "index"
"""Whose picture stands for pages that have none of their own."""


def card(title: str, about: str, picture: bytes) -> bytes:
    """A PNG of `SIZE`: the title, a sentence or two, and a picture (PNG) in what room is left."""
    drawn = Image.new("RGB", SIZE, "white")
    pen, below = ImageDraw.Draw(drawn), EDGE
    for text, weight, size, width, most in ((title, "bold", 56, 24, 2), (about, "normal", 28, 66, 3)):
        font = ImageFont.truetype(font_manager.findfont(font_manager.FontProperties(weight=weight)), size)
        for line in textwrap.wrap(text, width, max_lines=most, placeholder=" ..."):
            pen.text((EDGE, below), line, "black", font)
            below += round(1.25 * size)
        below += GAP // 2
    shown = Image.open(BytesIO(picture)).convert("RGB")
    room = (SIZE[0] - 2 * EDGE, SIZE[1] - below - GAP)
    factor = min(room[0] / shown.width, room[1] / shown.height)
    shown = shown.resize((max(1, round(factor * shown.width)), max(1, round(factor * shown.height))), Image.LANCZOS)
    drawn.paste(shown, ((SIZE[0] - shown.width) // 2, below))
    if title != NAME:
        font = ImageFont.truetype(font_manager.findfont(font_manager.FontProperties(weight="bold")), 28)
        pen.text((SIZE[0] - EDGE, EDGE), NAME, "black", font, anchor="rt")
    made = BytesIO()
    drawn.quantize(COLOURS, Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE).save(made, "png", optimize=True)
    return made.getvalue()


def words(notebook: Any) -> tuple[str, str]:
    """A notebook's title, and what it says first below it, without marks."""
    lines = [line for line in notebook.cells[0].source.split("\n") if line and not line.startswith("<")]
    return lines[0].removeprefix("# "), re.sub(r"[*`_]|\]\([^)]*\)|\[", "", lines[1]) if len(lines) > 1 else ""


def write_cards(lessons: Path, pictures: Path, first: tuple[str, str], target: Path) -> None:
    """Write a picture for each lesson in the folder `lessons` that shows one (its files are in `pictures`, named as
    `lesson.with_files` names them), and that of the first page, whose title and sentence are `first`, to `target`."""
    target.mkdir(parents=True)
    for file in sorted(lessons.glob("*.ipynb")):
        shown = sorted(pictures.glob(f"{file.stem}-*.png"), key=lambda path: [*map(int, path.stem.split("-")[1:])])
        if shown:
            title, about = words(nbformat.read(file, as_version=4))
            (target / f"notebooks-{file.stem}.png").write_bytes(card(title, about, shown[0].read_bytes()))
    (still,) = pictures.glob("first-*.png")
    (target / f"{EVERY}.png").write_bytes(card(*first, still.read_bytes()))


def tags(title: str, about: str, address: str, page: str, cards: set[str]) -> str:
    """The meta tags of `page`, of a site at `address` ("" where that is not known) with these `cards`."""
    found = {"og:type": "article", "og:site_name": NAME, "og:title": title, "og:description": about}
    if address:
        name = page.replace("/", "-")
        found["og:url"] = f"{address}/{page}.html"
        found["og:image"] = f"{address}/{FOLDER}/{name if name in cards else EVERY}.png"
    lines = [f'<meta property="{name}" content="{escape(text)}">' for name, text in found.items() if text]
    return "\n".join([*lines, '<meta name="twitter:card" content="summary_large_image">'])


def _on_page(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    if doctree is None:
        return
    first = next((one.astext() for one in doctree.findall(nodes.paragraph) if one.astext().strip()), "")
    cards = {file.stem for file in (Path(app.srcdir) / FOLDER).glob("*.png")}
    address = os.environ.get(VARIABLE, "").rstrip("/")
    about = textwrap.shorten(first, 200, placeholder=" ...")
    title = re.sub("<[^>]+>", "", context.get("title", ""))
    context["metatags"] = context.get("metatags", "") + tags(title, about, address, page, cards)


def setup(app: Sphinx) -> dict[str, Any]:
    """Called by Sphinx."""
    app.connect("html-page-context", _on_page)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
