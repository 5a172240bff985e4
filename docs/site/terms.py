"""Words of the glossary: the first of each on a page leads there, and shows what it means to whoever points at it."""

from __future__ import annotations

import re
from functools import cache
from html import escape
from typing import Any

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.transforms.post_transforms import SphinxPostTransform

GLOSSARY = "glossary"
PLAIN = (nodes.literal, nodes.literal_block, nodes.reference, nodes.title, nodes.raw, nodes.math, pending_xref)
"""Where words stand for themselves."""


@cache
def meanings(env: BuildEnvironment) -> dict[str, str]:
    """Each term of the glossary and what it says there, as plain text."""
    tree = env.get_doctree(GLOSSARY)
    return {
        term.astext(): item[-1].astext().replace("\n", " ")
        for item in tree.findall(nodes.definition_list_item)
        for term in item.findall(nodes.term)
    }


class Cards(SphinxPostTransform):
    """Puts a link with a card where a page first says a term."""

    default_priority = 800
    formats = ("html",)

    def run(self, **kwargs: Any) -> None:
        page = self.env.docname
        if page == GLOSSARY or page.split("/")[0] not in ("notebooks", "exercises", "index"):
            return
        left = dict(meanings(self.env))
        up = "../" * page.count("/")
        for text in [*self.document.findall(nodes.Text)]:
            if left and not any(isinstance(above, PLAIN) for above in ancestors(text)):
                self.mark(text, left, up)

    def mark(self, text: nodes.Text, left: dict[str, str], up: str) -> None:
        if not left:
            return
        words = "|".join(sorted(map(re.escape, left), key=len, reverse=True))
        found = re.search(rf"\b({words})(e?s)?\b", text, re.IGNORECASE)
        if not found:
            return
        term = next(term for term in left if term.lower() == found[1].lower())
        meaning = left.pop(term)
        address = f"{up}{GLOSSARY}.html#term-{term.replace(' ', '-')}"
        card = f'<a class="term" href="{escape(address)}" data-card="{escape(meaning)}">{escape(found[0])}</a>'
        rest = nodes.Text(text[found.end() :])
        text.parent.replace(text, [nodes.Text(text[: found.start()]), nodes.raw("", card, format="html"), rest])
        self.mark(rest, left, up)


def ancestors(node: Any) -> list[Any]:
    """What a node stands in, from the nearest outward."""
    return [] if node.parent is None else [node.parent, *ancestors(node.parent)]


def setup(app: Sphinx) -> dict[str, Any]:
    """Called by Sphinx."""
    app.add_post_transform(Cards)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
