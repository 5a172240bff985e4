"""The player's JavaScript, run by node where there is one."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from zerolab.course import living

DOM = Path(__file__).with_name("dom.js")


def answers(expression: str, folder: Path, **given: object) -> Any:
    """What an expression gives in the player's module, `given` being its variables. Skips where there is no node."""
    command = shutil.which("node")
    if command is None:
        pytest.skip("no node to run JavaScript with")
    reads = (f"const {name} = JSON.parse(readFileSync('{name}.json'));" for name in given)
    program = ['import { readFileSync } from "node:fs";', DOM.read_text(), living.player(), *reads]
    (folder / "program.mjs").write_text("\n".join([*program, f"console.log(JSON.stringify({expression}));"]))
    for name, value in given.items():
        (folder / f"{name}.json").write_text(json.dumps(value))
    ran = subprocess.run([command, "program.mjs"], cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)
