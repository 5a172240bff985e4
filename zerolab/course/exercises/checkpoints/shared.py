"""What exercises of lesson 08 share: what their texts give, and a claim about a run that takes no other rank."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch

from zerolab.course.judge.case import Case, Observation
from zerolab.course.judge.model import Gives


def given(text: str, *cells: str) -> dict[str, Any]:
    """What the cells of these names define."""
    names: dict[str, Any] = {"torch": torch, "__name__": __name__}
    for cell in cells:
        exec(re.findall(rf"^:name: {cell}\n\n(.*?)^```", text, re.DOTALL | re.MULTILINE)[0], names)
    return names


class Single(Gives):
    """Its hints say whose run it was themselves: it is always rank 0's that is seen."""

    def hint(self, case: Case, seen: Observation, earlier: Sequence[Case] = ()) -> str | None:
        said = super().hint(case, seen, earlier)
        return said and said.removeprefix("rank 0 ")
