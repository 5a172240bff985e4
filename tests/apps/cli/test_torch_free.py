"""Help pages, refused flags and `checkpoint show` do not wait for torch, which takes longer to import than they do."""

import ast
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from zerolab.apps import cli
from zerolab.apps.cli.checkpoint import ACTIONS
from zerolab.lazy import LazyPackage, sources_of

ROOT = Path(__file__).resolve().parents[3]
HELP = [[], *([name] for name in cli.COMMANDS), *(["checkpoint", name] for name in ACTIONS)]
REFUSED = """
nothing
train --nothing
train --ranks 0
train --ranks 200
train --model-size huge
train --layers 3 --dim 7
train --seq-len 9 --context 4
train --batch-size 5
train --fp16 --bf16
train --loss-scale 2
train --min-lr 0.1 --lr-schedule cosine
train --gbit-per-s -1
train --offload-param host
train --offload-optimizer disk --offload-path /nowhere
train --zero-stage 2 --prefetch-bucket-size 4
train --num-distributed-optimizer-instances 3
train --world virtual --eval-every 3
train --profile-json /nowhere/x.json
train --resume
train --use-distributed-optimizer --data-parallel-sharding-strategy nothing
train --deepspeed-config /nowhere.json
train --config /nowhere.py
train --use_zero1=True --batch_size=8.5
train --use_zero1=True --dataset=nowhere
sweep --nothing
sweep --stages 9 --out nowhere
sweep --stages 1
prepare a --out b --valid-fraction 2
prepare /nowhere --out b
sample /nowhere
sample . --temperature -1
sample . --dataset nowhere
launch
launch /nowhere.py
launch a.py --backend mpi
checkpoint nothing
checkpoint show /nowhere
checkpoint verify /nowhere
checkpoint consolidate /nowhere out
checkpoint consolidate . out --dtype int8
checkpoint convert a b --to nothing
plan --model nothing
plan --model gpt2 --ranks 0
plan --model gpt2 --seq-len 99999999
plan --model gpt2 --gpu nothing
plan --model gpt2 --cards 2
plan --model gpt2 --recommend
plan --model gpt2 --emit nothing
plan --model gpt2 --attention eager --emit zerolab
plan --model gpt2 --json /nowhere/x
env --nothing
env --json /nowhere/x
grade --nothing
grade --seconds -1
grade --json /nowhere/x
"""
PROGRAM = """
import contextlib, io, sys
from zerolab.apps.cli import main

for words in {commands}:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        try:
            status = main(words)
        except SystemExit as end:
            status = end.code
    print(status, "torch" in sys.modules, *words)
    if "torch" in sys.modules:
        break
"""


def run_all(commands: list[list[str]], folder: Path) -> list[str]:
    """What a new Python prints that runs these commands one after the other, until one imports torch."""
    code = PROGRAM.format(commands=commands)
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_no_help_page_imports_torch(tmp_path: Path) -> None:
    commands = [[*words, "--help"] for words in HELP]
    assert len(commands) == 14
    assert run_all(commands, tmp_path) == [f"0 False {' '.join(words)}" for words in commands]


def test_no_refused_flag_imports_torch(tmp_path: Path) -> None:
    commands = [line.split() for line in REFUSED.strip().splitlines()]
    assert {words[0] for words in commands} == {"nothing", *cli.COMMANDS}
    assert run_all(commands, tmp_path) == [f"2 False {' '.join(words)}" for words in commands]


def test_showing_a_checkpoint_does_not_import_torch(tmp_path: Path) -> None:
    flags = ["--world=lockstep", "--ranks=2", "--model-size=nano", "--seq-len=16", "--max-steps=1"]
    assert cli.main(["train", *flags, "--save-folder", str(tmp_path / "runs")]) == 0
    show = ["checkpoint", "show", str(tmp_path / "runs")]
    assert run_all([show], tmp_path) == [f"0 False {' '.join(show)}"]


PACKAGES = sorted(
    path.parent for path in (ROOT / "zerolab").rglob("__init__.py") if "import_when_asked" in path.read_text()
)
FORKED = """
import os, sys, torch

for name, code in {programs}.items():
    if not (fork := os.fork()):
        exec(code)
        sys.stdout.flush()
        os._exit(0)
    print(name, os.waitstatus_to_exitcode(os.waitpid(fork, 0)[1]))
"""


def test_a_package_gives_what_type_checkers_see_whatever_is_imported_first() -> None:
    programs = {}
    for folder in PACKAGES:
        name = ".".join(folder.relative_to(ROOT).parts)
        block = next(node for node in ast.parse((folder / "__init__.py").read_text()).body if isinstance(node, ast.If))
        seen = {alias.name: str(node.module) for node in block.body for alias in node.names}  # type: ignore[attr-defined]
        assert sources_of(str(folder / "__init__.py")) == seen
        modules = [f"{name}.{path.stem}" for path in folder.glob("*.py") if path.stem not in ("__init__", "__main__")]
        programs[name] = (
            f"import {', '.join(modules)}\nimport {name} as package, sys\nfrom {name} import *\n"
        ) + "\n".join(
            f"assert {one} is sys.modules[{module!r}].{one} and {one!r} in dir(package), {one!r}"
            for one, module in seen.items()
        )
    code = FORKED.format(programs=programs)
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.stdout.splitlines() == [f"{name} 0" for name in programs], done.stderr


def test_a_name_that_a_package_has_not_is_an_attribute_error() -> None:
    import zerolab.models

    assert isinstance(zerolab.models, LazyPackage)
    with pytest.raises(AttributeError, match=r"module 'zerolab\.models' has no attribute 'nothing'"):
        _ = zerolab.models.nothing
    with pytest.raises(ImportError):
        from zerolab.models import nothing  # type: ignore[attr-defined]  # noqa: F401


def test_a_rank_function_may_use_a_package_as_plain_python_does() -> None:
    from zerolab import models
    from zerolab.ranks import launch

    assert launch(lambda comm: models.build("gpt2", "nano").config.layers, ranks=1, timeout=60) == [2]
    assert pickle.loads(pickle.dumps(models)) is models
