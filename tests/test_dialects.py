"""Runs written in each dialect, and read again where somebody reads it (rows 3, 22 and 27 of the sources)."""

import shlex
from pathlib import Path
from typing import Any

import pytest

from zerolab.cli.train import read_flags
from zerolab.dialects import DIALECTS
from zerolab.dialects.own import write as write_own
from zerolab.errors import InputError
from zerolab.train import TrainConfig, make_config

RUNS: list[dict[str, Any]] = [
    {},
    {"zero_stage": 1, "reduction": "all_reduce", "ranks": 4, "overlap": False},
    {"zero_stage": 2, "bf16": True, "checkpoint_activations": True, "lr": 3e-4, "exp_avg_dtype": "fp8"},
    {"zero_stage": 3, "ranks": 4, "num_distributed_optimizer_instances": 2, "offload_optimizer": "host"},
    {"zero_stage": 3, "model": "gpt2", "model_size": "nano", "save_folder": Path("a b"), "save_every": 3},
]


@pytest.mark.parametrize("settings", RUNS)
def test_our_own_command_line_is_read_as_the_same_run(settings: dict[str, Any]) -> None:
    program, command, *words = shlex.split(DIALECTS["zerolab"](settings).replace("\\\n", " "))
    assert (program, command, words) == ("zerolab", "train", write_own(settings))
    assert make_config(**read_flags(words)[0]) == make_config(**settings)


def test_every_setting_can_be_written_and_no_other() -> None:
    defaults = {name: field.default for name, field in TrainConfig.model_fields.items()}
    assert write_own(defaults) == []
    with pytest.raises(InputError, match="zero_stag is no setting"):
        write_own({"zero_stag": 1})


@pytest.mark.parametrize("name", DIALECTS)
def test_a_dialect_writes_flags_a_line_each_and_ends_its_text(name: str) -> None:
    for settings in RUNS:
        text = DIALECTS[name](settings)
        assert text.endswith("\n") and not text.endswith("\n\n")
        assert all(len(line) <= 120 for line in text.splitlines())
