"""`zerolab plan`: what it reads, what it says, which stage it recommends, and why."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hf_configs import EXACT, FAR

from zerolab.apps.cli import main
from zerolab.apps.cost import GPUS, find_gpu
from zerolab.apps.interop.huggingface.config import to_huggingface
from zerolab.apps.plan import GB, SHAPES, advice, gpu_bytes, predict_memory
from zerolab.apps.plan.describe import as_settings, describe_plan
from zerolab.apps.plan.footprint import at_stage, name_changes
from zerolab.apps.plan.guide import (
    against_memory,
    against_slowness,
    count_buckets,
    kept_by_threshold,
    recommend,
    seconds_on_links,
    traffic_bytes,
)
from zerolab.apps.plan.layout import lay_out_model, layout_of
from zerolab.apps.plan.model_lookup import find_model
from zerolab.errors import InputError
from zerolab.flat import Segment
from zerolab.models import config_of
from zerolab.offload import Offload
from zerolab.offload.groups import count_parts, sub_groups
from zerolab.run import RunSpec
from zerolab.run.instances import traffic_across

GPT2 = ["plan", "--model", "gpt2-124m", "--ranks", "4"]


def test_a_plan_says_what_fits_and_what_would(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*GPT2, "--gpu", "T4", "--zero-stage", "1"]) == 0
    said = capsys.readouterr().out
    run = RunSpec(SHAPES["GPT-2 124M"], ranks=4, stage=1)
    assert "GPT-2 124M: 124,439,808 parameters; 4 ranks at stage 1, bf16" in said
    assert f"Fits: {gpu_bytes(run) / GB:.2f} GB of the 16 GB of a T4" in said
    assert "gradients      whole      bfloat16  device\nmain, moments  shard      float32   device\n" in said
    assert main(["plan", "--model", "GPT-3 13B", "--ranks", "8", "--gpu-memory", "40", "--zero-stage", "2"]) == 0
    assert "Does not fit:" in (said := capsys.readouterr().out) and "The smallest change that fits: stage 3," in said


def test_the_file_for_programs_says_what_the_planner_knows(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    flags = ["--batch-size", "16", "--grad-accum-steps", "2", "--seq-len", "64", "--checkpoint-activations"]
    offloads = ["--offload_optimizer", "cpu"]
    assert main([*GPT2, "--gpu", "h100", "--zero-stage", "2", *flags, *offloads, "--json", str(file)]) == 0
    run = RunSpec(
        SHAPES["GPT-2 124M"], ranks=4, stage=2, micro_batch_size=2, seq_len=64, checkpoint_activations=True,
        offload=Offload("host"), micro_batches=2,
    )  # fmt: skip
    record = json.loads(file.read_text())
    assert record.pop("time").keys() == {"gpu", "network", "by_stage"}
    assert record == json.loads(json.dumps(describe_plan(run, 80.0 * GB)))
    assert record["fits"] is True and record["peak"]["total"] == gpu_bytes(run)
    assert record["states_by_rank"]["3"]["host"].keys() == {"gradients", "optimizer_states"}
    assert sum(sum(calls.values()) for calls in record["sent_by_phase"].values()) == record["sent"]


def test_405_billion_parameters_on_1024_ranks_are_planned_from_three_layers() -> None:
    run = RunSpec(find_model("llama-3-405b"), ranks=1024, stage=3, seq_len=8192, checkpoint_activations=True)
    found = predict_memory(run)
    assert found.states["parameters"] == pytest.approx(2 * 405_853_388_800 / 1024, rel=1e-4)
    assert len(found.tops) == 2 * (126 + 2) + 2
    # Three of them are run, whatever there are: a model of 126 layers has the trace of one of three, repeated.
    assert found.peak.where == "backward of layer 124"


@pytest.mark.parametrize(
    ("given", "parameters"),
    [
        ("GPT-3 175B", SHAPES["GPT-3 175B"].parameters),
        ("llama_2_70b", 68_976_648_192),
        ("llama nano", 32_928),
        ("layers=12,hidden=768,heads=12,context=1024", 124_439_808),
        ("layers=32,hidden=4096,heads=32,kv_heads=8,ffn=14336,vocabulary=128256", 8_030_261_248),
        ("layers=32 hidden=4096 heads=32 kv_heads=8 ffn=14336 vocabulary=32000 experts=8", 46_702_792_704),
    ],
)
def test_models_come_by_name_and_by_sizes(given: str, parameters: int) -> None:
    assert find_model(given).parameters == parameters


def test_models_come_by_their_config(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    config = replace(config_of("llama", "nano"), tied_head=False)
    said = to_huggingface(config)
    # What changes no byte of training is passed over.
    file.write_text(json.dumps({**said, "rope_scaling": {"rope_type": "llama3", "factor": 8.0}}))
    assert find_model(str(file)).config == config == find_model(str(tmp_path)).config
    experts = {"num_local_experts": 4, "num_experts_per_tok": 2}
    file.write_text(json.dumps({**said, "model_type": "mixtral", **experts}))
    assert find_model(str(file)).parameters - find_model("llama nano").parameters == (
        256 * 32 + 2 * (3 * 3 * 32 * 96 + 32 * 4)
    )


def test_gpus_come_by_name() -> None:
    assert find_gpu("a100-80gb").memory_gb == 80 and find_gpu("h100").name == "H100"
    assert all(find_gpu(name) is gpu for name, gpu in GPUS.items())


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--model", "llama-4"], "there is no model 'llama-4'; choose Llama"),
        (["--model", "layers=2,hidden=64"], "does not say heads"),
        (["--model", "layers=2,width=64"], "'width=64' is no size"),
        (["--model", "missing.json"], "missing.json cannot be read"),
        (["--model", "gpt2-124m", "--gpu", "A100"], "choose one of A100 40GB, A100 80GB"),
        (["--model", "gpt2-124m", "--gpu", "T4", "--gpu-memory", "3"], "give one of the two"),
        (["--model", "gpt2-124m", "--recommend"], "--recommend needs to know the GPU"),
        (["--model", "gpt2-124m", "--ranks", "0"], "--ranks is '0'"),
        (["--model", "gpt2-124m", "--batch-size", "9"], "--batch-size 9 is not a multiple of ranks 8"),
        (["--model", "gpt2-124m", "--precision", "fp4"], "there is no precision 'fp4'"),
        (["--model", "gpt2-124m", "--offload-param", "cpu"], "not at stage 0"),
        (["--model", "gpt2-124m", "--seq-len", "4096"], "more than the context of GPT-2 124M"),
        (["--model", "gpt2-124m", "--emit", "morse"], "--emit is 'morse'; choose one of"),
        (["--model", ""], "there is no model ''; choose"),
        (["--model", "layers=2,hidden=8,heads=2,layers=3"], "gives layers twice; give it once"),
        (["--model", "layers=10001,hidden=8,heads=2"], "layers is 10001; give at most 10000"),
        (["--model", "layers=2,hidden=99999999999999999999,heads=1"], "hidden is 99999999999999999999; give at most"),
        (["--model", "layers=2,hidden=8,heads=2,experts=99999"], "experts is 99999; give at most 10000"),
        (
            ["--model", "gpt2", "--num-distributed-optimizer-instances", "0"],
            "--num-distributed-optimizer-instances is '0'",
        ),
        (["--model", "gpt2", "--gpu", "H100", "--node-size", "0"], "--node-size is '0'; it should be greater"),
        (["--model", "gpt2", "--gpu", "H100", "--cards", "0"], "--cards is '0'; it should be greater"),
        (
            ["--model", "gpt2", "--gpu", "H100", "--link-gbit-per-s", "-1"],
            "--link-gbit-per-s is '-1'; it should be greater than 0",
        ),
        (["--model", "gpt2", "--gpu", "H100", "--link-gbit-per-s", "inf"], "--link-gbit-per-s is 'inf'; give a number"),
        (["--model", "gpt2", "--gpu", "H100", "--link-latency-us", "nan"], "--link-latency-us is 'nan'; give a number"),
        (
            ["--model", "gpt2", "--gpu", "H100", "--reached", "5"],
            "--reached is '5'; it should be less than or equal to 1",
        ),
    ],
)
def test_what_cannot_be_planned_is_one_sentence_and_status_2(
    flags: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", *flags]) == 2
    said = capsys.readouterr().err
    assert says in said and said.count("\n") == 1


def test_a_plan_is_emitted_in_the_words_of_a_dialect(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*GPT2, "--zero-stage", "2", "--emit", "zerolab"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("zerolab train") and "--zero-stage 2" in said and "--layers 12" in said
    with pytest.raises(InputError, match="Mixtral 8x7B has experts"):
        as_settings(RunSpec(SHAPES["Mixtral 8x7B"]))


@pytest.mark.parametrize("limit", [None, 1, 7, 16, 64])
def test_sub_groups_are_counted_without_making_them(limit: int | None) -> None:
    segments = [(0, Segment("a", 0, 48), 8), (0, Segment("b", 48, 56), 8), (1, Segment("a", 0, 16), 8)]
    made = [(part.bucket, part.segment.group) for group in sub_groups(segments, limit) for part in group]
    counted = [(bucket, segment.group, parts) for bucket, segment, parts in count_parts(segments, limit)]
    assert counted == [(bucket, group, made.count((bucket, group))) for bucket, group, _ in counted]


# Row 27: the guide to stages, and remedies


@pytest.mark.parametrize(
    ("name", "ranks", "gpu", "stage"),
    [("GPT-2 124M", 8, 16, 0), ("GPT-2 1.5B", 8, 24, 1), ("GPT-3 6.7B", 8, 40, 2), ("GPT-3 13B", 64, 24, 3)],
)
def test_row_27_the_lowest_stage_that_fits_is_recommended_with_the_figures_of_those_below(
    name: str, ranks: int, gpu: int, stage: int
) -> None:
    run = RunSpec(SHAPES[name], ranks=ranks)
    found, reasons = recommend(run, gpu * GB)
    assert found is not None and found.stage == stage and len(reasons) == stage + 1
    assert [reason.rpartition("; ")[2] for reason in reasons] == ["too much"] * stage + [
        "fits, and is the lowest stage that does"
    ]
    assert all(gpu_bytes(run.but(stage=lower)) > gpu * GB for lower in range(stage))


def test_row_27_where_stage_3_does_not_fit_either_the_host_or_recomputation_makes_it_fit() -> None:
    found, reasons = recommend(RunSpec(SHAPES["GPT-3 13B"], ranks=8), 24 * GB)
    assert found is not None and found.stage == 3 and gpu_bytes(found) <= 24 * GB
    assert reasons[3].endswith("too much") and reasons[4].startswith("stage 3 with ")
    nothing, reasons = recommend(RunSpec(SHAPES["GPT-3 175B"], ranks=8, seq_len=2048), 2 * GB)
    assert nothing is None and reasons[-1].startswith("no recomputation")


def test_row_27_each_remedy_against_memory_is_shown_to_save_some() -> None:
    run = RunSpec(SHAPES["GPT-3 6.7B"], ranks=8, stage=3, micro_batch_size=4)
    remedies = {remedy.what: remedy.run for remedy in against_memory(run)}
    assert remedies.keys() == {
        "recompute activations", "micro-batches of 1", "optimizer on the host", "optimizer and parameters on the host",
        "no prefetch", "16 ranks",
    }  # fmt: skip
    assert all(gpu_bytes(changed) < gpu_bytes(run) for changed in remedies.values())
    # No remedy: what the default of that threshold keeps is next to nothing, and setting it to itself frees none.
    assert kept_by_threshold(run) < 0.001 * gpu_bytes(run)


def test_row_27_each_remedy_against_slowness_is_shown_to_send_less_or_to_compute_less() -> None:
    run = RunSpec(
        SHAPES["GPT-3 6.7B"], ranks=8, stage=3, micro_batches=4, checkpoint_activations=True, offload="optimizer"
    )
    sent = {remedy.what: traffic_bytes(remedy.run) for remedy in against_slowness(run)}
    assert sent.pop("keep activations") == sent.pop("optimizer on the GPU") == traffic_bytes(run)
    assert sent.keys() == {"stage 0", "stage 1", "stage 2", "reduce once a step", "one micro-batch"}
    assert all(nbytes < traffic_bytes(run) for nbytes in sent.values())


def test_row_27_larger_buckets_are_fewer_messages_of_the_same_bytes() -> None:
    run = RunSpec(SHAPES["GPT-3 6.7B"], ranks=8, stage=2)
    counts = [count_buckets(run, numel)[0] for numel in (50_000_000, 500_000_000, None)]
    # One parameter is never cut, and no bucket holds two units: 32 layers, and the embedding with the head.
    assert counts[0] > counts[1] == counts[2] == 33
    small, whole = run.but(bucket_numel=50_000_000), run
    assert traffic_bytes(small) == pytest.approx(traffic_bytes(whole), rel=1e-4)


def test_row_27_a_faster_link_is_worth_what_its_bandwidth_says() -> None:
    two, three = (seconds_on_links(RunSpec(SHAPES["GPT-3 6.7B"], ranks=8, stage=stage)) for stage in (2, 3))
    assert two["100 Gbit/s"] == 4 * two["400 Gbit/s"] and [*two] == [*three]
    assert all(three[link] == pytest.approx(1.5 * two[link], rel=1e-3) for link in two)


def test_row_27_the_command_shows_reasons_and_remedies(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    flags = ["--gpu-memory", "3", "--batch-size", "8", "--recommend", "--json", str(file)]
    assert main([*GPT2, *flags]) == 0
    said = capsys.readouterr().out
    parts = ("Recommended: stage 1", "; too much", "if memory runs out", "overlap_comm", "whole units")
    assert [part for part in parts if part not in said] == []
    record = json.loads(file.read_text())["recommended"]
    assert record["run"]["run"]["zero_stage"] == 1 and len(record["reasons"]) == 2
    assert all(remedy["gpu_bytes"] > 0 for remedy in record["memory_remedies"])


def test_several_instances_of_the_states_are_planned_and_emitted(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    sharded = ["--ranks=8", "--zero-stage=3", "--num-distributed-optimizer-instances=2"]
    run = ["plan", "--model=gpt2", "--gpu=H100", *sharded]
    assert main([*run, "--json", str(tmp_path / "plan.json")]) == 0
    shown, found = capsys.readouterr().out, json.loads((tmp_path / "plan.json").read_text())
    assert "in 2 instances" in shown and "A step's time is predicted of one instance only" in shown
    whole = found["model"]["parameters"]
    assert sum(found["states_by_rank"]["7"]["device"].values()) == pytest.approx(whole * 16 / 4, rel=1e-3)
    assert found["states_by_rank"]["3"] == found["states_by_rank"]["7"]
    assert found["sent_by_phase"]["backward"]["all_reduce"] == pytest.approx(whole * 2 / 4, rel=1e-3)
    assert main([*run, "--emit", "zerolab"]) == 0
    assert "--num-distributed-optimizer-instances 2" in capsys.readouterr().out
    assert main([*run, "--ranks=7"]) == 2
    assert "--num-distributed-optimizer-instances is 2, which does not divide 7 ranks" in capsys.readouterr().err


def test_what_makes_several_instances_fit_is_one_of_them() -> None:
    run = RunSpec(SHAPES["GPT-3 1.3B"], ranks=16, stage=3, seq_len=128, checkpoint_activations=True, instances=8)
    whole = run.but(instances=1)
    limit = (gpu_bytes(run) + gpu_bytes(whole)) / 2
    found = advice(run, limit)
    assert found == whole and name_changes(run, whole) == ["one instance"]
    assert at_stage(run, 0).instances == 1


@pytest.mark.parametrize("name", EXACT)
def test_a_config_json_is_planned_with_the_parameters_that_transformers_makes(name: str, tmp_path: Path) -> None:
    parameters, said = EXACT[name]
    file = tmp_path / "config.json"
    file.write_text(json.dumps(said))
    shape = find_model(str(file))
    assert shape.parameters == parameters
    # The layout, from which all figures come, holds as many.
    plans = lay_out_model(shape.config, 1).plans
    assert sum(slot.numel for plan in plans for slot in plan.layout.slots) == parameters
    assert predict_memory(RunSpec(shape, ranks=8, stage=3, seq_len=64)).peak.total > 16 * parameters / 8


def test_a_family_that_is_not_planned_is_refused_by_name_with_a_remedy(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    remedy = "name a model that is like it, or sizes such as layers=24,hidden=2048,heads=16"
    for name in FAR:
        file.write_text(json.dumps({"model_type": name, "hidden_size": 64}))
        with pytest.raises(InputError, match=f"model_type is '{name}', and .* planned to the byte is gpt2, .*{remedy}"):
            find_model(str(file))


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({"attention_bias": True}, "attention_bias is True"),
        ({"quantization_config": {"bits": 4}}, "quantization_config is"),
    ],
)
def test_a_field_that_is_not_planned_is_refused_by_name_with_a_remedy(
    changed: dict[str, Any], named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(EXACT["mistral 7B"][1] | changed))
    assert main(["plan", "--model", str(file)]) == 2
    said = capsys.readouterr().err
    assert named in said and "or sizes such as layers=24" in said and said.count("\n") == 1 and "checkpoint" not in said


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"hidden_size": None}, "hidden_size is missing, but must be a whole number of at least 1; mend the file."),
        ({"head_dim": 0}, "head_dim is 0, but must be a whole number of at least 1; mend the file."),
        ({"num_hidden_layers": 10**6}, "layers is 1000000; give at most 10000"),
        ({"hidden_size": 1 << 40}, f"hidden is {1 << 40}; give at most 16777216"),
        ({"model_type": "mixtral"}, "there are None experts of which None are active; give whole numbers"),
    ],
)
def test_a_config_json_that_cannot_be_is_refused_by_its_field_alone(
    changed: dict[str, Any], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**EXACT["llama 2 7B"][1], **changed}))
    assert main(["plan", "--model", str(file)]) == 2
    assert capsys.readouterr().err.endswith(f"{says}\n")


def test_a_plan_is_not_written_over_the_model_that_it_reads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "config.json"
    file.write_text(text := json.dumps(EXACT["llama 2 7B"][1]))
    for model in (file, tmp_path):
        assert main(["plan", "--model", str(model), "--json", str(tmp_path / "." / "config.json")]) == 2
        assert "which is the model's own file; name another" in capsys.readouterr().err
    assert file.read_text() == text


def test_what_a_deepspeed_configuration_cannot_say_is_noted(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*GPT2, "--emit", "deepspeed"]) == 0 and capsys.readouterr().err == ""
    assert main([*GPT2, "--emit", "deepspeed", "--checkpoint-activations"]) == 0
    seen = capsys.readouterr()
    assert json.loads(seen.out) and "--checkpoint-activations is in no DeepSpeed configuration" in seen.err


@pytest.mark.timeout(20)
def test_micro_batches_across_instances_are_multiplied_and_not_walked_through() -> None:
    run = RunSpec(SHAPES["GPT-2 124M"], ranks=4, stage=1, seq_len=64, instances=2, reduction="all_reduce")
    one, most = (across(run.but(micro_batches=count)) for count in (1, 2_000_000))
    assert most == {name: [2_000_000 * nbytes for nbytes in sent] for name, sent in one.items()}


def across(run: RunSpec) -> dict[str, list[int]]:
    return traffic_across(layout_of(run).plans, run)


def test_relatives_of_the_llama_are_planned_and_not_emitted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(EXACT["qwen3 0.6B"][1]))
    run = ["plan", "--model", str(file), "--ranks", "2", "--zero-stage", "3", "--seq-len", "64"]
    assert main(run) == 0
    assert "596,049,920 parameters" in capsys.readouterr().out
    assert main([*run, "--emit", "zerolab"]) == 2
    assert "(zerolab train --init-from); leave out --emit" in capsys.readouterr().err
