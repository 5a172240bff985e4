"""`zerolab train --resume` with other settings than those of the checkpoint: heeded, or refused in a sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from zerolab.errors import InputError
from zerolab.run import RunSpec
from zerolab.train import Report, parts, train

RUN = {"model_size": "nano", "seq_len": 8, "world": "lockstep"}


def run(folder: Path, steps: int, **settings: object) -> Report:
    """Train up to so many steps, from the newest checkpoint of the folder where there is one."""
    more = {"resume": folder} if folder.exists() else {}
    return train(RunSpec(**{**RUN, **more, "max_steps": steps, "save_folder": folder, **settings}))


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


@pytest.mark.ranks
def test_ranks_that_the_default_batch_does_not_fit_go_on_with_the_checkpoints(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run(folder, 1, ranks=5)
    report = run(folder, 2, ranks=3)
    assert (report.config.batch_size, report.resumed_step) == (15, 1)


@pytest.mark.ranks
@pytest.mark.parametrize("given", [{}, {"batch_size": 16}])
def test_ranks_that_do_not_divide_the_checkpoints_batch_are_told_so_once(given: dict[str, int], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run(folder, 1, ranks=2)
    words = "saved with a batch_size of 12, which ranks 8 x accumulation 1 do not divide; give ranks"
    with pytest.raises(InputError, match=words):
        run(folder, 2, ranks=8, **given)
    assert run(folder, 2, ranks=6).config.batch_size == 12


def test_a_batch_that_nobody_gives_is_not_given() -> None:
    config = RunSpec(ranks=8)
    assert config.batch_size == 16 and "batch_size" not in config.model_fields_set
    assert "batch_size" in RunSpec(ranks=8, batch_size=16).model_fields_set


@pytest.mark.ranks
def test_a_part_of_a_schedule_is_held_to_what_the_checkpoint_gives_of_it(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run(folder, 1, lr=2.0, lr_schedule="cosine")
    schedule = run(folder, 2, decay_steps=4, min_lr=1.0).config.schedule
    assert (schedule.kind, schedule.lr, schedule.decay_steps, schedule.min_lr) == ("cosine", 2.0, 4, 1.0)
    with pytest.raises(InputError, match="min_lr is 3 and lr 2; a schedule ends below lr"):
        run(folder, 3, min_lr=3.0)


def test_a_part_of_a_schedule_alone_is_refused_where_there_is_no_checkpoint_yet(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with pytest.raises(InputError, match="decay_steps is 4 but the learning rate never falls"):
        run(folder, 1, resume=folder, decay_steps=4)
