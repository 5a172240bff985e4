"""Formulas as MathML, made when the site is built: each browser of today draws them without a script."""

from __future__ import annotations

from typing import Any

from docutils.nodes import SkipNode
from latex2mathml.converter import convert
from sphinx.application import Sphinx


def inline(self: Any, node: Any) -> None:
    self.body.append(convert(node.astext(), display="inline"))
    raise SkipNode  # the formula's source is not shown beside it


def block(self: Any, node: Any) -> None:
    self.body.append(f'<div class="formula">{convert(node.astext(), display="block")}</div>')
    raise SkipNode


def setup(app: Sphinx) -> dict[str, Any]:
    """Called by Sphinx: `mathml` is one more way to draw formulas."""
    app.add_html_math_renderer("mathml", (inline, None), (block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
