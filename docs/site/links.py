"""Links of a built site: what a page leads to or loads must be there, and nothing may be loaded from elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADED = {"src", "data", "poster"}


class Page(HTMLParser):
    """The names in a page that links may lead to, and its links with whether they are loaded with it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.links: list[tuple[str, bool]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attributes}
        self.names |= {given[name] for name in ("id", "name") if given.get(name)}
        for name in ("href", *LOADED):
            if name in given:
                self.links.append(
                    (given[name], name in LOADED or (tag == "link" and "stylesheet" in given.get("rel", "")))
                )


@cache
def read(file: Path) -> Page:
    return Page(file.read_text())


def broken(site: Path) -> list[str]:
    """A sentence for each link that leads nowhere, and for each thing that is loaded from another host."""
    return [
        sentence
        for file in sorted(site.rglob("*.html"))
        if file.parent.name != "_static"  # templates of the theme are no pages
        for sentence in of_page(file, site)
    ]


def of_page(file: Path, site: Path) -> Iterator[str]:
    where = file.relative_to(site)
    for link, loaded in read(file).links:
        to = urlsplit(link)
        if to.scheme or to.netloc:
            if loaded and to.scheme != "data":
                yield f"{where} loads {link}, which needs a network"
            continue
        there = (file.parent / unquote(to.path)).resolve() if to.path else file
        if there.is_dir():
            there /= "index.html"
        if not there.is_file():
            yield f"{where} leads to {link}, which is not there"
        elif to.fragment and there.suffix == ".html" and unquote(to.fragment) not in read(there).names:
            yield f"{where} leads to {link}, and there is no {to.fragment} in that page"
