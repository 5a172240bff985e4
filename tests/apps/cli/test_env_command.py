"""`zerolab env`: the report of a machine (row 28 of the sources)."""

import json
import os
from importlib import metadata
from pathlib import Path

import psutil
import pytest
import torch
from packaging.requirements import Requirement

import zerolab
from zerolab import system
from zerolab.apps.cli import env, main
from zerolab.system import THINGS


def test_row_28_the_report_has_what_a_bug_report_needs_as_text_and_as_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("SOME_TOKEN", "secret-value")
    file = tmp_path / "env.json"
    assert main(["env", f"--json={file}"]) == 0
    said, found = capsys.readouterr().out, json.loads(file.read_text())
    assert found["versions"]["torch"] == torch.__version__ and zerolab.__version__ in said
    assert (
        found["system"]["cores"] == os.cpu_count() and found["system"]["memory_bytes"] == psutil.virtual_memory().total
    )
    assert found["torch"]["gloo"] is torch.distributed.is_gloo_available()
    assert len(found["devices"]) == torch.cuda.device_count()
    assert found["environment"]["OMP_NUM_THREADS"] == "3" and "secret-value" not in said
    assert found["places"]["direct_io"]
    for subject, facts in found.items():
        assert subject in said and all(name in said for name in facts)
    assert [*tmp_path.iterdir()] == [file]


def test_the_report_has_the_version_of_every_package_that_the_library_and_its_extras_ask_for() -> None:
    # As installed: an editable checkout's pyproject may have moved on since.
    asked = {Requirement(line).name for line in metadata.requires("zerolab") or []} - {"zerolab"}
    found = env.packages()
    assert found.keys() == asked and {"torch", "jupyterlab", "deepspeed"} <= asked
    assert found["torch"] == metadata.version("torch")
    assert all(version is None or version[0].isdigit() for version in found.values())


def test_what_is_hidden_or_missing_is_named_with_what_stands_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "_found", lambda thing: thing not in ("memfd", "direct"))
    found = env.report()
    assert found["missing"]["memfd"] == THINGS["memfd"].instead
    assert found["places"]["memfd"] is False and "direct I/O" in found["places"]["direct_io"]


def test_a_report_that_cannot_be_written_is_refused_before_it_is_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["env", "--json", str(tmp_path / "no" / "env.json")]) == 2
    seen = capsys.readouterr()
    assert seen.out == "" and "--json: there is no folder" in seen.err and len(seen.err.splitlines()) == 1
