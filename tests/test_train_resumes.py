"""`zerolab train --resume` with other settings than those of the checkpoint: heeded, or refused in a sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from zerolab.train import Report, make_config, parts, train

RUN = {"model_size": "nano", "seq_len": 8, "world": "lockstep"}


def run(folder: Path, steps: int, **settings: object) -> Report:
    """Train up to so many steps, from the newest checkpoint of the folder where there is one."""
    more = {"resume": folder} if folder.exists() else {}
    return train(make_config(**{**RUN, **more, "max_steps": steps, "save_folder": folder, **settings}))


@pytest.mark.ranks
def test_a_run_goes_on_after_its_decay_was_set_to_nothing(tmp_path: Path) -> None:
    run(tmp_path / "run", 1)
    run(tmp_path / "run", 2, weight_decay=0.0)
    assert run(tmp_path / "run", 3).config.weight_decay == 0.0


@pytest.mark.ranks
def test_a_decay_that_a_resume_brings_decays(tmp_path: Path) -> None:
    runs = {}
    for decay in (0.0, 5.0):
        folder = tmp_path / str(decay)
        run(folder, 1, weight_decay=0.0)
        runs[decay] = run(folder, 2, weight_decay=decay).parameters_sha256
    assert runs[0.0] != runs[5.0]


@pytest.mark.ranks
def test_a_checkpoint_whose_optimizer_had_one_group_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As runs without decay were saved before groups had their mark."""
    expected = [run(tmp_path / "new", steps, weight_decay=0.0).parameters_sha256 for steps in (1, 2)]
    with monkeypatch.context() as before:
        before.setattr(parts, "decay_groups", lambda decay: lambda *_: {"weight_decay": decay})
        run(tmp_path / "old", 1, weight_decay=0.0)
    assert run(tmp_path / "old", 2).parameters_sha256 == expected[1]
