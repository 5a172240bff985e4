"""nanoGPT's configurations, which are read and never run; its meaning of their keys; rows 11 to 13."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from zerolab.apps.cli import main
from zerolab.apps.cli.tables import with_total
from zerolab.apps.cli.train import read_flags
from zerolab.apps.dialects.nanogpt import DEFAULTS, NanoGPT, find_nanogpt, read_assignments, read_nanogpt, write
from zerolab.apps.interop.huggingface import export, save_folder, with_shape
from zerolab.data import prepare
from zerolab.errors import InputError
from zerolab.memory import StateSize, predict
from zerolab.models import GPT2Config, build_model, parameter_count
from zerolab.run import RunSpec
from zerolab.train import train
from zerolab.train.parts import decay_groups
from zerolab.zero.units import find_units

SMALL = """
# a model of a test
out_dir = 'out-fox'
eval_interval = 2   # often
eval_iters = 2 * 2
log_interval = 10
always_save_checkpoint = False
wandb_log = False
wandb_project = 'fox'
dataset = 'fox'
gradient_accumulation_steps = 2
batch_size = 3
block_size = 16
n_layer = 2
n_head = 2
n_embd = 4 * 8
dropout = 0.0
learning_rate = 1e-2
max_iters = 4
lr_decay_iters = max_iters
min_lr = learning_rate / 10
beta2 = 0.99
warmup_iters = 1
"""


@pytest.fixture
def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, with a configuration and its data."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fox.txt").write_text("the quick brown fox jumps over the lazy dog; " * 40)
    prepare("fox.txt", Path("data/fox"), "characters")
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "fox.py").write_text(SMALL)
    return tmp_path


def read(line: str, ranks: int = 1, gpu: bool = False) -> Any:
    nano, rest = find_nanogpt(line.split())
    assert nano is not None and rest == []
    return read_nanogpt(nano, ranks, lambda: gpu)


# Reading


def test_a_file_is_plain_assignments_with_arithmetic_and_names_above(tmp_path: Path) -> None:
    path = tmp_path / "c.py"
    path.write_text('"""Says what it is."""\na = -3\nb = (a + 10) // 2\nc = "x"\nd = False\ne = k * 1e-1\n')
    assert read_assignments(path, {"k": 5}) == {
        "a": (-3, 2),
        "b": (3, 3),
        "c": ("x", 4),
        "d": (False, 5),
        "e": (0.5, 6),
    }


REFUSED = {
    "import time\na = time": "line 2: a = time cannot be computed .time is not assigned before",
    "a = 1\nb = str(a)": "line 2: b = str.a. cannot be computed",
    "a = open('x', 'w')": "line 1: a = open",
    "a = __import__('os').system": "line 1: a = __import__",
    "a = [1][0]": "line 1: a = .1..0. cannot",
    "a = f'{1}'": "line 1: a = f",
    "a = b": "line 1: a = b cannot be computed .b is not assigned before",
    "a, b = 1, 2": "line 1: a, b = 1, 2 cannot be computed .it assigns to something else",
    "if True:\n    a = 1": "line 1: if True: is not a plain assignment",
    "a += 1": "line 1: a .= 1 is not a plain assignment",
    "a = 9 ** 9 ** 9": "line 1: a = 9 .. 9 .. 9 cannot",
    "a = 'x' * 10": "a text is no number",
    "a = 10 * 1e300": "line 1: a = 10 . 1e300 cannot be computed .it is too long",
    "a = 1 / 0": "line 1: a = 1 / 0 cannot be computed .division by zero",
    "a = -'x'": "line 1: a = -'x' cannot be computed",
    "a = (": "cannot be read as Python .*line 1",
    "a = " + "+".join(["1"] * 5000): "cannot be computed|cannot be read as Python",
}


@pytest.mark.parametrize("text", REFUSED)
def test_anything_else_is_refused_with_its_line_and_never_run(text: str, tmp_path: Path) -> None:
    path = tmp_path / "c.py"
    path.write_text(text)
    with pytest.raises(InputError, match=REFUSED[text]):
        read_assignments(path, {})


def test_row_13_a_configuration_comes_first_or_after_config_with_keys_beside_it() -> None:
    files = (Path("a.py"),)
    beside = ["--use_zero1=True", "--zero-stage", "3", "--bf16"]
    for words in (["a.py", *beside], ["--config", "a.py", *beside], ["--config=a.py", *beside]):
        assert find_nanogpt(words) == (NanoGPT(files, {"use_zero1": "True"}), ["--zero-stage", "3", "--bf16"])
    # Without a file, a key that is nanoGPT's alone tells; one that others have, too, does not.
    line = "--dataset=shakespeare --use_zero1=True --batch_size=12 --max_iters=100 --eval_interval=50 --compile=False"
    nano, rest = find_nanogpt(line.split())
    assert nano is not None and rest == [] and nano.overrides["batch_size"] == "12" and nano.files == ()
    for words in (["--batch-size=12", "--dataset=x"], ["--eval-interval=5", "--lr-decay-iters", "9"]):
        assert find_nanogpt(words) == (None, words)


def test_row_12_settings_mean_what_nanogpt_means_by_them(room: Path) -> None:
    config = RunSpec(**read("config/fox.py", ranks=2).settings)
    assert config.architecture == GPT2Config(256, 32, 2, 2, max_seq_len=16)
    # Three sequences of each of two ranks in its one of two micro-batches.
    assert (config.batch_size, config.grad_accum_steps, config.micro_batch_size) == (6, 1, 3)
    assert read("config/fox.py", ranks=1).settings["grad_accum_steps"] == 2
    assert (config.lr, config.min_lr, config.decay_steps, config.max_steps) == (1e-2, 1e-3, 4, 4)
    # nanoGPT's own: lr * (it + 1) / (warmup_iters + 1), then half a cosine from warmup_iters to lr_decay_iters.
    assert [config.schedule(step) for step in range(5)] == pytest.approx([0.005, 0.01, 0.00775, 0.00325, 0.001])
    assert (config.beta1, config.beta2, config.clip_norm, config.weight_decay) == (0.9, 0.99, 1.0, 0.1)
    assert (config.eval_every, config.eval_steps, config.zero_stage, config.seq_len) == (2, 2, 1, 16)
    assert (str(config.save_folder), config.save_every, config.resume) == ("out-fox", 2, None)
    flat = RunSpec(**read("config/fox.py --decay_lr=False --grad_clip=0.0 --use_zero1=False").settings)
    assert {flat.schedule(step) for step in range(5)} == {1e-2} and (flat.clip_norm, flat.zero_stage) == (0.0, 0)
    given = {setting for setting in read("config/fox.py").settings if setting not in RunSpec.model_fields}
    assert given == set()


def test_row_12_decay_is_for_two_dimensions_and_more() -> None:
    options = decay_groups(0.1)
    assert [options("", torch.zeros(shape))["weight_decay"] for shape in ((2, 2), (2,), ())] == [0.1, 0.0, 0.0]


def test_row_13_the_defaults_are_gpt_2_with_124_million_parameters(room: Path) -> None:
    data = room / "data" / "openwebtext"
    data.mkdir()
    for name in ("train.bin", "val.bin"):
        (data / name).write_bytes(b"\x51\xc4" * 2000)
    meant = read("--use_zero1=True", ranks=8, gpu=True)
    config = RunSpec(**meant.settings)
    assert parameter_count(config.architecture) == 124_373_760
    assert (config.batch_size, config.grad_accum_steps, config.micro_batch_size) == (480, 5, 12)
    assert (config.beta2, config.lr, config.max_steps, config.seed) == (0.95, 6e-4, 600_000, 1337)
    assert config.bf16 and config.compile and config.device == "auto"
    assert [note for note in meant.notes if "50304" in note and "bfloat16" not in note]
    on_cpu = read("--use_zero1=True --device=cpu --dtype=bfloat16", ranks=8, gpu=True)
    assert not {"bf16", "fp16"} & on_cpu.settings.keys() and on_cpu.settings["compile"] is False
    assert any("GPUs only" in note for note in on_cpu.notes) and any(
        "compile is left off" in note for note in on_cpu.notes
    )


def test_a_hugging_face_folder_is_what_a_run_can_be_initialized_from(room: Path) -> None:
    config = GPT2Config(300, 48, 2, 2, max_seq_len=64, bias=True)
    model = build_model(config)
    save_folder("hf", config, export(config, model.state_dict().__getitem__))
    assert RunSpec(**with_shape(read("config/fox.py --init_from=hf").settings)).architecture == config


def test_row_13_one_to_eight_ranks_make_the_same_batch_of_micro_batches_of_one_size(room: Path) -> None:
    for ranks in (1, 2, 4, 8):
        settings = read("config/fox.py --gradient_accumulation_steps=8 --eval_iters=20", ranks).settings
        spec = RunSpec(**settings)
        assert (spec.batch_size, spec.micro_batch_size, spec.micro_batches * ranks) == (24, 3, 8)
        assert settings["eval_steps"] == [20, 10, 5, 3][[1, 2, 4, 8].index(ranks)]


def test_row_13_one_two_four_and_eight_ranks_train_the_same_model(room: Path) -> None:
    losses = []
    for ranks in (1, 2, 4, 8):
        settings = read("config/fox.py --gradient_accumulation_steps=8 --eval_interval=9 --max_iters=2", ranks).settings
        kept = {name: value for name, value in settings.items() if name not in ("save_folder", "save_every", "keep")}
        losses.append(train(RunSpec(**kept, world="lockstep")).loss)
    assert all(loss == pytest.approx(losses[0], abs=1e-5) for loss in losses[1:])


def test_the_page_says_what_becomes_of_every_key() -> None:
    page = (Path(__file__).parents[3] / "docs" / "nanogpt.md").read_text()
    assert [key for key in DEFAULTS if f"`{key}`" not in page] == []


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ("config/no.py", ["config/no.py cannot be read"]),
        ("--config", ["without a file"]),
        ("--config=", ["without a file"]),
        ("--ranks 2 config/fox.py", ["unrecognized arguments: config/fox.py"]),
        ("config/fox.py --n_layers=3", ["n-layers"]),
        ("config/fox.py --n_layer=three", ["--n_layer is 'three'", "whole number"]),
        ("config/fox.py --compile=1", ["--compile is 1", "True or False"]),
        ("config/fox.py --batch_size 4", ["key batch_size", "--batch_size=VALUE"]),
        ("config/fox.py --max-steps 9", ["--max-steps is 9", "max_iters", "make it 4"]),
        ("config/fox.py --use_zero1=True --zero-stage 2", ["--zero-stage is 2", "use_zero1", "make it 1"]),
        (
            "config/fox.py --ranks 3",
            ["gradient_accumulation_steps is 2", "3 ranks do not", "add --gradient_accumulation_steps=3, with"],
        ),
        ("--learning_rate=1e-3", ["--learning_rate= is a key of nanoGPT's", "--help has our own", "is 'openwebtext'"]),
        ("config/fox.py --init_from=gpt2-xl", ["init_from is 'gpt2-xl'", "save_pretrained"]),
        ("config/fox.py --eval_only=True", ["eval_only is True", "eval_interval"]),
        ("config/fox.py --device=mps", ["device is 'mps'", "'cpu' or 'cuda'"]),
        ("config/fox.py --dtype=int8", ["dtype is 'int8'"]),
        ("config/fox.py --dataset=owt", ["dataset is 'owt'", "zerolab prepare FILE --out data/owt"]),
        ("config/fox.py --min_lr=1.0", ["min_lr is 1 and lr 0.01"]),
        ("config/fox.py --init_from=resume", ["out-fox", "no checkpoint"]),
        ("config/bad.py", ["config/bad.py, line 2: max_iter is none of nanoGPT's keys"]),
    ],
)
def test_a_configuration_that_cannot_be_is_a_sentence(
    flags: str, named: list[str], room: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (room / "config" / "bad.py").write_text("n_layer = 2\nmax_iter = 3\n")
    assert main(["train", *flags.split()]) == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert all(word in said[-1] for word in named), said
    assert len([line for line in said if line.startswith("zerolab train: ") and " is 10, but" not in line]) <= 3


def test_the_micro_batches_that_a_refusal_asks_for_train_on_these_ranks(
    room: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["train", "config/fox.py", "--ranks=2", "--world=lockstep"]
    assert main([*flags, "--gradient_accumulation_steps=1"]) == 2
    said = capsys.readouterr().err
    assert "with which a step has 6 sequences instead of 3" in said and len(said.splitlines()) == 1
    remedy = next(word.rstrip(",") for word in said.split() if word.startswith("--gradient"))
    assert main([*flags, remedy]) == 0


@pytest.mark.parametrize("flags", ["--lr 1.0e-2", "--lr 0.010", "--max-steps 04"])
def test_a_flag_with_the_value_of_a_key_contradicts_nothing(flags: str, room: Path) -> None:
    nano, rest = find_nanogpt(["config/fox.py", *flags.split()])
    assert nano is not None
    given, _ = read_flags(rest)
    assert read_nanogpt(nano, 1, lambda: False).beside(given).items() >= given.items()


def test_a_run_goes_on_from_a_folder_at_home(room: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(room / "home"))
    line = ["train", "config/fox.py", "--out_dir=~/out", "--world", "lockstep"]
    assert main([*line, "--max_iters=2"]) == 0
    assert (room / "home" / "out").is_dir()
    assert main([*line, "--max_iters=3", "--init_from=resume"]) == 0


# Training


def test_rows_11_to_13_a_configuration_trains_says_zero_1_and_goes_on(
    room: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    line = "train config/fox.py --use_zero1=True --ranks 2 --world=lockstep --profile-json"
    assert main([*line.split(), "whole.json", "--out_dir=whole"]) == 0
    said = capfd.readouterr()
    assert "ZeRO-1 is on: the optimizer's states are sharded over 2 ranks" in said.err
    assert "validation loss" in said.out and "NO" not in said.out
    whole = json.loads(Path("whole.json").read_text())
    assert whole["zero_stage"] == 1 and list(whole["validation_loss"]) == ["0", "2", "4"]
    assert whole["loss"][-1] < whole["loss"][0]
    # The newest checkpoint is kept, and a run goes on from it.
    assert main([*line.split(), "a.json", "--max_iters=2"]) == 0
    assert main([*line.split(), "b.json", "--init_from=resume"]) == 0
    parts = [json.loads(Path(name).read_text()) for name in ("a.json", "b.json")]
    assert parts[0]["loss"] + parts[1]["loss"] == whole["loss"]
    assert parts[1]["parameters_sha256"] == whole["parameters_sha256"]
    # One process has nothing to shard, and says so.
    assert (
        main(["train", "config/fox.py", "--use_zero1=True", "--max_iters=1", "--lr_decay_iters=1", "--out_dir=one"])
        == 0
    )
    assert "one process shards nothing: a plain optimizer steps" in capfd.readouterr().err


def test_row_15_gpt_2_keeps_a_quarter_of_its_optimizer_on_each_of_four_ranks() -> None:
    """In GB: whole, 0.497 of parameters, 0.497 of gradients and 0.995 of moments; 1.244 in all with ZeRO-1."""
    with torch.device("meta"):
        model = build_model(GPT2Config(50304, 768, 12, 12))
    tables = {}
    for stage, ranks in ((0, 4), (1, 4), (1, 8)):
        plans = [bucket.plan for unit in find_units(model, ranks) for bucket in unit.buckets]
        kept = predict(plans, stage, StateSize(2, 4))
        tables[stage, ranks] = {kind: round(max(sizes) / 1e9, 3) for kind, sizes in with_total(kept, kept).items()}
    assert tables[0, 4] == {"parameters": 0.497, "gradients": 0.497, "optimizer_states": 0.995, "total": 1.99}
    assert tables[1, 4] == {"parameters": 0.497, "gradients": 0.497, "optimizer_states": 0.249, "total": 1.244}
    assert tables[1, 8]["optimizer_states"] == 0.124
    # Of the whole, elements shard evenly: 37.5 % less, and not the half that texts promise.
    assert 1 - tables[1, 4]["total"] / tables[0, 4]["total"] == pytest.approx(0.375, abs=1e-3)


def test_row_15_the_report_has_the_same_table_predicted_and_measured(
    room: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert (
        main(
            [
                "train",
                "config/fox.py",
                "--use_zero1=True",
                "--ranks=2",
                "--world=lockstep",
                "--max_iters=1",
                "--warmup_iters=0",
            ]
        )
        == 0
    )
    shown = capfd.readouterr().out.partition("memory: bytes kept")[2].partition("device memory")[0]
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in shown.splitlines() if line.startswith("│")]
    of_rank_0 = {kind: int(predicted.replace(",", "")) for kind, _, predicted, _, agree in rows if kind and agree}
    assert list(of_rank_0) == ["parameters", "gradients", "optimizer_states", "total"]
    assert of_rank_0["total"] == sum(of_rank_0.values()) - of_rank_0["total"]
    assert of_rank_0["optimizer_states"] == pytest.approx(of_rank_0["parameters"], rel=0.01)
    assert {agree for *_, agree in rows} == {"yes", ""}


# Writing


def test_settings_come_back_from_the_file_that_they_were_written_to(room: Path) -> None:
    before = read("config/fox.py --bias=True --dropout=0.1", ranks=2).settings
    text = write(before)
    (room / "again.py").write_text(text)
    after = read("again.py", ranks=2).settings
    assert after == {**before, "device": after["device"]} and "n_embd = 32\n" in text and "beta1" not in text
    assert {line.split(" = ")[0] for line in text.splitlines()} <= DEFAULTS.keys()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"zero_stage": 2}, "zero_stage is 2"),
        ({"model": "llama"}, "model is llama"),
        ({"lr_schedule": "linear"}, "lr_schedule is linear"),
        ({"offload_optimizer": "host"}, "offload_optimizer is host"),
        ({"dataset": None, "data_mode": "synthetic"}, "data_mode is synthetic"),
    ],
)
def test_what_nanogpt_has_no_key_for_is_refused_by_name(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        write({"model": "gpt2", "dataset": "fox", **settings})
