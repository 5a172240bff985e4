"""What fits where: counts of known models, what a run needs, and what would make it fit."""

import pytest
from cover import NIGHTLY
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from zerolab.apps.plan import GB, SHAPES, Shape, advice, gpu_bytes, make_gpt, predict_peak
from zerolab.apps.plan.footprint import DEVICE
from zerolab.apps.plan.layout import layout_of
from zerolab.collectives import LocalCollectives
from zerolab.course.viz.calculator import GPUS, LEFT, along, bars, memory_calculator, verdict
from zerolab.course.viz.looks import MEMORY
from zerolab.errors import InputError
from zerolab.memory import predict_states
from zerolab.models import parameter_count
from zerolab.offload import Offload
from zerolab.precision import PRECISIONS, Precision
from zerolab.run import OFFLOADS, RunSpec
from zerolab.zero import ZeroEngine

LARGE = SHAPES["GPT-3 175B"]
STATES = ["parameters", "gradients", "optimizer_states"]


@pytest.mark.parametrize(
    ("name", "billions"),
    [("GPT-2 124M", 0.1244), ("GPT-2 1.5B", 1.5576), ("GPT-3 2.7B", 2.65), ("GPT-3 13B", 12.85), ("GPT-3 175B", 174.6)],
)
def test_known_models_have_the_parameters_that_they_are_known_for(name: str, billions: float) -> None:
    assert SHAPES[name].parameters / GB == pytest.approx(billions, rel=2e-3)


@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("GPT-2 355M", 354_823_168),
        ("GPT-2 774M", 774_030_080),
        ("GPT-2 1.5B", 1_557_611_200),
        ("Llama 2 7B", 6_738_415_616),
        ("Llama 2 13B", 13_015_864_320),
        ("Llama 2 70B", 68_976_648_192),
        ("Llama 3 8B", 8_030_261_248),
        ("Llama 3 70B", 70_553_706_496),
        ("Llama 3 405B", 405_853_388_800),
        ("Mixtral 8x7B", 46_702_792_704),
    ],
)
def test_presets_count_to_the_last_parameter(name: str, published: int) -> None:
    """As many as the published weights have; and the layout that the figures come from has as many."""
    shape = SHAPES[name]
    assert shape.parameters == published
    laid_out = layout_of(RunSpec(shape, ranks=1024, stage=3))
    assert sum(plan.layout.used for plan in laid_out.plans) == published


def test_gpt2_counts_to_the_last_parameter() -> None:
    """The released model's own count: embeddings 50,257 and 1,024 by 768, twelve layers, a last norm."""
    assert SHAPES["GPT-2 124M"].parameters == 124_439_808


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_states_are_those_of_the_papers_arithmetic(stage: int) -> None:
    """But for the padding of the layout, which is less than one element in ten thousand."""
    needed = predict_peak(RunSpec(SHAPES["GPT-3 6.7B"], ranks=16, stage=stage))
    states = predict_states(SHAPES["GPT-3 6.7B"].parameters, 16, stage, "bf16")
    assert {kind: needed[kind] for kind in states} == pytest.approx(states, rel=1e-4)


def test_what_is_offloaded_is_on_the_host_and_nowhere_else() -> None:
    """And sharded gradients with the optimizer that uses them; whole ones stay."""
    assert predict_peak(RunSpec(LARGE, ranks=64, stage=1, offload="optimizer"))["gradients"] > 0
    at_home = RunSpec(LARGE, ranks=64, stage=3)
    for offload, moved in [("optimizer", STATES[1:]), ("optimizer and parameters", STATES)]:
        away = RunSpec(LARGE, ranks=64, stage=3, offload=offload)
        assert all(predict_peak(away)[kind] == 0 for kind in moved)
        assert predict_peak(away)["host"] == pytest.approx(sum(predict_peak(at_home)[kind] for kind in moved))
        # Each reduced bucket's shard is on the GPU until it has gone to the host.
        shard = predict_peak(away)["communication_buffers"] - predict_peak(at_home)["communication_buffers"]
        assert gpu_bytes(away) + predict_peak(away)["host"] == pytest.approx(gpu_bytes(at_home) + shard)


def test_what_rests_on_the_disk_is_neither_on_the_gpu_nor_on_the_host() -> None:
    places = Offload("disk", "disk", path="swap")
    needed = predict_peak(RunSpec(LARGE, ranks=64, stage=3, offload=places))
    assert needed["disk"] == pytest.approx(LARGE.parameters * (2 + 12) / 64, rel=1e-4)
    assert needed["host"] == pytest.approx(LARGE.parameters * 2 / 64, rel=1e-4)


def test_an_fp32_optimizer_on_the_host_updates_a_copy_of_its_own() -> None:
    needed = predict_peak(RunSpec(LARGE, ranks=1, precision="fp32", offload="optimizer"))
    assert needed["host"] == pytest.approx(LARGE.parameters * (4 + 4 + 4), rel=1e-4)


# The one description


@pytest.mark.parametrize(("model", "size"), [("llama", "nano"), ("llama", "tiny"), ("gpt2", "124m")])
def test_the_planner_counts_the_parameters_of_the_models_that_train(model: str, size: str) -> None:
    config = RunSpec(model=model, model_size=size, ranks=2)
    shape = Shape(config.architecture, config.model_name)
    assert shape.parameters == parameter_count(config.architecture)


def test_the_flags_of_train_describe_the_same_run() -> None:
    config = RunSpec(
        ranks=3, zero_stage=3, bf16=True, batch_size=12, grad_accum_steps=2, seq_len=32, offload_param="host",
        defer_reduction=True, prefetch=False, bucket_numel=5000,
    )  # fmt: skip
    assert (config.prefetch, config.bucket_numel) == (False, 5000)
    assert (config.ranks, config.stage, config.seq_len, config.defer_reduction) == (3, 3, 32, True)
    assert (config.micro_batch_size, config.micro_batches, config.batch_size) == (2, 2, 12)
    assert config.dtypes == PRECISIONS["bf16"] and config.places.parameters == "host"


@pytest.mark.parametrize("precision", ["fp4", "mixed", 16])
def test_no_reader_of_a_run_takes_a_precision_that_there_is_not(precision: object) -> None:
    known = "there is no precision .*; choose one of fp32, bf16, fp16, bf16_fp32_grads, fp8, fsdp2, pure_bf16"
    for reader in (
        lambda: advice(RunSpec(LARGE, precision=precision), 80 * GB),  # type: ignore[arg-type]
        lambda: predict_states(10, 2, 0, precision),  # type: ignore[arg-type]
        lambda: ZeroEngine(nn.Linear(2, 2), LocalCollectives(), 0, lr=0.1, precision=precision),  # type: ignore[arg-type]
        lambda: RunSpec(precision=str(precision)),
    ):
        with pytest.raises(InputError, match=known):
            reader()


@settings(max_examples=10 if NIGHTLY else 4)
@given(
    shape=st.sampled_from([SHAPES["GPT-2 124M"], SHAPES["GPT-3 13B"], LARGE]),
    ranks=st.integers(1, 300),
    stage=st.integers(0, 3),
    batch=st.sampled_from([1, 16]),
    checkpointing=st.booleans(),
    gpu=st.sampled_from(list(GPUS)),
)
def test_advice_fits_and_changes_nothing_that_fits_already(
    shape: Shape, ranks: int, stage: int, batch: int, checkpointing: bool, gpu: str
) -> None:
    run = RunSpec(
        shape,
        ranks=ranks,
        stage=stage,
        precision="bf16",
        micro_batch_size=batch,
        seq_len=512,
        checkpoint_activations=checkpointing,
    )
    limit = GPUS[gpu] * GB
    found = advice(run, limit)
    said = verdict(run, limit, gpu)
    if found is None:
        assert gpu_bytes(run) > limit and "no stage" in said
        return
    assert gpu_bytes(found) <= limit
    assert (found == run) == (gpu_bytes(run) <= limit) == (" fits into " in said)
    assert found.stage >= run.stage and found.ranks >= run.ranks and found.micro_batch_size <= run.micro_batch_size


@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_calculators_table_says_what_its_bars_show(precision: str) -> None:
    run = RunSpec(SHAPES["GPT-2 1.5B"], ranks=8, stage=3, precision=precision, checkpoint_activations=True)
    picture = memory_calculator(run, "24 GB")
    lines = {line.split("  ")[0]: line.split()[-1] for line in picture.table.splitlines()[1:]}
    for kind in DEVICE:
        # What no stage has is not listed.
        assert float(lines.get(MEMORY[kind].name, 0)) == pytest.approx(predict_peak(run)[kind] / GB, abs=0.005)
    assert float(lines["one GPU"]) == pytest.approx(gpu_bytes(run) / GB, abs=0.005)
    widths = {stage: 0.0 for stage in PRECISIONS[precision].stages}
    for name, mark in bars(run).drawing.marks.items():
        if name.startswith("bar "):
            widths[int(name.split()[1])] += mark.at[2]
    for stage, width in widths.items():
        assert width == pytest.approx(along(run, gpu_bytes(run.but(stage=stage))) - LEFT, abs=0.5)


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: make_gpt("odd", 2, 100, 3), "dim 100"),
        (lambda: make_gpt("none", 0, 64, 1), "layers is 0"),
        (lambda: RunSpec(LARGE, offload="the moon"), "offload is 'the moon'"),
        (lambda: RunSpec(LARGE, stage=2, offload=OFFLOADS["optimizer and parameters"]), "not at stage 2; offload"),
        (lambda: RunSpec(LARGE, seq_len=4096), "4096 tokens are more than the context of GPT-3 175B, 2048"),
        (lambda: RunSpec(LARGE, precision="fsdp2"), "precision fsdp2 has no stage 0"),
        (lambda: RunSpec(LARGE, precision=Precision("fp16", sharded_main=True)), "params fp16, .* has no stage 0"),
        (lambda: RunSpec(LARGE, stage=4), "zero_stage is 4"),
        (lambda: RunSpec(LARGE, stage=1, reduction="gather"), "reduction is 'gather'"),
        (lambda: RunSpec(LARGE, ranks=0), "ranks is 0"),
        (lambda: RunSpec(LARGE, micro_batch_size="2"), "micro_batch_size is '2'"),
        (lambda: RunSpec(LARGE, micro_batch_size=1.5), "micro_batch_size is 1.5"),
        (lambda: RunSpec(LARGE, batch_size=8, micro_batch_size=2), "batch_size and micro_batch_size are both given"),
        (lambda: RunSpec(LARGE, stage=1, zero_stage=2), "stage is given, and zero_stage, too"),
        (lambda: RunSpec(LARGE, offload="optimizer", offload_param="host"), "offload is given, and offload_param, too"),
        (lambda: RunSpec(LARGE, micro_batches=0), "grad_accum_steps is 0"),
        (lambda: memory_calculator(RunSpec(LARGE), "90 GB"), "no GPU of '90 GB'; choose one of 16 GB"),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(make: object, named: str) -> None:
    with pytest.raises(InputError, match=named):
        make()  # type: ignore[operator]
