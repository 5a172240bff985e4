"""Accounts of the sources, made right: GPT2-124M's table, 175B parameters on 8 ranks, the ZeRO paper's figure 1."""

import json
from pathlib import Path

import pytest

from zerolab.apps.plan import GB, SHAPES, Shape, predict_memory, predict_peak
from zerolab.apps.plan.footprint import DEVICE
from zerolab.apps.plan.guide import traffic_bytes
from zerolab.course.measure import measure
from zerolab.course.widgets import memory_sliders
from zerolab.memory import predict_states
from zerolab.models import GPT2Config, config_of
from zerolab.precision import Precision
from zerolab.run import RunSpec
from zerolab.train import train

KINDS = ("parameters", "gradients", "optimizer_states")


@pytest.mark.parametrize(
    ("stage", "gigabytes"),
    [(0, [0.497, 0.497, 0.995, 1.990]), (1, [0.497, 0.497, 0.249, 1.244]), (2, [0.497, 0.124, 0.249, 0.871])],
)
def test_row_15_the_table_of_gpt2_124m_on_4_ranks_is_predicted(stage: int, gigabytes: list[float]) -> None:
    """A quarter of the optimizer at stage 1: 37.5 % saved, not half."""
    model = Shape(config_of("gpt2", "124m", vocab_size=50304), "nanoGPT's GPT-2")
    assert model.parameters == 124_373_760
    states = predict_memory(RunSpec(model, ranks=4, stage=stage, precision="fp32")).states
    said = [states[kind] / GB for kind in KINDS]
    assert [*said, sum(said)] == pytest.approx(gigabytes, abs=6e-4)


def test_row_15_the_same_table_of_a_narrow_gpt2_is_measured_to_the_byte() -> None:
    """Twelve layers, twelve heads and as many tokens a width as GPT-2 has: every sixteenth of its width."""
    narrow = Shape(GPT2Config(50304 // 16, 48, 12, 12, 64), "GPT-2, a sixteenth as wide")
    runs = [RunSpec(narrow, ranks=4, stage=stage, precision="fp32", seq_len=8) for stage in (0, 1, 2)]
    found = measure(runs)
    for run, of_ranks in zip(runs, found, strict=True):
        for rank, measured in enumerate(of_ranks):
            assert measured.states == predict_memory(run, rank).states
    whole, sharded = (sum(of_ranks[0].states.values()) for of_ranks in found[:2])
    assert 1 - sharded / whole == pytest.approx(0.375, abs=0.001)


@pytest.mark.parametrize("stage", [0, 1])
def test_row_15_the_table_of_gpt2_124m_is_measured_in_a_virtual_world(stage: int) -> None:
    """Its own 124 million parameters, by the real engine and the tracker, on tensors without values."""
    run = {"model": "gpt2", "model_size": "124m", "vocab_size": 50304, "context": 1024, "ranks": 4, "seq_len": 16}
    report = train(RunSpec(**run, batch_size=4, world="virtual", zero_stage=stage, max_steps=1))
    measured = [report.memory_measured[kind][0] for kind in KINDS]
    assert measured == [report.memory_predicted[kind][0] for kind in KINDS]
    assert [size / GB for size in measured] == pytest.approx([0.497, 0.497, [0.995, 0.249][stage]], abs=6e-4)


def test_row_31_the_account_of_175_billion_parameters_on_8_ranks_is_right() -> None:
    """Two fp32 moments are 1400 GB, not 700; with an fp32 copy of the parameters they are 2100."""
    moments_only = Precision("bf16", "bf16", "bf16", "bf16", "fp32", "fp32")
    accounts = {
        stage: [sum(predict_states(175 * GB, 8, stage, recipe).values()) / GB for recipe in (moments_only, "bf16")]
        for stage in (0, 1)
    }
    assert accounts == {0: [2100, 2800], 1: [875, 962.5]}
    saved = [1 - less / whole for whole, less in zip(accounts[0], accounts[1], strict=True)]
    assert saved == pytest.approx([0.583, 0.656], abs=5e-4)
    # The planner's layout of GPT-3, which has 174.6 billion, says the same but for its padding.
    states = predict_memory(RunSpec(SHAPES["GPT-3 175B"], ranks=8, stage=1)).states
    assert sum(states.values()) == pytest.approx(SHAPES["GPT-3 175B"].parameters * (4 + 12 / 8), rel=1e-4)


@pytest.mark.parametrize("ranks", [2, 8, 64])
def test_row_31_what_stage_1_keeps_follows_the_scaling_formula(ranks: int) -> None:
    states = predict_memory(RunSpec(SHAPES["GPT-3 13B"], ranks=ranks, stage=1)).states
    assert sum(states.values()) / SHAPES["GPT-3 13B"].parameters == pytest.approx(4 + 12 / ranks, rel=1e-4)


def test_row_31_ddp_and_the_distributed_optimizer_send_as_many_bytes() -> None:
    small = Shape(config_of("gpt2", "nano", max_seq_len=16), "gpt2 nano")
    runs = [RunSpec(small, ranks=4, stage=stage, precision="fp32", seq_len=16) for stage in (0, 1)]
    counted = [sum(sum(calls.values()) for calls in of_ranks[0].sent.values()) for of_ranks in measure(runs)]
    assert counted[0] == counted[1] == traffic_bytes(runs[0])
    large = [RunSpec(SHAPES["GPT-3 175B"], ranks=8, stage=stage) for stage in (0, 1)]
    assert traffic_bytes(large[0]) == traffic_bytes(large[1])


def test_the_zero_papers_figure_1_comes_out() -> None:
    by_ranks = {
        ranks: [sum(predict_states(7_500_000_000, ranks, stage, "bf16").values()) / GB for stage in range(4)]
        for ranks in (4, 64, 1024)
    }
    assert by_ranks[64] == pytest.approx([120, 31.4, 16.6, 1.9], abs=0.05)
    assert by_ranks[4][1:] == pytest.approx([52.5, 41.3, 30], abs=0.05)
    assert by_ranks[1024][1:] == pytest.approx([30.1, 15.1, 0.12], abs=0.05)
    # So it does from the layout of a model that is nearly as large.
    run = RunSpec(SHAPES["GPT-3 6.7B"], ranks=64)
    width = {stage: sum(predict_memory(run.but(stage=stage)).states.values()) for stage in range(4)}
    scaled = [width[stage] / run.shape.parameters * 7.5 for stage in range(4)]
    assert scaled == pytest.approx([120, 31.4, 16.6, 1.9], abs=0.05)


def test_row_34_the_account_moves_with_its_controls_and_has_a_picture_where_no_kernel_runs() -> None:
    living = memory_sliders(model="GPT-3 6.7B", ranks=8, stage=1)
    for settings in ({"ranks": 64}, {"stage": 3}, {"checkpoint_activations": True}):
        for name, value in settings.items():
            living.settings = living.settings | {name: value}
    run = RunSpec(SHAPES["GPT-3 6.7B"], ranks=64, stage=3, checkpoint_activations=True, seq_len=2048)
    total = sum(predict_peak(run)[kind] for kind in DEVICE)
    assert f"{total / GB:.2f}" in living.picture.table
    lesson = Path(__file__).parents[3] / "notebooks" / "00_start_here.ipynb"
    cells = json.loads(lesson.read_text(encoding="utf-8"))["cells"]
    shown = [cell for cell in cells if "memory_sliders(" in "".join(cell["source"])]
    assert shown and all("<img" in "".join(cell["outputs"][0]["data"]["text/html"]) for cell in shown)
