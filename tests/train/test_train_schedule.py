"""`zerolab train`: what the optimizer does in each step, and what the model knows of a text that it has not seen."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from torch import nn

from zerolab.apps.cli import main
from zerolab.apps.cli.tables import describe_validation, text_of
from zerolab.collectives import phase
from zerolab.data import Batches, load_corpus
from zerolab.models import build
from zerolab.ranks import launch
from zerolab.run import RunSpec
from zerolab.run.schedule import LrSchedule
from zerolab.train import Report, train
from zerolab.train.parts import decay_groups
from zerolab.zero import ZeroEngine

RUN = {"model_size": "nano", "seq_len": 16, "max_steps": 4, "ranks": 1, "timeout": 60.0}


def run(**settings: object) -> Report:
    return train(RunSpec(**{**RUN, **settings}))


def plain_losses(config: RunSpec) -> list[float]:
    """Of the same run in plain torch."""
    corpus = load_corpus(config.data_mode, seq_len=config.seq_len)
    torch.manual_seed(config.seed)
    model = build(config.model, config.model_size, max_seq_len=config.seq_len)
    options = decay_groups(config.weight_decay)
    optimizer = torch.optim.AdamW(
        [{"params": [parameter], **options("", parameter)} for parameter in model.parameters()],
        lr=config.lr, betas=(config.beta1, config.beta2), eps=config.eps,
    )  # fmt: skip
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: config.schedule(step) / config.lr)
    batches, losses = Batches(corpus.train, config.seq_len, config.batch_size, seed=config.seed), []
    for step in range(config.max_steps):
        [(inputs, targets)] = batches.step(step)
        loss = model(inputs, targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), config.clip_norm)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@pytest.mark.ranks
def test_adamw_has_the_decays_and_the_eps_of_the_flags() -> None:
    settings = {"beta1": 0.5, "beta2": 0.6, "eps": 1e-3, "lr": 1e-2}
    expected = plain_losses(RunSpec(**RUN, **settings))
    assert run(**settings).loss == pytest.approx(expected, rel=1e-5)
    assert plain_losses(RunSpec(**RUN, lr=1e-2)) != pytest.approx(expected, rel=1e-4)


def test_a_schedule_rises_falls_and_stays() -> None:
    cosine, linear = (LrSchedule(0.1, kind, 4, 12, 0.02) for kind in ("cosine", "linear"))
    assert [cosine(step) for step in range(4)] == pytest.approx([0.02, 0.04, 0.06, 0.08])
    assert [cosine(4), cosine(8), cosine(12), cosine(99)] == pytest.approx([0.1, 0.06, 0.02, 0.02])
    assert cosine(6) == pytest.approx(0.02 + 0.08 * (1 + math.cos(math.pi / 4)) / 2)
    assert [linear(step) for step in (4, 6, 8, 12, 13)] == pytest.approx([0.1, 0.08, 0.06, 0.02, 0.02])
    assert [LrSchedule(0.1, "constant", 1)(step) for step in (0, 1, 9)] == [0.05, 0.1, 0.1]
    # A decay that ends with the warm-up.
    assert [LrSchedule(0.1, "cosine", 1, 1)(step) for step in (0, 1)] == [0.05, 0.0]


def test_all_settings_of_a_run_make_the_same_run() -> None:
    config = RunSpec(**RUN, **COSINE)
    assert RunSpec.model_validate(config.model_dump()) == config


def test_a_run_that_ends_within_its_warm_up_is_no_mistake() -> None:
    config = RunSpec(lr_schedule="cosine", warmup_steps=3, max_steps=2, lr=0.1)
    assert [config.schedule(step) for step in range(2)] == pytest.approx([0.025, 0.05])


COSINE = {"lr": 1e-2, "lr_schedule": "cosine", "warmup_steps": 1, "min_lr": 1e-3}


def test_the_command_says_that_a_run_ends_within_its_warm_up(capsys: pytest.CaptureFixture[str]) -> None:
    flags = "train --world lockstep --ranks 1 --model-size nano --seq-len 16 --max-steps 2 --warmup-steps"
    assert main([*flags.split(), "2"]) == 0
    assert "the learning rate rises in all 2 steps" in capsys.readouterr().err
    assert main([*flags.split(), "1"]) == 0
    assert "rises" not in capsys.readouterr().err


@pytest.mark.ranks
def test_a_run_has_the_learning_rates_that_torchs_scheduler_has() -> None:
    config = RunSpec(**RUN, **COSINE)
    report = train(config)
    assert report.loss == pytest.approx(plain_losses(config), rel=1e-5)
    assert report.lr == [config.schedule(step) for step in range(4)] and len(set(report.lr)) == 4


def scheduled(comm, stage: int, by_torch: bool):
    """Parameters after some steps of an engine, whose rates come from torch's scheduler or from ours."""
    torch.manual_seed(0)
    engine = ZeroEngine(nn.Linear(6, 5), comm, stage, lr=0.1)
    schedule = LrSchedule(0.1, "cosine", 2, 5, 0.01)
    scheduler = torch.optim.lr_scheduler.LambdaLR(engine.optimizer, lambda step: schedule(step) / 0.1)
    for step in range(6):
        if not by_torch:
            schedule.set(engine.optimizer.param_groups, step)
        engine.backward(engine(torch.full((2, 6), step + 1.0)).square().mean())
        engine.step()
        if by_torch:
            scheduler.step()
    return engine.consolidate()


def test_an_engine_goes_by_torchs_schedulers_as_by_ours() -> None:
    for stage in range(4):
        ours, torchs = (launch(scheduled, stage, way, ranks=2, world="lockstep")[0] for way in (False, True))
        assert all(torch.allclose(ours[name], torchs[name], rtol=1e-6, atol=0) for name in ours)


EVALUATED = {**COSINE, "model": "gpt2", "eval_every": 2, "eval_steps": 3, "grad_accum_steps": 2, "max_steps": 5}


@pytest.fixture(scope="module")
def evaluated() -> dict[tuple[int, int], Report]:
    return {
        (ranks, stage): run(**EVALUATED, ranks=ranks, zero_stage=stage) for ranks, stage in [(1, 0), (2, 0), (2, 3)]
    }


@pytest.mark.ranks
def test_an_evaluation_is_the_same_for_every_stage_and_number_of_ranks(
    evaluated: dict[tuple[int, int], Report],
) -> None:
    one, two, sharded = evaluated.values()
    assert list(one.validation_loss) == [0, 2, 4, 5]
    assert two.validation_loss == sharded.validation_loss
    assert [*two.validation_loss.values()] == pytest.approx([*one.validation_loss.values()], rel=1e-5)
    # Before the first step the model knows nothing, and here is what it should say then.
    corpus = load_corpus(seq_len=16)
    torch.manual_seed(0)
    model = build("gpt2", "nano", max_seq_len=16)
    with torch.no_grad():
        losses = [model(*Batches(corpus.valid, 16, 6).micro_batch(step)).item() for step in range(3)]
    assert one.validation_loss[0] == pytest.approx(sum(losses) / 3, rel=1e-5)
    assert one.validation_loss[5] < one.validation_loss[0]


@pytest.mark.ranks
def test_evaluations_change_no_bit_and_no_byte_of_training(evaluated: dict[tuple[int, int], Report]) -> None:
    bare = run(**{name: value for name, value in EVALUATED.items() if "eval" not in name}, ranks=2, zero_stage=3)
    report = evaluated[2, 3]
    assert (report.loss, report.parameters_sha256) == (bare.loss, bare.parameters_sha256)
    assert report.traffic_measured == report.traffic_predicted == bare.traffic_measured
    assert report.memory_measured == bare.memory_measured


@pytest.mark.ranks
def test_report_and_profile_show_what_an_evaluation_found(
    evaluated: dict[tuple[int, int], Report], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    report = evaluated[2, 0]
    first, last = report.validation_loss[0], report.validation_loss[5]
    assert f"validation loss {first:.4f} -> {last:.4f} after steps 0 and 5" in text_of(report)
    assert describe_validation({8: 2.5}) == "validation loss 2.5000 after step 8"
    path = tmp_path / "profile.json"
    flags = "--model-size nano --seq-len 16 --ranks 1 --max-steps 2 --eval-every 1 --eval-steps 1 --profile-json"
    assert main(["train", *flags.split(), str(path)]) == 0
    profile, said = json.loads(path.read_text()), capfd.readouterr()
    assert list(profile["validation_loss"]) == ["0", "1", "2"] and profile["lr"] == [1e-3, 1e-3]
    for step, loss in profile["validation_loss"].items():
        assert f"step {step}: validation loss {loss:.4f}" in said.err


def phases(comm):
    engine = ZeroEngine(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), comm, 3, lr=0.1)
    comm.meter.reset()
    with phase("evaluate", whole=True), torch.no_grad():
        engine(torch.ones(2, 4))
    seen = comm.meter.bytes_by_collective("evaluate"), comm.meter.bytes_by_collective()
    with phase("around"), phase("within"):
        comm.barrier()
    return seen, comm.meter.calls_by_collective("within")


def test_a_whole_phase_has_the_calls_of_the_phases_inside() -> None:
    for (evaluated, everything), within in launch(phases, ranks=2, world="lockstep"):
        assert evaluated == everything and evaluated["all_gather"] > 0
        assert within == {"barrier": 1}


# Going on


@pytest.mark.ranks
def test_a_run_that_goes_on_has_the_rates_and_the_bits_of_an_undisturbed_one(
    tmp_path: Path, evaluated: dict[tuple[int, int], Report]
) -> None:
    whole, saved = evaluated[2, 3], {**EVALUATED, "ranks": 2, "zero_stage": 3}
    first = run(**{**saved, "max_steps": 3, "decay_steps": 5, "save_folder": tmp_path})
    # Nothing of the schedule is given again: the checkpoint has it.
    bare = {name: value for name, value in saved.items() if name not in COSINE}
    second = run(**bare, resume=tmp_path)
    assert first.loss + second.loss == whole.loss and first.lr + second.lr == whole.lr
    assert second.parameters_sha256 == whole.parameters_sha256
    assert list(first.validation_loss | second.validation_loss) == [0, 2, 3, 4, 5]
    assert all(whole.validation_loss[step] == loss for step, loss in second.validation_loss.items())


def test_without_its_end_a_schedule_ends_where_the_first_run_meant_it_to() -> None:
    from zerolab.train.resume import data_to_save, taken_over

    config = RunSpec(**RUN, **COSINE, beta1=0.8)
    saved = data_to_save(config, load_corpus(seq_len=16))
    assert saved["decay_steps"] == 4
    assert taken_over(RunSpec(**RUN), saved) == {
        "weight_decay": 0.1,
        "beta1": 0.8,
        "beta2": 0.999,
        "warmup_shape": "line",
        "eps": 1e-8,
        "dropout": 0.0,
    } | {
        **COSINE,
        "decay_steps": 4,
    }
    other = taken_over(RunSpec(**RUN, lr_schedule="constant"), saved)
    assert "decay_steps" not in other and "min_lr" not in other and other["warmup_steps"] == 1


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ("--lr-schedule sawtooth", ["--lr-schedule is 'sawtooth'", "'cosine'"]),
        ("--min-lr 0.1", ["--min-lr is 0.1", "give --lr-schedule cosine"]),
        ("--decay-steps 9", ["--decay-steps is 9", "never falls"]),
        ("--lr-schedule cosine --min-lr 0.1", ["--min-lr is 0.1 and lr 0.001"]),
        ("--lr-schedule linear --warmup-steps 5 --decay-steps 3", ["--decay-steps is 3", "fewer --warmup-steps"]),
        ("--warmup-steps -1", ["--warmup-steps is '-1'"]),
        ("--beta2 1", ["beta2 is '1'"]),
        ("--eps 0", ["eps is '0'"]),
        ("--eval-every 0", ["--eval-every is '0'"]),
        ("--eval-steps 5", ["--eval-steps is 5", "give --eval-every"]),
    ],
)
def test_a_schedule_or_an_evaluation_that_cannot_be_is_a_sentence(
    flags: str, named: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", *flags.split()]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and all(word in said for word in named), said


def test_row_26_recomputation_clipping_and_the_batch_equation() -> None:
    one = {"model_size": "nano", "seq_len": 32, "batch_size": 8, "max_steps": 3, "world": "lockstep", "zero_stage": 2}
    whole = train(RunSpec(**one, ranks=2))
    recomputed = train(RunSpec(**one, ranks=2, checkpoint_activations=True))
    assert recomputed.parameters_sha256 == whole.parameters_sha256
    assert max(recomputed.peak["activations"]) < 0.75 * max(whole.peak["activations"])
    # Eight sequences a step, as 2 ranks x 1 micro-batch x 4, as 2 x 2 x 2 and as 4 x 2 x 1.
    losses = [train(RunSpec(**one, ranks=ranks, grad_accum_steps=steps)).loss for ranks, steps in ((2, 2), (4, 2))]
    assert all(other == pytest.approx(whole.loss, abs=1e-5) for other in losses)
    # Nothing is clipped at a million, everything at a millionth.
    free, bound = (train(RunSpec(**one, ranks=2, clip_norm=norm)) for norm in (1e6, 1e-6))
    assert train(RunSpec(**one, ranks=2, clip_norm=0)).parameters_sha256 == free.parameters_sha256
    assert bound.parameters_sha256 != free.parameters_sha256
