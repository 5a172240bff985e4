"""`zerolab train` saves, is ended in many ways, and goes on; `zerolab checkpoint` looks into what was saved."""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import born
import pace
import pytest

from zerolab.apps.cli import main
from zerolab.apps.cli.tables import text_of
from zerolab.checkpoint import checkpoints_in, read_manifest
from zerolab.checkpoint.folder import Folder
from zerolab.checkpoint.manifest import MANIFEST
from zerolab.run import RunSpec
from zerolab.train import Report, train

RUN = {"model_size": "nano", "seq_len": 32, "lr": 3e-3, "world": "lockstep"}
FLAGS = ["train", "--model-size", "nano", "--seq-len", "32", "--lr", "3e-3", "--timeout", "60"]
WHOLE, PART = 5, 3


def run(**settings: object) -> Report:
    return train(RunSpec(**{**RUN, "max_steps": WHOLE, **settings}))


def agrees(report: Report) -> bool:
    memory = all(report.memory_measured[kind] == sizes for kind, sizes in report.memory_predicted.items())
    return memory and report.traffic_measured == report.traffic_predicted


def steps_in(folder: Path) -> list[int]:
    return [read_manifest(path).step for path in checkpoints_in(folder)]


def environment(**more: object) -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", **{name: str(value) for name, value in more.items()}}


def started(*flags: object, env: Mapping[str, str] | None = None, **options: object) -> subprocess.Popen[str]:
    """A `zerolab train` in a process of its own."""
    streams = {"text": True, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return born.python("-m", "zerolab", *FLAGS, *flags, env=env or environment(), **streams, **options)


def until_saved(folder: Path, process: subprocess.Popen[str]) -> None:
    """Return once there is a checkpoint."""
    deadline = time.monotonic() + pace.seconds(60)
    while not checkpoints_in(folder):
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()
        time.sleep(0.02)


def said(capsys: pytest.CaptureFixture[str]) -> str:
    """The one line that a command wrote to standard error."""
    error = capsys.readouterr().err
    lines = [line for line in error.replace("\r", "\n").split("\n") if line.startswith("zerolab ")]
    assert len(lines) == 1, error
    return lines[0]


@pytest.fixture(scope="module")
def undisturbed() -> dict[int, Report]:
    """By stage, on two ranks."""
    return {stage: run(ranks=2, zero_stage=stage) for stage in (0, 3)}


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> dict[int, tuple[Path, Report]]:
    """The same runs, ended after some steps, each of which was saved; and their folders."""
    found = {}
    for stage in (0, 3):
        folder = tmp_path_factory.mktemp("saved") / "run"
        found[stage] = folder, run(ranks=2, zero_stage=stage, max_steps=PART, save_folder=folder, save_every=1)
    return found


@pytest.fixture
def saved(parts: dict[int, tuple[Path, Report]], tmp_path: Path) -> Path:
    """A folder of one's own with the checkpoints of stage 3."""
    return Path(shutil.copytree(parts[3][0], tmp_path / "run"))


# Going on


@pytest.mark.ranks
@pytest.mark.timeout(100)
@pytest.mark.parametrize("stage", [0, 3])
def test_a_resumed_run_ends_with_the_bits_of_an_undisturbed_one(
    stage: int, undisturbed: dict[int, Report], parts: dict[int, tuple[Path, Report]], tmp_path: Path
) -> None:
    (folder, part), whole = parts[stage], undisturbed[stage]
    second = run(ranks=2, zero_stage=stage, resume=folder)
    assert part.loss + second.loss == whole.loss
    assert second.parameters_sha256 == whole.parameters_sha256 != part.parameters_sha256
    assert (part.step, second.resumed_step, second.step) == (PART, PART, WHOLE)


@pytest.mark.ranks
@pytest.mark.timeout(100)
def test_with_saves_and_after_a_resume_predicted_bytes_are_measured_bytes(
    undisturbed: dict[int, Report], parts: dict[int, tuple[Path, Report]]
) -> None:
    for stage, (folder, part) in parts.items():
        assert agrees(part) and part.memory_measured == undisturbed[stage].memory_measured
        # But for a loss or two of some bytes, which are still on their way where nothing is saved.
        peaks = [[sum(of_rank) for of_rank in zip(*of.peak.values(), strict=True)] for of in (part, undisturbed[stage])]
        assert peaks[0] == pytest.approx(peaks[1], abs=64)
        assert steps_in(folder) == list(part.save_seconds) == [1, 2, 3]


@pytest.mark.ranks
@pytest.mark.timeout(100)
def test_other_ranks_another_stage_precision_and_place_go_on_with_losses_close_by(
    undisturbed: dict[int, Report], saved: Path, tmp_path: Path
) -> None:
    """With another accumulation, too, and saving what it does to the same folder."""
    more = {"offload_optimizer": "disk", "offload_path": tmp_path, "bf16": True, "grad_accum_steps": 2}
    second = run(ranks=3, zero_stage=2, save_folder=saved, resume=saved, save_every=1, keep=2, **more)
    assert second.loss == pytest.approx(undisturbed[3].loss[PART:], rel=2e-2)
    assert second.loss[-1] < undisturbed[3].loss[0] and agrees(second)
    assert steps_in(saved) == [4, 5] and second.notes


@pytest.mark.ranks
@pytest.mark.timeout(100)
def test_the_checkpoints_learning_rate_and_decay_hold_unless_others_are_given(
    undisturbed: dict[int, Report], saved: Path
) -> None:
    settings = {**RUN, "max_steps": WHOLE, "ranks": 2, "zero_stage": 3, "resume": saved}
    del settings["lr"]
    taken = train(RunSpec(**settings))
    assert taken.parameters_sha256 == undisturbed[3].parameters_sha256 and taken.config.lr == 3e-3
    # Without decay, matrices and norms have the same options, and were in two groups when they were saved.
    others = [train(RunSpec(**settings, **given)) for given in ({"lr": 6e-3}, {"weight_decay": 0.0})]
    assert len({report.parameters_sha256 for report in (taken, *others)}) == 3
    assert [(report.config.lr, report.config.weight_decay) for report in others] == [(6e-3, 0.1), (3e-3, 0.0)]


@pytest.mark.ranks
@pytest.mark.timeout(100)
def test_one_command_line_begins_goes_on_and_finds_that_it_is_done(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = [*FLAGS, "--world", "lockstep", "--save-folder", str(tmp_path / "run"), "--resume"]
    assert main([*flags, "--max-steps", "1"]) == 0
    assert said(capsys) == f"zerolab train: there is no checkpoint in {tmp_path / 'run'} yet, so the run begins anew"
    assert main([*flags, "--max-steps", "2"]) == 0
    first = tmp_path / "run" / "step-00000001"
    captured = capsys.readouterr()
    assert (
        f"zerolab train: the run goes on from {first}, at step 1 of 2, with lr 0.003, weight decay 0.1" in captured.err
    )
    assert f"in 1 step (from step 1 on, of {first})" in captured.out
    assert main([*flags, "--max-steps", "2"]) == 0
    assert said(capsys).endswith("step-00000002 is at step 2 of 2, so there is nothing left to do")


# What cannot go on


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ("--seq-len 16", ["--seq-len is 16", "with 32", "give 32"]),
        ("--seed 7", ["seed is 7", "with 0"]),
        ("--batch-size 24", ["--batch-size is 24", "with 12"]),
        ("--model gpt2", ["--model is gpt2", "with llama"]),
        ("--model-size tiny", ["--model-size is tiny", "with nano"]),
        ("--data-mode synthetic", ["--data-mode gives the text 'synthetic' (sha256", "with 'embedded' (sha256"]),
        ("--resume no/such/folder", ["--resume is 'no/such/folder'", "no checkpoint"]),
        ("--resume {}/step-00000009", ["--resume is ", "step-00000009", "no checkpoint"]),
    ],
)
def test_a_resume_of_another_run_is_refused_in_one_sentence(
    flags: str, named: list[str], parts: dict[int, tuple[Path, Report]], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(parts[3][0])
    assert main([*FLAGS, "--resume", folder, *flags.format(folder).split()]) == 2
    error = said(capsys)
    assert all(word in error for word in named) and error.count("; ") == 1, error


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ("--save-every 2", ["--save-every is 2", "give --save-folder"]),
        ("--keep 2", ["keep is 2", "give --save-folder"]),
        ("--resume", ["--resume", "--save-folder"]),
        ("--save-folder x --save-every 0", ["--save-every is '0'"]),
        (f"--save-folder {__file__}", ["--save-folder is", "no folder"]),
    ],
)
def test_flags_of_saving_that_cannot_work_are_refused(
    flags: str, named: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*FLAGS, *flags.split()]) == 2
    error = said(capsys)
    assert all(word in error for word in named), error


@pytest.mark.ranks
@pytest.mark.timeout(100)
def test_a_folder_that_another_run_saves_to_is_refused_before_the_work(
    saved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = Folder(saved)
    try:
        assert main([*FLAGS, "--save-folder", str(saved), "--max-steps", "1000000"]) == 1
    finally:
        other.close()
    assert said(capsys).startswith(f"zerolab train: another run saves to '{saved}' (process ")
    assert steps_in(saved) == [1, 2, 3]


@pytest.mark.ranks
@pytest.mark.timeout(100)
def test_a_damaged_checkpoint_is_a_sentence_that_names_the_one_before(
    saved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    newest = saved / "step-00000003" / "optimizer_shard_rank1.safetensors"
    data = bytearray(newest.read_bytes())
    data[-5000] ^= 1
    newest.write_bytes(data)
    assert main([*FLAGS, "--zero-stage", "3", "--max-steps", "9", "--resume", str(saved)]) == 1
    error = capsys.readouterr().err.strip().split("\n")[-1]
    assert error.startswith("zerolab train: ") and "optimizer_shard_rank1.safetensors is damaged" in error
    assert str(saved / "step-00000002") in error


@pytest.mark.ranks
def test_the_report_says_what_was_saved_and_from_where_it_went_on(
    parts: dict[int, tuple[Path, Report]],
) -> None:
    folder, part = parts[0]
    assert f"3 checkpoints saved to {folder}, the last at step 3" in text_of(part)
    profile = part.as_json()
    assert (profile["step"], profile["resumed"], profile["resumed_step"]) == (3, None, 0)
    assert list(profile["save_seconds"]) == [1, 2, 3]


# Ends


@pytest.mark.ranks
@pytest.mark.timeout(120)
def test_sigterm_saves_the_step_under_way_and_says_how_to_go_on(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    flags = ["--ranks", 2, "--zero-stage", 3, "--max-steps", 1000000, "--save-folder", folder]
    process = started(*flags, "--save-every", 1, "--keep", 2)
    until_saved(folder, process)
    process.terminate()
    output, error = process.communicate(timeout=60)
    newest = steps_in(folder)[-1]
    assert process.returncode == 128 + signal.SIGTERM and output == ""
    assert error == (
        f"zerolab train: ended by SIGTERM, after a save of step {newest} to {folder}; "
        "to go on, give the same command with --resume\n"
    )
    assert run(ranks=2, zero_stage=3, resume=folder, max_steps=newest + 1).resumed_step == newest


@pytest.mark.ranks
@pytest.mark.timeout(120)
def test_a_rank_that_torchrun_asks_to_end_has_all_of_them_save_and_end(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    world = {"WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    flags = ["--max-steps", 1000000, "--save-folder", folder, "--save-every", 1, "--keep", 2]
    workers = [started(*flags, env=environment(RANK=rank, LOCAL_RANK=rank, **world)) for rank in (0, 1)]
    until_saved(folder, workers[0])
    workers[1].terminate()
    said = [worker.communicate(timeout=60) for worker in workers]
    assert [worker.returncode for worker in workers] == [128 + signal.SIGTERM] * 2, said
    assert f"after a save of step {steps_in(folder)[-1]} to {folder}" in said[0][1] and "zerolab" not in said[1][1]


def test_the_first_sigterm_is_told_to_the_run_and_the_second_ends_the_command() -> None:
    code = """
import os
from zerolab.apps.cli import ending
ending.take_signals()
with ending.on_first_sigterm(lambda: print("told", flush=True)):
    os.kill(os.getpid(), 15)
    print("goes on", flush=True)
    os.kill(os.getpid(), 15)
    print("never")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 128 + signal.SIGTERM and done.stdout == "told\ngoes on\n"
    assert done.stderr == "zerolab: ended by SIGTERM; all ranks were ended\n"


DIES_ONCE = """
import os, sys, threading, time
from pathlib import Path

saved, died = Path(sys.argv[1]) / "step-00000001", Path(sys.argv[2])

def die():
    while not saved.exists():
        time.sleep(0.01)
    died.touch()
    os.kill(os.getpid(), 9)

if os.environ["RANK"] == "1" and not died.exists():
    threading.Thread(target=die, daemon=True).start()
sys.argv[1:] = sys.argv[3:]
from zerolab.apps.cli import main
sys.exit(main())
"""


@pytest.mark.ranks
@pytest.mark.timeout(150)
def test_torchrun_restarts_a_run_whose_rank_was_killed_and_it_ends_with_the_bits_of_an_undisturbed_one(
    undisturbed: dict[int, Report], tmp_path: Path
) -> None:
    script, folder, died = tmp_path / "dies_once.py", tmp_path / "run", tmp_path / "died"
    script.write_text(DIES_ONCE)
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--max-restarts=2", "--nproc_per_node=2"]
    # A slow link, so that there are steps left when the rank dies.
    flags = ["--zero-stage", "3", "--max-steps", str(WHOLE), "--gbit-per-s", "1", "--latency-us", "10000"]
    saving = ["--save-folder", str(folder), "--save-every", "1", "--resume"]
    words = [*torchrun, script, folder, died, *FLAGS, *flags, *saving]
    done = born.ran(*words, env=environment(), text=True, capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert died.exists() and "begins anew" in done.stderr and "the run goes on from" in done.stderr
    assert undisturbed[3].parameters_sha256 in done.stdout


@pytest.mark.ranks
@pytest.mark.timeout(120)
def test_a_save_that_fails_ends_the_run_with_a_sentence_and_the_one_before_is_whole(tmp_path: Path) -> None:
    pytest.importorskip("resource", reason="limits on the size of files are of Unix")
    text, folder = tmp_path / "text.txt", tmp_path / "run"
    text.write_text("What was saved can be read again. " * 100)
    settings = {"data_mode": str(text), "save_folder": folder, "collective_impl": "ring"}
    run(**settings, max_steps=1)
    flags = ["--data-mode", text, "--save-folder", folder, "--save-every", 1, "--resume", "--max-steps", 1000000]
    least = 100_000
    assert (folder / "step-00000001" / "optimizer_shard_rank0.safetensors").stat().st_size > least
    limited = (
        f"import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, ({least}, {least})); "
        "from zerolab.apps.cli import main; sys.exit(main())"
    )
    words = ["-c", limited, *FLAGS, *flags, "--collective-impl", "ring"]
    done = born.ran(*words, env=environment(), text=True, capture_output=True, timeout=60, server="own")
    error = done.stderr.strip().split("\n")
    assert done.returncode == 1 and len(error) == 2, done.stderr
    assert error[1].startswith("zerolab train: the checkpoint could not be written (File too large")
    assert steps_in(folder) == [1] and not list(folder.glob(".writing*"))
    assert run(**settings, resume=folder, max_steps=2).resumed_step == 1


# Looking in


def test_show_says_what_the_newest_checkpoint_holds(
    parts: dict[int, tuple[Path, Report]], capsys: pytest.CaptureFixture[str]
) -> None:
    folder, _ = parts[3]
    assert main(["checkpoint", "show", str(folder)]) == 0
    newest = capsys.readouterr().out
    assert main(["checkpoint", "show", str(folder / "step-00000001")]) == 0
    shown = " ".join(capsys.readouterr().out.replace("\u2502", " ").split())
    sizes = {path.name: path.stat().st_size for path in (folder / "step-00000001").iterdir()}
    model, optimizer = (
        sum(size for name, size in sizes.items() if name.startswith(f"{kind}_shard")) for kind in ("model", "optimizer")
    )
    texts = sum(sizes.values()) - model - optimizer
    each = (model + optimizer + sizes["optimizer_nonparam.json"]) / 32_928
    for words in (
        "step 1 ",
        "written by ZeRO-3, 2 ranks",
        "precision fp32",
        "parameters 32,928 in 20 tensors",
        f"model shards {model:,} bytes in 2 files",
        f"optimizer shards {optimizer:,} bytes in 2 files",
        f"JSON {texts:,} bytes in 2 files",
        f"bytes a parameter {each:.2f}",
        "optimizer AdamW: exp_avg float32, exp_avg_sq float32",
        "scheduler none",
        "random generators numpy, python, torch",
        "model llama, model_size nano, seed 0",
    ):
        assert words in shown, words
    assert str(folder / "step-00000003") in "".join(newest.split())


def test_a_whole_checkpoint_is_said_to_be_whole_and_any_flipped_byte_is_found(
    saved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    newest = saved / "step-00000003"
    assert main(["checkpoint", "verify", str(saved)]) == 0
    assert capsys.readouterr().out.startswith(f"{newest} is whole: 6 files, ")
    draw = random.Random(0)
    for path in sorted(newest.iterdir()):
        data = path.read_bytes()
        for at in (0, len(data) - 1, *(draw.randrange(len(data)) for _ in range(5))):
            path.write_bytes(data[:at] + bytes([data[at] ^ 1 << draw.randrange(8)]) + data[at + 1 :])
            assert main(["checkpoint", "verify", str(saved)]) == 1, (path.name, at)
            captured = capsys.readouterr()
            lines = (captured.out + captured.err).splitlines()
            # A manifest that cannot be read is said as an error; all else is a line for the file and one in all.
            assert len(lines) == (1 if path.name == MANIFEST else 2) and str(path) in lines[0], (at, lines)
            assert "step-00000002" in lines[-1]
        path.write_bytes(data)


def test_verify_names_each_damaged_file_once(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    newest, before = saved / "step-00000003", saved / "step-00000002"
    (newest / "optimizer_nonparam.json").unlink()
    (newest / "model_shard_rank0.safetensors").unlink()
    shutil.copy(before / "model_shard_rank1.safetensors", newest)
    with open(newest / "optimizer_shard_rank0.safetensors", "ab") as file:
        file.write(b"more")
    cut = newest / "optimizer_shard_rank1.safetensors"
    cut.write_bytes(cut.read_bytes()[:-70_000])
    assert main(["checkpoint", "verify", str(newest)]) == 1
    lines = capsys.readouterr().out.splitlines()
    found = {Path(line.split()[0]).name: line.partition(" ")[2] for line in lines[:-1]}
    assert len(found) == len(lines) - 1 == 5 and lines[-1] == f"{newest} is damaged: load {before} instead"
    assert found["optimizer_nonparam.json"] == found["model_shard_rank0.safetensors"] == "is missing"
    assert found["model_shard_rank1.safetensors"] == "is of another save"
    assert "bytes where" in found["optimizer_shard_rank0.safetensors"]
    assert "is cut off" in found["optimizer_shard_rank1.safetensors"]


@pytest.mark.parametrize("flags", [["show", "no/such"], ["verify", "no/such"], ["mend"]])
def test_what_is_no_checkpoint_is_a_sentence(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["checkpoint", *flags]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("zerolab checkpoint: ") and flags[-1] in error
