"""The theme's icons: a script with two thousand of them, of which the site's pages use about a dozen. The rest is left
out, since nothing else that a page loads is half as large."""

from __future__ import annotations

import re
from pathlib import Path

SCRIPT = "_static/scripts/fontawesome.js"
USED = re.compile(r"\bfa-([a-z0-9-]+)")
ICON = re.compile(
    r'(?<=[{,])(?P<name>"[\w-]+"|[a-zA-Z_]\w*):\[\d+,\d+,\[(?P<others>[^\[\]]*)\],"[0-9a-f]+",'
    r'(?:"[^"]*"|\["[^\]]*\])\],?',
    re.ASCII,
)
"""An icon in the script: its name, width, height, other names, a code, and one path or two."""


def without(script: str, used: set[str]) -> str:
    """The script with those icons alone that go by one of the names in `used`."""

    def kept(icon: re.Match[str]) -> str:
        names = {icon["name"].strip('"'), *re.findall(r'"([\w-]+)"', icon["others"])}
        return icon[0] if names & used else ""

    return ICON.sub(kept, script)


def trim(site: Path) -> int:
    """Leave out of a built site's icons what no page and no script of the theme names. Returns how many bytes went."""
    file = site / SCRIPT
    script = file.read_text()
    namers = [*site.rglob("*.html"), *(path for path in (site / "_static").rglob("*.js") if path != file)]
    used = {name for path in namers for name in USED.findall(path.read_text())}
    file.write_text(without(script, used))
    return len(script) - len(file.read_text())
