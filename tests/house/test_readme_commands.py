"""Every command of the README runs.

What would take long is made small, by `SMALLER`: fewer steps, a nano model, two ranks in place of sixteen (whose batch
is then checked by itself), one exercise to grade. Of `benchmarks.peers` only the flags are read here, since
`test_benchmarks.py` trains all that it compares; of `make` what it would do. By day a command whose words begin
another's is run as a part of that one, and of the lines of `zerolab train` the first is a process and the others are
the function that it calls, with the same words; nightly all are processes.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import born
import pytest
from cover import NIGHTLY

from zerolab.apps import cli
from zerolab.apps.cli.train import make_parser
from zerolab.run import RunSpec

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
PROGRAMS = (".venv/bin/", "make ", "torchrun ")


def commands() -> list[str]:
    """Lines of fenced blocks, code in sentences, and the comment that says how the table was made."""
    fenced = [line for block in re.findall(r"```\n(.*?)```", README, re.DOTALL) for line in block.splitlines()]
    inline = re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", README, flags=re.DOTALL))
    hidden = re.findall(r"<!-- (.*?) -->", README)
    found = (line.partition("  #")[0].strip() for line in [*fenced, *inline, *hidden])
    return list(dict.fromkeys(line for line in found if line.startswith(PROGRAMS)))


SMALLER = {
    "zerolab train": ["--max-steps", "1", "--model-size", "nano"],
    "zerolab sweep --stages": ["--stages", "3", "--model-size", "nano"],
    "benchmarks.stages": ["--ranks", "2", "--model-size", "nano", "--steps", "3", "--rounds", "1"],
    "benchmarks.peers": ["--help"],
}


def chosen() -> list[str]:
    """Those that run; see above."""
    return [line for line in commands() if NIGHTLY or not any(other.startswith(f"{line} ") for other in commands())]


def is_called(line: str) -> bool:
    """Whether the command's function is called in the place of a process of its own."""
    trains = [line for line in commands() if line.startswith(".venv/bin/zerolab train ")]
    others = tuple(f".venv/bin/zerolab {name} " for name in ("checkpoint", "prepare", "sample", "sweep"))
    return not NIGHTLY and (line in trains[1:] or line.startswith(others))


def before(line: str) -> list[str]:
    """The lines whose outcome a line needs."""
    if " checkpoint " in line:
        return [next(other for other in commands() if "--save-folder runs/a" in other)]
    needed = (
        [other for other in commands() if " prepare " in other] if "/log" in line and " prepare " not in line else []
    )
    if "--plot sweeps/" in line:
        needed += [other for other in commands() if "--out sweeps/" in other]
    return needed + [other for other in commands() if "--save-folder runs/log" in other and " sample " in line]


def ran(words: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    # What an outer make or torchrun has set is not for the one that is started here.
    mine = {name: value for name, value in os.environ.items() if not name.startswith("MAKE") and name != "MFLAGS"}
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    options = {"cwd": folder, "env": {**mine, "PYTHONPATH": path}, "capture_output": True, "text": True}
    if words[0] == sys.executable:
        return born.ran(*words[1:], timeout=100, **options)
    return subprocess.run(words, timeout=100, **options)


def translated(line: str, folder: Path) -> list[str]:
    """What is run for a line: the same program of this environment, made small."""
    # The shell's sign for work beside it, which is nothing to a test that waits.
    program, *words = shlex.split(line.removesuffix("&"))
    added = next((more for name, more in SMALLER.items() if name in line), [])
    if program == "make":
        return ["make", "--dry-run", "-C", str(ROOT), *words]
    if program == ".venv/bin/zerolab":
        return [sys.executable, "-m", "zerolab", *words, *added]
    if program == ".venv/bin/python":
        pictures = [str(folder / Path(word).name) if word.endswith(".png") else word for word in words]
        return [sys.executable, *pictures, *added]
    assert program == "torchrun", f"nobody knows how to run {line!r}; say so in this file"
    with socket.socket() as port:
        port.bind(("127.0.0.1", 0))
        number = port.getsockname()[1]
    here = {"--nnodes": "1", "--nproc_per_node": "2", "--node_rank": "0", "--master_addr": "127.0.0.1"}
    here["--master_port"] = str(number)
    replaced = [here.get(before, word) for before, word in zip(["", *words], words, strict=False)]
    return [sys.executable, "-m", "torch.distributed.run", *replaced, *added]


def test_the_commands_are_found() -> None:
    programs = {line.split()[0] for line in commands()}
    assert programs == {"make", "torchrun", ".venv/bin/zerolab", ".venv/bin/python"} and len(commands()) >= 10


@pytest.mark.ranks
@pytest.mark.timeout(110)
@pytest.mark.parametrize("line", chosen())
def test_a_command_runs(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if " grade " in line:
        (tmp_path / "handed_in").mkdir()
        shutil.copy(ROOT / "exercises" / "04_zero_2.ipynb", tmp_path / "handed_in")
    words = translated(line, tmp_path)
    if "CHANGELOG.md" in "".join([line, *before(line)]):
        shutil.copy(ROOT / "CHANGELOG.md", tmp_path)
    for needed in before(line):
        monkeypatch.chdir(tmp_path)
        assert cli.main(translated(needed, tmp_path)[3:]) == 0
    if is_called(line):
        monkeypatch.chdir(tmp_path)
        assert words[:3] == [sys.executable, "-m", "zerolab"] and cli.main(words[3:]) == 0
    else:
        done = ran(words, tmp_path)
        # Nothing is answered in the notebook that is graded, so marks are missing: status 1.
        assert done.returncode == (1 if " grade " in line else 0), done.stdout + done.stderr
    for name in re.findall(r"\S+\.(?:json|md|png)\b", line):
        if "benchmarks.peers" not in line:
            assert (tmp_path / Path(name).name).exists()


@pytest.mark.parametrize("line", [line for line in commands() if line.startswith("torchrun ")])
@pytest.mark.parametrize("nodes", [1, 2])
def test_the_ranks_of_a_torchrun_line_divide_its_batch(line: str, nodes: int) -> None:
    """Of all its machines, and of one."""
    words = shlex.split(line)
    ranks = nodes * int(words[words.index("--nproc_per_node") + 1])
    flags = make_parser().parse_args(words[words.index("train") + 1 :])
    given = {name: value for name, value in vars(flags).items() if value is not None and name != "deepspeed_config"}
    RunSpec(**given, ranks=ranks)
