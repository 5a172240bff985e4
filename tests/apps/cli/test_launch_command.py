"""`zerolab launch`: ranks of a script, as torchrun starts them (row 1 of the sources)."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import born
import psutil
import pytest

from zerolab.apps.cli import main
from zerolab.data import Corpus
from zerolab.errors import InputError
from zerolab.ranks.job import read_collectives
from zerolab.run import RunSpec
from zerolab.train import Report, train
from zerolab.train.progress import Stop
from zerolab.train.resume import Start

ROOT = Path(__file__).resolve().parents[3]
GRID = "--tensor-model-parallel-size 1 --pipeline-model-parallel-size 1 --expert-model-parallel-size 1"
PIPELINE = "--pipeline-model-parallel-size 2 --expert-model-parallel-size 2 --num_microbatches 2"
DTYPES = "--main-params-dtype fp32 --main-grads-dtype fp32 --exp-avg-dtype fp32 --exp-avg-sq-dtype fp32"
ON = "--use-distributed-optimizer --data-parallel-sharding-strategy"
# What a page of a text on Megatron's flags gives to its script, page by page; the stage, and the dtype of parameters.
PAGES = {
    f"{GRID} --max_steps 2 --data-parallel-sharding-strategy no_shard": (0, None),
    f"{GRID} {ON} optim --max_steps 2": (1, None),
    f"{GRID} {ON} optim_grads --max_steps 2": (2, None),
    f"{GRID} {ON} optim_grads --fp16 --params-dtype fp16 {DTYPES} --max_steps 2": (2, "fp16"),
    f"{GRID} {ON} optim --fp8 --fp8-backend emulated --params-dtype bf16 {DTYPES} --max_steps 1": (1, "bf16"),
}
REFUSED_PAGES = {
    f"{PIPELINE} {ON} optim --max_steps 1",
    f"{PIPELINE} {ON} optim_grads --zero-debug --zero-debug-max-steps 1 --zero-debug-max-params 12 --max_steps 1",
}


def launched(*words: object) -> subprocess.CompletedProcess[str]:
    """`zerolab launch` in a process of its own, which torchrun takes over."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = ["-m", "zerolab", "launch", *words]
    return born.ran(*command, text=True, capture_output=True, timeout=50, env=environment, server="own")


def page(ranks: int, arguments: str) -> list[str]:
    start = f"launch --world-size {ranks} --backend gloo --script examples/train_4d.py --script-args"
    return [*start.split(), *arguments.split()]


@pytest.mark.ranks
@pytest.mark.timeout(100)
@pytest.mark.parametrize("arguments", PAGES)
def test_row_01_a_page_on_megatrons_flags_runs_as_it_is_written(
    arguments: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    seen: list[RunSpec] = []

    def smaller(config: RunSpec, corpus: Corpus, start: Start, stop: Stop) -> Report:
        seen.append(config)
        # One of them in processes.
        small = {"model_size": "nano", "seq_len": 16, "world": "processes" if config.fp16 else "lockstep"}
        nano = config.model_copy(update=small)
        return train(nano, corpus, Start(nano), stop)

    monkeypatch.setattr("zerolab.train.run.train", smaller)
    assert main(page(2, arguments)) == 0
    out, err = capfd.readouterr()
    assert "there is no examples/train_4d.py here, so zerolab train runs in its place" in err
    stage, dtype = PAGES[arguments]
    precision = seen[0].dtypes
    assert (seen[0].zero_stage, precision and precision.params) == (stage, dtype)
    assert f"ZeRO-{stage}, 2 ranks" in out and "NO" not in out
    strategy = re.search("strategy ([a-z_]+)", arguments)
    assert strategy and f"Distributed optimizer: enabled={stage > 0} strategy={strategy[1]}" in err


@pytest.mark.parametrize("arguments", sorted(REFUSED_PAGES))
def test_row_07_pages_with_grids_of_parallelism_are_refused_by_name_until_there_are_grids(
    arguments: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(page(4, arguments)) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert "--pipeline-model-parallel-size is 2" in said and "give 1" in said


TOTAL = """
import sys
import torch
import zerolab

def total(comm):
    return type(comm).__name__, comm.all_reduce(torch.tensor([float(comm.rank + 1)])).item()

results = zerolab.launch(total, ranks=None, timeout=60)
print("hears", sys.argv[1:], [result for result in results if result])
"""


@pytest.mark.ranks
@pytest.mark.timeout(60)
def test_row_01_ranks_of_a_script_meet_in_one_world_and_get_their_arguments(tmp_path: Path) -> None:
    script = tmp_path / "total.py"
    script.write_text(TOTAL)
    done = launched(script, "--ranks", "2", "--collectives", "ring", "--", "--a_b", "--", "c")
    assert done.returncode == 0, done.stderr
    out = sorted(line for line in done.stdout.splitlines() if "hears" in line)
    assert out == [f"rank {rank} | hears ['--a_b', '--', 'c'] [('RingCollectives', 3.0)]" for rank in (0, 1)]


FAILS = """
import os, subprocess, sys, time
if os.environ["RANK"] == "1":
    sys.exit("rank 1 has seen enough") if sys.argv[1] == "exits" else os.kill(os.getpid(), 9)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"])
print("started", os.getpid(), child.pid, flush=True)
time.sleep(100)
"""


def gone(pids: list[int]) -> bool:
    """Whether none of these processes lives, after a moment for the system to take them away."""
    until = time.monotonic() + 20
    while any(psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie" for pid in pids):
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True


@pytest.mark.timeout(60)
@pytest.mark.parametrize(("way", "status", "said"), [("exits", 1, "status 1"), ("is killed", 137, "SIGKILL")])
def test_row_01_the_first_rank_that_fails_ends_all_and_is_named_and_nothing_is_left(
    way: str, status: int, said: str, tmp_path: Path
) -> None:
    script = tmp_path / "fails.py"
    script.write_text(FAILS)
    done = launched(script, "--ranks", "2", "--", way)
    out, err = done.stdout, done.stderr
    assert done.returncode == status, err
    last = err.splitlines()[-1]
    assert last.startswith("zerolab launch: rank 1 ") and said in last and last.endswith("; all ranks were ended")
    assert way == "is killed" or "rank 1 | rank 1 has seen enough" in err
    assert gone([int(pid) for pid in re.findall(r"\d{2,}", out)])


@pytest.mark.skipif(sys.platform == "win32", reason="signals are those of Unix")
@pytest.mark.timeout(60)
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_row_01_a_signal_ends_every_rank_with_one_line(number: int, status: int, tmp_path: Path) -> None:
    script = tmp_path / "sleeps.py"
    script.write_text("import os, time; print(os.getpid(), flush=True); time.sleep(100)")
    words = [sys.executable, "-m", "zerolab", "launch", str(script), "--ranks", "2"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(words, stdout=-1, stderr=-1, text=True, env=environment) as command:
        assert command.stdout is not None and command.stderr is not None
        pids = [int(command.stdout.readline().rpartition(" ")[2]) for _ in range(2)]
        command.send_signal(number)
        assert command.wait(30) == status
        said = command.stderr.read()
    assert gone(pids)
    # A rank that is interrupted may say so itself.
    assert said.count("all ranks were ended") == 1 and said.splitlines()[-1].startswith("zerolab launch: ")


REFUSED = {
    "no/such.py": "'no/such.py'",
    "": "no script",
    "a.py -m b": "both a script, a.py, and a module, b,",
    "a.py --script b.py": "SCRIPT is a.py and --script is b.py",
    "-m a --ranks 2 --world-size 3": "--ranks is 2 and --world-size is 3",
    "-m a --ranks 0": "--ranks is '0'; it should be greater than or equal to 1",
    "-m a --ranks 129": "--ranks is '129'; it should be less than or equal to 128",
    "a.py --lr 3": "unrecognized arguments: --lr 3; put -- before the script's own arguments",
    "-m a --ranks many": "--ranks is 'many'",
    "-m a --backend nccl --ranks 128": "--backend is nccl",
}


@pytest.mark.parametrize("arguments", REFUSED)
def test_a_launch_that_cannot_work_is_refused_in_one_sentence(
    arguments: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["launch", *arguments.split()]) == 2
    said = capsys.readouterr().err
    assert REFUSED[arguments] in said and len(said.splitlines()) == 1 and ";" in said


def test_help_says_what_a_rank_finds_and_how_arguments_are_passed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["launch", "--help"])
    said = capsys.readouterr().out
    assert ended.value.code == 0
    assert all(word in said for word in ("RANK", "MASTER_PORT", "--collectives", "-- ARGUMENTS", "-m MODULE"))


def test_auto_is_what_the_launcher_asked_for_where_nobody_asks_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZEROLAB_COLLECTIVES", "torch")
    assert [read_collectives("auto", False), read_collectives("shared", False), read_collectives("auto", True)] == [
        "torch",
        "shared",
        "auto",
    ]
    monkeypatch.setenv("ZEROLAB_COLLECTIVES", "fast")
    with pytest.raises(InputError, match="ZEROLAB_COLLECTIVES is 'fast'"):
        read_collectives("auto", False)
