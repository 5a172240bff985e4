"""How many code cells of notebooks nbval compares: `python tools/compared.py notebooks/*.ipynb`.

nbval runs a cell and compares its outputs, none included, unless the cell was never run or a tag or comment says
otherwise. Pictures are left out of a comparison, so a cell that shows nothing else counts as not compared. Fails
below 85 %.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

LEAST = 0.85
SPARED = re.compile(r"nbval-(skip|ignore-output)|NBVAL_(SKIP|IGNORE_OUTPUT)", re.IGNORECASE)
NOT_COMPARED = ("image/png", "application/vnd.jupyter.widget-view+json")


def is_compared(cell: dict[str, Any]) -> bool:
    """Whether a difference in what the cell shows would be seen."""
    tags = " ".join(cell["metadata"].get("tags", []))
    if cell["execution_count"] is None or SPARED.search(tags) or SPARED.search("".join(cell["source"])):
        return False
    kinds = [set(output.get("data", {"text": ""})) - set(NOT_COMPARED) for output in cell["outputs"]]
    return all(kinds)


def code_cells(path: Path) -> list[dict[str, Any]]:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


def main(names: Sequence[str]) -> int:
    """Print the share; 1 if it is too low."""
    cells = [cell for name in names for cell in code_cells(Path(name))]
    compared = sum(map(is_compared, cells))
    share = compared / len(cells) if cells else 0.0
    shown = sum(bool(cell["outputs"]) for cell in cells)
    print(f"nbval: {compared} of {len(cells)} code cells compared ({share:.0%}); {shown} of them show something")
    return 0 if share >= LEAST else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
