"""What `zerolab train` leaves behind is there, however its path is called, however long the run, wherever it goes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from zerolab.cli import main
from zerolab.cli import train as train_command

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

    monkeypatch.setattr(train_command, "text_of", undrawn)
    profile, trace = tmp_path / "p.json", tmp_path / "t.json"
    assert run("--profile-json", profile, "--trace", trace) == 1
    assert json.loads(profile.read_text())["step"] == 1 and trace.is_file()
    assert "the report could not be drawn (KeyError: 'no such kind')" in capsys.readouterr().err
