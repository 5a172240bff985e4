"""The library's own text, shown in a lesson: what runs is what is read, and what changes from one stage to another."""

from __future__ import annotations

import difflib
import inspect
import textwrap
from html import escape
from typing import Any

import torch

from zerolab.zero.start import check_stage
from zerolab.zero.table import StateTable, make_rows
from zerolab.zero.units import dtypes_of


class Source:
    """The source of a function or class, as a notebook shows it."""

    def __init__(self, thing: Any) -> None:
        self.text = textwrap.dedent(inspect.getsource(thing)).rstrip()
        self.name = f"{thing.__module__}.{thing.__qualname__}"

    def _repr_markdown_(self) -> str:
        # A page made by nbconvert shows fenced code in the font around it; JupyterLab has a font of its own for code.
        return f'`{self.name}`\n\n<div style="font-family: monospace">\n\n```python\n{self.text}\n```\n\n</div>'

    def __repr__(self) -> str:
        return f"{self.name}\n\n{self.text}"


NUMEL = 1 << 20
"""Elements of the bucket whose bytes are counted. Any number that divides would do."""
GROUNDS = {"+": "rgba(46, 160, 67, 0.2)", "-": "rgba(220, 80, 60, 0.2)"}
"""Grounds of lines that came and went, on white and on black."""


class Changes:
    """The tables of two stages in fp32, line by line, "-" before what only the first has and "+" before what only the
    second has; the collective that each verb makes; and what a rank sends in a step."""

    def __init__(self, before: int, after: int, ranks: int = 4) -> None:
        self.title = f"stage {before} -> stage {after}, a bucket on {ranks} ranks"
        found = difflib.ndiff(described(before, ranks), described(after, ranks))
        self.lines = [line for line in found if not line.startswith("?")]

    def __repr__(self) -> str:
        return "\n".join([self.title, "", *(line.rstrip() for line in self.lines)])

    def _repr_html_(self) -> str:
        style = "overflow-x: auto; white-space: pre; font-family: monospace; line-height: 1.35; margin: 0.4em 0"
        rows = (
            f'<span style="display: block; background: {GROUNDS.get(line[0], "none")}">{escape(line) or " "}</span>'
            for line in self.lines
        )
        return f'<p><b>{escape(self.title)}</b></p><pre style="{style}">{"".join(rows)}</pre>'


def described(stage: int, ranks: int) -> list[str]:
    """The table of a stage as lines, and what follows from it."""
    check_stage(stage)
    rows = make_rows([stage], [ranks], dtypes_of(torch.float32, None))
    # A unit of stage 3 is gathered for its forward and for its backward.
    (sent,) = rows.sent(NUMEL * ranks, uses=2)
    models = sent / (NUMEL * (ranks - 1) * rows.parameters.dtype.itemsize) if ranks > 1 else 0
    calls = [f"{verb:15}{call}" for verb, call in calls_of(rows).items()]
    return [*rows.explain([f"{ranks} ranks"]).split("\n"), "", *calls, "", f"{'sent':15}{models:g}Ψ (N-1)/N a step"]


def calls_of(rows: StateTable) -> dict[str, str]:
    """The collective of each verb of a bucket with this table."""
    return {
        "gather": "all-gather" if rows.parameters.depth else "none",
        "reduce": "reduce-scatter" if rows.reduced else "all-reduce",
        "publish": "all-gather" if rows.publishes else "none",
    }
