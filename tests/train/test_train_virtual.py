"""`zerolab train --world virtual`: one rank of many, on tensors without values."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from cover import nightly

from benchmarks.virtual import measure
from zerolab.apps.cli import main
from zerolab.errors import InputError
from zerolab.run import RunSpec
from zerolab.train import Report, train
from zerolab.train.here import check_here

SMALL = {"model_size": "nano", "seq_len": 16, "max_steps": 2}


def run(world: str, **settings: Any) -> Report:
    return train(RunSpec(**{**SMALL, "ranks": 4, "batch_size": 8, "world": world, **settings}))


@pytest.mark.parametrize(
    "settings",
    [
        {"zero_stage": 3, "bf16": True, "model": "gpt2", "gbit_per_s": 10, "latency_us": 5, "trace": Path("t.json")},
        {"zero_stage": 2, "fp16": True, "grad_accum_steps": 2, "checkpoint_activations": True},
        {"zero_stage": 1, "num_distributed_optimizer_instances": 2, "clip_norm": 0},
    ],
)
def test_a_virtual_runs_report_is_that_of_rank_0_in_lockstep(settings: dict[str, Any]) -> None:
    virtual, lockstep = run("virtual", **settings), run("lockstep", **settings)
    for name in ("memory_predicted", "memory_measured", "peak", "traffic_predicted", "traffic_measured"):
        of_rank_0 = {kind: sizes[:1] for kind, sizes in getattr(lockstep, name).items()}
        assert getattr(virtual, name) == of_rank_0, name
    for ours, theirs in zip(virtual.times, lockstep.times, strict=True):
        # What a reduction adds up takes time in lockstep only.
        if ours.what in ("forward", "backward", "optimizer step"):
            assert ours.milliseconds == pytest.approx(theirs.milliseconds, rel=0.01), ours.what
    assert virtual.ranks == 4 and virtual.loss == [None, None] and virtual.parameters_sha256 is None


def test_the_command_says_that_no_loss_is_computed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    monkeypatch.setattr("zerolab.apps.cli.train.check_output", lambda flag, path, nbytes: asked.append(nbytes))
    profile, trace = tmp_path / "p.json", tmp_path / "t.json"
    command = "train --world virtual --ranks 1024 --zero-stage 3 --bf16 --model gpt2 --model-size nano --max-steps 2"
    assert main([*command.split(), "--profile-json", str(profile), "--trace", str(trace)]) == 0
    said = capsys.readouterr()
    assert "loss not computed in 2 steps" in said.out and "ms of virtual time" in said.out
    assert not re.search(r"\bnan\b|\bnone\b|loss \d", said.out + said.err, re.IGNORECASE)
    found = json.loads(profile.read_text())
    assert (found["world"], found["ranks"], found["loss"]) == ("virtual", 1024, [None, None])
    assert found["config"]["batch_size"] == 1024
    assert found["memory"]["peak"]["gathered_units"][0] > 0 and found["step_seconds"][1] > 0
    assert found["traffic"]["predicted"] == found["traffic"]["measured"]
    events = json.loads(trace.read_text())["traceEvents"]
    assert {"C", "X"} <= {event["ph"] for event in events}
    # Before the run it asks for room for what rank 0 writes, not for 1024 such files.
    assert asked[0] > profile.stat().st_size and asked[1] > trace.stat().st_size and sum(asked) < 2**23


@pytest.mark.parametrize(
    "settings, words",
    [
        (
            {"ranks": 129, "batch_size": 129, "world": "processes"},
            "ranks is 129; it should be less than or equal to 128",
        ),
        ({"ranks": 70_000, "batch_size": 70_000}, "ranks is 70000; it should be less than or equal to 65536"),
        (
            {"save_folder": "runs"},
            "save_folder is 'runs', and in a virtual world a checkpoint keeps values; leave it out",
        ),
        ({"eval_every": 2}, "eval_every is '2', and in a virtual world an evaluation computes a loss"),
        ({"collective_impl": "ring"}, "collective_impl is 'ring', and ranks of a virtual world have no messages"),
    ],
)
def test_what_a_virtual_run_has_not_is_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        check_here(RunSpec(**{"world": "virtual", **settings}))


@nightly("runs GPT-3 175B")
def test_gpt3_175b_on_1024_ranks_takes_less_than_a_gigabyte() -> None:
    row = measure(3, 1024, "gpt3-175b", ["--vocab-size", "50257", "--seq-len", "2048", "--checkpoint-activations"])
    assert row.megabytes < 1000
    # 2 bytes a parameter and gradient, 12 of main parameters and moments, on 1024 ranks.
    states = sum(row.kinds[kind] for kind in ("parameters", "gradients", "optimizer_states"))
    assert states == pytest.approx(16 * 175e9 / 1024, rel=0.01)
    # Two gathers and one reduction of 2 bytes a parameter.
    assert row.sent == pytest.approx(3 * 2 * 175e9, rel=0.01)
