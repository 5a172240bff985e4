"""What `zerolab train` leaves behind is there, however its path is called, however long the run, wherever it goes."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from zerolab.apps.cli import main
from zerolab.apps.cli import train as train_command
from zerolab.train import outputs

RUN = ["--world", "lockstep", "--model-size", "nano", "--seq-len", "8", "--max-steps", "1"]


def run(*flags: object) -> int:
    return main(["train", *RUN, *map(str, flags)])


# Paths


@pytest.mark.ranks
def test_a_path_with_brackets_stands_in_the_report_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "q[").mkdir()
    text, profile = tmp_path / "q[" / "x]:warning:.txt", tmp_path / "p.json"
    text.write_text("to be or not to be " * 200)
    saved = tmp_path / "[/red]"
    assert run("--data-mode", text, "--profile-json", profile, "--save-folder", saved) == 0
    said = capsys.readouterr().out
    assert str(text) in said and str(saved) in said and profile.is_file()
    assert main(["checkpoint", "show", str(saved)]) == 0
    assert "[/red]" in capsys.readouterr().out


@pytest.mark.ranks
def test_a_report_that_cannot_be_drawn_takes_no_file_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def undrawn(report: object) -> str:
        raise KeyError("no such kind")

    monkeypatch.setattr("zerolab.apps.cli.tables.text_of", undrawn)
    profile, trace = tmp_path / "p.json", tmp_path / "t.json"
    assert run("--profile-json", profile, "--trace", trace) == 1
    assert json.loads(profile.read_text())["step"] == 1 and trace.is_file()
    assert "the report could not be drawn (KeyError: 'no such kind')" in capsys.readouterr().err


@pytest.mark.ranks
def test_a_profile_of_a_run_that_diverged_is_json(tmp_path: Path) -> None:
    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    profile = tmp_path / "p.json"
    assert run("--max-steps", 4, "--lr", "1e30", "--clip-norm", 0, "--profile-json", profile) == 0
    loss = json.loads(profile.read_text(), parse_constant=refuse)["loss"]
    assert loss[0] == pytest.approx(5.5, abs=0.5) and loss[-1] is None


# Long runs


def test_room_for_a_long_profile_is_asked_for_and_not_all_of_it_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[int] = []
    monkeypatch.setattr(outputs, "bytes", lambda count: written.append(count) or b"", raising=False)
    for free, nbytes in ((1 << 50, 1 << 40), (0, 1 << 12)):
        monkeypatch.setattr(outputs.shutil, "disk_usage", lambda path, free=free: SimpleNamespace(free=free))
        outputs.check_output("--profile-json", tmp_path / "p.json", nbytes)
    assert written == [1, 1]


def test_a_profile_larger_than_the_disk_is_refused_before_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(outputs.shutil, "disk_usage", lambda path: SimpleNamespace(free=30_000_000_000))
    assert run("--max-steps", 10**9, "--profile-json", tmp_path / "p.json") == 2
    error = capsys.readouterr().err
    assert "may need 192 GB, and 30 GB are free there" in error and len(error.splitlines()) == 1
    assert [*tmp_path.iterdir()] == []


# Pipes


@pytest.mark.ranks
@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="a system without named pipes")
@pytest.mark.timeout(60)
def test_who_reads_a_pipe_gets_the_whole_profile(tmp_path: Path) -> None:
    pipe, heard = tmp_path / "pipe", list[str]()
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: heard.append(pipe.read_text()), daemon=True)
    reader.start()
    assert run("--profile-json", pipe) == 0
    reader.join()
    assert json.loads(heard[0])["step"] == 1


# The environment


@pytest.mark.ranks
def test_a_rank_that_is_left_in_the_environment_silences_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RANK", "1")
    profile = tmp_path / "p.json"
    assert run("--profile-json", profile) == 0
    assert profile.is_file() and "parameters sha256" in capsys.readouterr().out


def test_a_world_size_alone_is_heard_under_torchrun_only(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    for size in ("4", "abc"):
        monkeypatch.setenv("WORLD_SIZE", size)
        assert "ranks" not in train_command.read_flags([])[0]


def test_a_world_size_that_is_no_number_is_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told = {"RANK": "0", "WORLD_SIZE": "abc", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    assert main(["train", "--max-steps", "1"]) == 2
    assert "WORLD_SIZE is 'abc' in the environment" in capsys.readouterr().err


def test_a_file_at_home_is_no_folder_to_save_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "run").write_text("a file")
    assert main(["train", "--save-folder=~/run"]) == 2
    assert "--save-folder is '~/run', which is no folder; name one" in capsys.readouterr().err
