"""`python tools/map.py`: draws the house from its imports into docs/map.md. A test holds the page to the code.

A room is a folder of `zerolab/`, `zerolab/apps/` or `zerolab/course/`, or a file that stands there alone. Its floor is
one above the highest room that it imports; rooms that import each other share one. Imports for types alone count, too.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "map.md"
WINGS = {
    "The library, `zerolab/`": "",
    "The apps, `zerolab/apps/`": "apps.",
    "The course, `zerolab/course/`": "course.",
}
HEAD = """# Map

The house as its imports draw it, made by `python tools/map.py`; what each room is for stands in [design.md](design.md).
A room stands one floor above all that it imports (the floors of design.md say what it may). `errors` is left out:
everybody imports it.
"""


@dataclass
class Room:
    """What stands in one room, and the rooms that it imports."""

    files: int = 0
    lines: int = 0
    imports: set[str] = field(default_factory=set)


def room_of(parts: Iterable[str]) -> str:
    """The room of a module, by the parts of its name after `zerolab`; '' is a front door, which belongs to none."""
    first, *rest = [*parts, "", ""]
    if f"{first}." not in WINGS.values():
        return first
    return f"{first}.{rest[0]}" if rest[0] else ""


def rooms() -> dict[str, Room]:
    """All rooms by name, from the files as they are."""
    found: dict[str, Room] = {}
    for path in sorted((ROOT / "zerolab").rglob("*.py")):
        parts = [part for part in path.relative_to(ROOT / "zerolab").with_suffix("").parts if part != "__init__"]
        name, text = room_of(parts), path.read_text(encoding="utf-8")
        if name in ("", "__main__", "errors"):
            continue
        room = found.setdefault(name, Room())
        room.files += 1
        room.lines += len(text.splitlines())
        room.imports |= imported(text) - {"errors", name}
    for room in found.values():
        # The front doors hand on names of rooms, such as the version.
        room.imports &= found.keys()
    return found


def imported(text: str) -> set[str]:
    """The rooms that a file imports. (All of the house imports by whole names.)"""
    modules = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            modules |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {room_of(module.split(".")[1:3]) for module in modules if module.split(".")[0] == "zerolab"}


def floors(house: dict[str, Room]) -> dict[str, int]:
    """The floor of each room, counted from 0 within the house."""
    below = {name: reached(name, house) for name in house}
    floor: dict[str, int] = {}
    while len(floor) < len(house):
        for name in house:
            under = {other for other in below[name] if name not in below[other]} - {name}
            if name not in floor and under <= floor.keys():
                floor[name] = max((floor[other] + 1 for other in under), default=0)
    return floor


def reached(name: str, house: dict[str, Room]) -> set[str]:
    """All rooms that a room imports, and those that these import."""
    seen: set[str] = set()
    todo = [name]
    while todo:
        new = house[todo.pop()].imports - seen
        seen |= new
        todo += new
    return seen


def about(lines: int) -> str:
    """A number of lines to the next hundred above, so that the page does not change with every line."""
    return f"{-(-lines // 100) * 100:,}"


def page() -> str:
    """The text of docs/map.md."""
    house = rooms()
    floor = floors(house)
    lines = [HEAD]
    for title, prefix in WINGS.items():
        own = [name for name in house if name.rpartition(".")[0] == prefix.rstrip(".")]
        own.sort(key=lambda name: (-floor[name], name))
        lines += [f"## {title}\n", "| floor | room | files | lines, about | imports |", "|---|---|---|---|---|"]
        for name in own:
            room = house[name]
            what = ", ".join(sorted(room.imports, key=lambda other: (-floor[other], other)))
            size = f"{room.files} | {about(room.lines)}"
            lines.append(f"| {floor[name]} | {name.removeprefix(prefix)} | {size} | {what} |")
        total = sum(house[name].lines for name in own)
        lines.append(f"| | **all** | {sum(house[name].files for name in own)} | {about(total)} | |\n")
    return "\n".join(lines).rstrip("\n") + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
