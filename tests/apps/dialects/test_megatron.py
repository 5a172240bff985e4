"""Megatron-LM's flags at `zerolab train`, and settings as its flags (rows 2 to 6, 8, 10 and 32 of the sources)."""

import re
from typing import Any

import pytest
import torch
from torch import nn

from zerolab import ZeroEngine, launch
from zerolab.apps.cli import main
from zerolab.apps.cli.train import read_flags
from zerolab.apps.dialects import megatron
from zerolab.apps.dialects.megatron import write
from zerolab.collectives import Collectives
from zerolab.errors import InputError
from zerolab.precision import LossScaler
from zerolab.run import RunSpec
from zerolab.train import train

SMALL = ["--model-size=nano", "--seq-len=16", "--batch-size=8"]
SHARD = "--use-distributed-optimizer --data-parallel-sharding-strategy"

# Facts of Megatron-LM 0.15.0 (github.com/NVIDIA/Megatron-LM at f0edd1c9bde2ecb85caebe9e23e906dd90501b82): names that
# megatron/training/arguments.py there gives to add_argument; those of parallelism, precision, sizes and saving.
ARGUMENTS = {
    "accumulate-allreduce-grads-in-fp32",
    "adam-beta1",
    "adam-beta2",
    "adam-eps",
    "bf16",
    "ckpt-format",
    "clip-grad",
    "context-parallel-size",
    "data-parallel-sharding-strategy",
    "ddp-bucket-size",
    "disable-bias-linear",
    "distributed-timeout-minutes",
    "eval-interval",
    "eval-iters",
    "exp-avg-dtype",
    "exp-avg-sq-dtype",
    "expert-model-parallel-size",
    "ffn-hidden-size",
    "fp16",
    "fp8-format",
    "global-batch-size",
    "grad-reduce-in-bf16",
    "group-query-attention",
    "hidden-size",
    "attention-dropout",
    "hidden-dropout",
    "hysteresis",
    "initial-loss-scale",
    "load",
    "loss-scale",
    "loss-scale-window",
    "lr",
    "lr-decay-iters",
    "lr-decay-style",
    "lr-warmup-iters",
    "main-grads-dtype",
    "main-params-dtype",
    "max-position-embeddings",
    "micro-batch-size",
    "min-loss-scale",
    "min-lr",
    "normalization",
    "num-attention-heads",
    "num-distributed-optimizer-instances",
    "num-layers",
    "num-query-groups",
    "optimizer-cpu-offload",
    "optimizer-offload-fraction",
    "overlap-grad-reduce",
    "overlap-param-gather",
    "pipeline-model-parallel-size",
    "position-embedding-type",
    "recompute-granularity",
    "recompute-method",
    "recompute-num-layers",
    "rotary-base",
    "save",
    "save-interval",
    "seed",
    "seq-length",
    "swiglu",
    "tensor-model-parallel-size",
    "train-iters",
    "untie-embeddings-and-output-weights",
    "use-distributed-optimizer",
    "use-megatron-fsdp",
    "use-precision-aware-optimizer",
    "vocab-size",
    "weight-decay",
}


def refused(flags: str, capsys: pytest.CaptureFixture[str]) -> str:
    """The one line that a refused command line ends with."""
    assert main(["train", *SMALL, *flags.split()]) == 2
    seen = capsys.readouterr()
    assert seen.out == "" and len(seen.err.strip().splitlines()) == 1
    return seen.err


def meant(flags: str) -> dict[str, Any]:
    return read_flags(flags.split())[0]


@pytest.mark.ranks
@pytest.mark.timeout(100)
def test_row_04_and_05_strategies_call_what_they_should_and_the_log_of_each_rank_says_so(
    capfd: pytest.CaptureFixture[str],
) -> None:
    sent = 131_712  # a ring all-reduce over two ranks: as many bytes as 32,928 parameters in fp32
    expected = {
        "no_shard": (sent, 0),
        "optim": (sent, 0),
        "optim_grads": (0, sent // 2),
        "optim_grads_params": (0, sent // 2),
    }
    for strategy, (reduced, scattered) in expected.items():
        flags = f"{'' if strategy == 'no_shard' else '--use-distributed-optimizer'} --zero-debug --max_steps 2"
        debug = "--zero_debug_max_steps=1 --zero-debug-max-params=4"
        line = f"{flags} {debug} --data_parallel_sharding_strategy {strategy} --clip-norm 0"
        assert main(["train", *SMALL, *line.split()]) == 0
        seen = capfd.readouterr()
        assert "NO" not in seen.out
        assert f"Distributed optimizer: enabled={strategy != 'no_shard'} strategy={strategy}\n" in seen.err
        said = re.findall(r"^\[ZeRO Debug\]\[rank=(\d)\] (\w+)(.*)$", seen.err, re.MULTILINE)
        assert [(rank, word) for rank, word, _ in said] == [
            (rank, word) for rank in "01" for word in ["init", *["shard_map"] * 4]
        ] + [("0", "step"), ("1", "step")]
        assert all(f"strategy={strategy} " in rest for _, word, rest in said if word == "init")
        for _, word, rest in said:
            if word == "step":
                counts = {name: int(number) for name, number in re.findall(r"(\w+)=(\d+)", rest)}
                assert (counts["all_reduce_bytes"], counts["reduce_scatter_bytes"]) == (reduced, scattered)
                assert (counts["all_reduce_calls"] > 0, counts["reduce_scatter_calls"] > 0) == (
                    reduced > 0,
                    scattered > 0,
                )
                assert (counts["all_gather_calls"] > 0) == (strategy != "no_shard")
        first = [re.findall(r"elements=(\d+):(\d+) of=(\d+)", rest)[0] for _, word, rest in said if word == "shard_map"]
        mine, others, numel = first[0], first[4], int(first[0][2])
        whole = [("0", str(numel), str(numel))] * 2
        assert [mine, others] == whole if strategy == "no_shard" else int(mine[1]) == int(others[0]) < numel


@pytest.mark.parametrize("flags", ["--zero-stage=1 --reduction=all_reduce", "--zero-stage=3 --fp16"])
def test_row_32_instances_shard_inside_and_reduce_across_as_predicted(
    flags: str, capfd: pytest.CaptureFixture[str]
) -> None:
    line = (
        f"--ranks 4 --world lockstep --num-distributed-optimizer-instances 2 --grad-accum-steps 2 --max-steps 2 {flags}"
    )
    assert main(["train", *SMALL, *line.split()]) == 0
    out = capfd.readouterr().out
    assert "yes" in out and "NO" not in out
    moments = 131_712 * (2 if "fp16" not in flags else 3)
    # Half of them, not a quarter: two ranks share them out, and the other two have them once more.
    kept = int(re.search(r"optimizer_states.*?([\d,]{5,})", out)[1].replace(",", ""))
    assert moments // 2 <= kept < moments // 2 * 1.01
    assert re.search(r"all_reduce\W+0-3", out)


def test_row_10_an_overflow_on_one_rank_is_agreed_by_all_before_the_step_is_skipped() -> None:
    def overflow(comm: Collectives, strategy: str) -> tuple[bool, float, bool]:
        torch.manual_seed(0)
        options = megatron.STRATEGIES[strategy]
        engine = ZeroEngine(
            nn.Linear(4, 4), comm, options["zero_stage"], lr=1.0, precision="fp16", clip_norm=1.0,
            reduction=options.get("reduction", "reduce_scatter"), scaler=LossScaler(hysteresis=1),
        )  # fmt: skip
        first = {name: value.clone() for name, value in engine.state_dict().items()}
        engine.backward(engine(torch.ones(2, 4)).sum() * (float("inf") if comm.rank == 1 else 1.0))
        skipped = engine.step().skipped
        same = all(torch.equal(value, first[name]) for name, value in engine.state_dict().items())
        return skipped, engine.loss_scale, same

    for strategy in megatron.STRATEGIES:
        found = launch(overflow, strategy, ranks=3, world="lockstep", timeout=60)
        assert found == [(True, 2.0**15, True)] * 3


REFUSED = {
    "--data-parallel-sharding-strategy optim": ["sharding-strategy is optim", "--use-distributed-optimizer"],
    f"{SHARD} no_shard": ["--use-distributed-optimizer", "no_shard"],
    f"{SHARD} some": ["--data-parallel-sharding-strategy is 'some'", "optim_grads"],
    f"{SHARD} optim --zero-stage 2": ["--zero-stage is 2", "mean 1"],
    f"{SHARD} optim --num_distributed_optimizer_instances 3 --ranks 4": ["--num-distributed-optimizer-instances is 3"],
    "--num-distributed-optimizer-instances 2": ["--num-distributed-optimizer-instances is 2", "stage 0"],
    "--tensor-model-parallel-size 3 --ranks 4": ["--tensor-model-parallel-size is 3", "divide 4 ranks"],
    "--tensor-model-parallel-size 2": ["--tensor-model-parallel-size is 2", "tensor parallelism"],
    "--pipeline_model_parallel_size 2": ["--pipeline-model-parallel-size is 2", "pipeline parallelism"],
    "--expert-model-parallel-size=2": ["--expert-model-parallel-size is 2", "expert parallelism"],
    "--micro-batch-size 3 --global-batch-size 8": ["--global-batch-size is 8", "--micro-batch-size"],
    "--micro-batch-size 2 --global-batch-size 8 --num-microbatches 3": ["--num-microbatches 3", "are 12"],
    "--micro-batch-size none": ["--micro-batch-size is 'none'", "whole number"],
    "--micro-batch-size 2": ["--batch-size is 8", "mean 4"],
    "--num-microbatches 3": ["--batch-size 8", "3"],
    "--fp16 --bf16": ["fp16 and bf16", "choose one"],
    "--fp8 --precision bf16": ["fp8", "bf16", "choose one"],
    "--initial-loss-scale 1000 --fp16": ["--initial-loss-scale is '1000'", "power of two"],
    "--hidden-dropout 0.1 --attention-dropout 0.0": ["--attention-dropout means dropout 0.0", "0.1"],
    "--swiglu --normalization LayerNorm": ["--swiglu means model llama", "gpt2"],
    "--num-layers 2 --hidden-size 30 --num-attention-heads 4": ["--hidden-size 30 is", "heads 4"],
    "--distributed-timeout-minutes 300000": ["--distributed-timeout-minutes is 300000", "at most 16666"],
    "--distributed-timeout-minutes 0.5": ["--distributed-timeout-minutes is '0.5'", "whole number"],
    "--lr-decay-style inverse": ["--lr-decay-style is 'inverse'"],
    "--recompute-granularity selective": ["--recompute-granularity is 'selective'", "full"],
}  # fmt: skip


@pytest.mark.parametrize("flags", REFUSED)
def test_row_08_what_contradicts_itself_is_refused_with_the_flag_and_the_fix(
    flags: str, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refused(flags, capsys)
    assert all(word in said for word in REFUSED[flags]), said
    assert ";" in said


MEANT: dict[str, dict[str, Any]] = {
    "--use-distributed-optimizer": {"zero_stage": 1, "reduction": "reduce_scatter"},
    f"{SHARD} optim": {"zero_stage": 1, "reduction": "all_reduce"},
    "--use-megatron-fsdp": {"zero_stage": 3},
    "--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads": {"zero_stage": 2},
    "--ranks 4 --micro-batch-size 2 --global-batch-size 24": {"ranks": "4", "batch_size": 24, "grad_accum_steps": 3},
    "--micro_batch_size=2 --num_microbatches=2": {"batch_size": 8, "grad_accum_steps": 2},
    "--num-microbatches 2": {"grad_accum_steps": 2},
    "--global-batch-size 6": {"batch_size": 6},
    "--train-iters 7 --seq-length 32 --clip-grad 0.5": {"max_steps": "7", "seq_len": "32", "clip_norm": "0.5"},
    "--clip-grad 1 --clip-norm 1.0": {"clip_norm": "1.0"},
    "--tensor-model-parallel-size 1 --pipeline_model_parallel_size 1 --expert-model-parallel-size 1": {},
    "--distributed-timeout-minutes 16666": {"collective_timeout": 999_960.0},
    "--initial-loss-scale 4294967296": {"initial_scale_power": 32},
    "--save a_b --save-interval 5 --load a_b": {"save_folder": "a_b", "save_every": "5", "resume": "a_b"},
    "--optimizer-cpu-offload --optimizer-offload-fraction 1.0": {"offload_optimizer": "host"},
}


@pytest.mark.parametrize("flags", MEANT)
def test_row_02_and_03_flags_are_settings_with_underscores_and_dashes_alike(flags: str) -> None:
    assert meant(flags) == MEANT[flags]


def test_row_06_dtype_flags_are_the_precision_that_is_stored() -> None:
    flags = "--bf16 --main_params_dtype fp32 --main-grads-dtype fp32 --exp_avg_dtype fp8 --exp-avg-sq-dtype bf16"
    precision = RunSpec(**meant(flags)).dtypes
    assert precision is not None
    assert (precision.params, precision.main_params, precision.main_grads) == ("bf16", "fp32", "fp32")
    assert (precision.exp_avg, precision.exp_avg_sq) == ("fp8", "bf16")


STORED: dict[str, dict[str, float]] = {
    "": {"parameters": 4, "gradients": 4, "optimizer_states": 4 + 4},
    "--params-dtype bf16": {"parameters": 2, "gradients": 4, "optimizer_states": 4 + 4 + 4},
    "--bf16": {"parameters": 2, "gradients": 2, "optimizer_states": 4 + 4 + 4},
    "--bf16 --main-grads-dtype fp32 --exp-avg-dtype fp8 --exp_avg_sq_dtype bf16": {
        "parameters": 2, "gradients": 4, "optimizer_states": 4 + 1 + 2,
    },
    "--fp16 --main-params-dtype fp16": {"parameters": 2, "gradients": 2, "optimizer_states": 4 + 4},
    "--fp8 --fp8-backend emulated --main-params-dtype bf16": {
        "parameters": 2, "gradients": 2, "optimizer_states": 4 + 4,
    },
}  # fmt: skip
"""Bytes an element that a rank at stage 0 keeps. (What is updated in the dtype in which it computes has one copy.)"""


@pytest.mark.parametrize("flags", STORED)
def test_row_06_the_memory_tracker_shows_what_dtype_flags_store(flags: str) -> None:
    run = {"model_size": "nano", "seq_len": 16, "batch_size": 2, "max_steps": 1, "world": "lockstep", "ranks": 1}
    report = train(RunSpec(**run | meant(flags)))
    measured = {kind: report.memory_measured[kind] for kind in report.memory_predicted}
    assert measured == report.memory_predicted
    # Padding comes on top, and of 8 bits a scale a block.
    kept = {kind: sizes[0] / 32_928 for kind, sizes in measured.items()}
    assert kept == pytest.approx(STORED[flags], rel=0.05)


def test_row_06_fp16_scales_its_loss_by_what_overflows_and_fp8_is_emulated(capsys: pytest.CaptureFixture[str]) -> None:
    few = ["--world=lockstep", "--max-steps=3"]
    assert main(["train", *SMALL, *few, "--fp16", "--initial-loss-scale", str(2**40), "--hysteresis=1"]) == 0
    shown = capsys.readouterr().out
    assert f"loss scale {2.0**40:g} -> {2.0**38:g}, skipped steps: 1, 2, 3" in shown.replace("\n", " ")
    assert main(["train", *SMALL, "--world=lockstep", "--max-steps=1", "--fp8", "--fp8-backend=emulated"]) == 0
    assert "linear layers compute in emulated fp8" in capsys.readouterr().out.replace("\n", " ")
    assert main(["train", *SMALL, "--fp8", "--fp8-backend", "transformer_engine"]) == 2
    assert "--fp8-backend" in capsys.readouterr().err


RUNS: list[dict[str, Any]] = [
    {},
    {"zero_stage": 1},
    {"zero_stage": 1, "reduction": "all_reduce", "ranks": 4, "batch_size": 24, "grad_accum_steps": 2},
    {"zero_stage": 2, "bf16": True, "checkpoint_activations": True, "max_steps": 5, "lr": 3e-4},
    {"zero_stage": 2, "ranks": 4, "num_distributed_optimizer_instances": 2, "offload_optimizer": "host"},
    {"zero_stage": 3, "fp16": True, "initial_scale_power": 20, "hysteresis": 3, "bucket_numel": 5000},
    {"zero_stage": 3, "fp8": True, "exp_avg_dtype": "fp8", "exp_avg_sq_dtype": "fp8"},
    {"model": "llama", "layers": 3, "dim": 48, "heads": 6, "kv_heads": 2, "ffn_dim": 80, "seed": 7},
    {"model": "gpt2", "layers": 3, "dim": 48, "heads": 6, "context": 80, "dropout": 0.1},
    {"precision": "bf16_fp32_grads", "exp_avg_dtype": "bf16", "vocab_size": 500},
    {"zero_stage": 2, "fp16": True, "reduce_dtype": "fp32", "grads_dtype": "fp32", "main_grads_dtype": "fp32"},
    {"zero_stage": 1, "bf16": True, "main_grads_dtype": "fp32"},
    {"lr_schedule": "cosine", "warmup_steps": 5, "decay_steps": 50, "min_lr": 1e-4, "eval_every": 10, "eval_steps": 2},
    {"zero_stage": 3, "collective_timeout": 1800.0},
    {"zero_stage": 3, "save_folder": "runs", "save_every": 10, "loss_scale": 128.0, "fp16": True},
]


def planned(run: RunSpec) -> tuple[Any, ...]:
    """What a run is, by whatever words it was described."""
    how = (run.stage, run.ranks, run.instances, run.micro_batch_size, run.micro_batches, run.seq_len, run.reduction)
    kept = (run.defer_reduction, run.prefetch, run.bucket_numel, run.checkpoint_activations)
    return run.architecture, run.dtypes, run.places, run.limits, *how, *kept


@pytest.mark.parametrize("settings", RUNS)
def test_flags_that_are_written_are_read_as_the_same_run(settings: dict[str, Any]) -> None:
    words = write(settings)
    back, first = (
        RunSpec(**meant(" ".join([*words, f"--ranks={settings.get('ranks', 2)}"]))),
        RunSpec(**settings),
    )
    assert planned(back) == planned(first)
    kept = {name for name in settings if not name.endswith("_dtype")} - {"bf16", "fp16", "fp8", "precision"}
    assert {name: getattr(back, name) for name in kept} == {name: getattr(first, name) for name in kept}


def names(words: list[str]) -> set[str]:
    return {word.removeprefix("--") for word in words if word.startswith("--")}


def test_every_flag_that_is_read_or_written_is_one_of_megatrons_own() -> None:
    named = [{"model": model, "model_size": "nano", "zero_stage": 3} for model in ("llama", "gpt2")]
    assert set().union(*(names(write(run)) for run in RUNS + named)) <= ARGUMENTS
    assert megatron.FLAGS.keys() - ARGUMENTS == {"num-microbatches"}
    llama = " ".join(write({"model": "llama", "model_size": "nano"}))
    assert "--num-layers 2 --hidden-size 32 --num-attention-heads 4" in llama and "--num-query-groups 2" in llama


@pytest.mark.parametrize(
    "settings",
    [
        {"zero_stage": 3, "offload_param": "host"},
        {"zero_stage": 1, "precision": "pure_bf16"},
        {"bf16": True, "reduce_dtype": "fp32"},
        {"reduce_dtype": "bf16"},
        {"collective_timeout": 90.0},
        {"precision": "bf16_fp32_grads", "main_grads_dtype": "bf16"},
    ],
    ids=str,
)
def test_what_megatron_has_no_flag_for_is_refused_by_name(settings: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"Megatron-LM .*; choose"):
        write(settings)
