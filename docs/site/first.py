"""The first page: what its text leaves to be filled in, a picture that moves and a way to run a lesson at one click."""

from __future__ import annotations

from pathlib import Path

from lesson import with_files
from oneclick import badges

from zerolab.course.living import SCENES, marked

PICTURE, CLICK = "<!-- the picture that moves -->", "<!-- one click -->"
BEGINS = {"stage": 2, "moment": 8}
"""Of the picture: in backward, when gradients flow to their owners."""
START = "notebooks/00_start_here.ipynb"


def first_page(text: str, pictures: Path, repository: str) -> str:
    """`text` with the picture and the links in the places that it names. The still picture is written into the folder
    `pictures`; `repository` is OWNER/NAME, or "" where it is not known.

    Raises ValueError for a text without one of the places.
    """
    for place in (PICTURE, CLICK):
        if place not in text:
            raise ValueError(f"the first page has no place {place}; put it into docs/site/index.md")
    still = SCENES["stages"].picture(**BEGINS)
    html = with_files(still.html(), "docs/site/index.md", pictures, "_static/pictures", "first")
    scene = marked("stages", BEGINS, html)
    text = text.replace(PICTURE, f'````{{raw}} html\n<div class="first">{scene}</div>\n````')
    return text.replace(CLICK, badges(repository, START, "docs/one_click.html"))
