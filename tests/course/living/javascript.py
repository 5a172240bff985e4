"""Scenes' JavaScript, run by node where there is one."""

import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from zerolab.course import living


def node(folder: Path, program: str, *options: str, **given: object) -> str:
    """What a program prints, a module that lies in `folder` beside a JSON file for each value of `given`. Without node
    the test is skipped."""
    command = shutil.which("node")
    if command is None:
        pytest.skip("no node to run JavaScript with")
    (folder / "program.mjs").write_text(program)
    for name, value in given.items():
        (folder / f"{name}.json").write_text(json.dumps(value))
    ran = subprocess.run(
        [command, *options, "program.mjs"], cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def answers(scene: str, expression: str, folder: Path, **given: object) -> Any:
    """What an expression gives in a scene's module, `given` being its variables."""
    reads = (f"const {name} = JSON.parse(readFileSync('{name}.json'));" for name in given)
    program = [
        'import { readFileSync } from "node:fs";', "globalThis.window ??= { matchMedia: () => ({}) };",
        living.module(scene), *reads, f"console.log(JSON.stringify({expression}));",
    ]  # fmt: skip
    return json.loads(node(folder, "\n".join(program), **given))


def words(scene: str, asked: Sequence[dict[str, Any]], folder: Path, data: object = None) -> list[dict[str, str]]:
    """What a scene says of each of these settings, from what was recorded or from other data."""
    given = {"data": data or json.loads(living.recorded(scene)), "asked": asked}
    return list(answers(scene, "asked.map((one) => textOf(data, one))", folder, **given))
