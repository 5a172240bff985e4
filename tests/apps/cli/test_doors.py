"""The doors as a stranger finds them: what people bring works, or is one sentence with a remedy and status 2."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest

from zerolab.apps.cli import main
from zerolab.apps.cli.parser import ELSEWHERE, find_nearest
from zerolab.apps.cli.train import make_parser
from zerolab.apps.dialects.deepspeed import read_deepspeed, write
from zerolab.apps.dialects.nanogpt import read_assignments
from zerolab.apps.plan.model_lookup import find_model
from zerolab.errors import InputError
from zerolab.run import RunSpec
from zerolab.train.here import check_here

Captured = pytest.CaptureFixture[str]


def refused(words: list[str], capsys: Captured) -> str:
    """The one sentence with which a command line is refused."""
    status = main(words)
    said = capsys.readouterr()
    assert status == 2 and said.out == "" and len(said.err.splitlines()) == 1, said
    return said.err


# Flags


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("", "no command is given; give one of train, "),
        ("trian", "there is no command 'trian' (did you mean train?)"),
        ("train --zero-sta 3", "unrecognized arguments: --zero-sta 3 (did you mean --zero-stage?)"),
        ("train --rank 3", "(did you mean --ranks?)"),
        ("train --stage 3", "(did you mean --zero-stage?)"),
        ("train -zero-stage 3", "(did you mean --zero-stage?)"),
        ("train --qqqq", "unrecognized arguments: --qqqq;"),
        ("train --profile-json a --trace a", "--profile-json and trace are both a; name a file for each"),
        ("plan --model gpt-2-124m --zero 3", "(did you mean --zero-stage?)"),
        ("plan --model gpt-2-124m --ranks x", "--ranks is 'x'; give a whole number"),
        ("plan --model gpt-2-124m --gpu-memory 80GB", "--gpu-memory is '80GB'; give a number"),
        ("prepare x.txt --out y --valid 0.2", "(did you mean --valid-fraction?)"),
        ("prepare x.txt --out y --tokens gpt2", "--tokens is 'gpt2'; it should be 'bytes' or 'chars'"),
        ("prepare x.txt --out y --valid-fraction 2", "--valid-fraction is '2'; it should be less than 1"),
        ("sample nowhere", "there is no folder 'nowhere'; name one that zerolab train has saved to"),
        ("sample runs --tok 3", "(did you mean --tokens?)"),
        ("launch x.py --collective ring", "--collective ring (did you mean --collectives?)"),
        ("train --gpus 2", "unrecognized arguments: --gpus 2 (did you mean --ranks?)"),
        ("train --nproc_per_node=2", "(did you mean --ranks?)"),
        ("train --world-size 2", "(did you mean --ranks?)"),
        ("train -n 2", "(did you mean --ranks?)"),
        ("plan --model gpt-2-124m --num-gpus 8", "(did you mean --ranks?)"),
        ("train --epochs 1", "(did you mean --max-steps, since steps are counted, not epochs?)"),
        ("train --learning-rate 1e-3", "(did you mean --lr?)"),
        ("train --zero 3", "(did you mean --zero-stage?)"),
        ("train --config ds.json", "for a DeepSpeed configuration give --deepspeed-config ds.json"),
        ("train --config=runs/ds.json --ranks 2", "give --deepspeed-config runs/ds.json"),
        ("train ds.json", "unrecognized arguments: ds.json (did you mean --deepspeed-config ds.json?)"),
        ("train --deepspeed ds.json", "(did you mean --deepspeed-config?)"),
    ],
)
def test_a_flag_is_written_out_and_another_is_refused_with_the_nearest(words: str, says: str, capsys: Captured) -> None:
    assert says in refused(words.split(), capsys)


def test_what_other_tools_call_a_flag_leads_to_one_that_there_is() -> None:
    ours = {*re.findall(r"--[\w-]+", make_parser().format_help())}
    assert {re.split("[ ,]", flag)[0] for flag in ELSEWHERE} <= ours
    assert not {f"--{name}" for names in ELSEWHERE.values() for name in names.split()} & ours


def test_the_nearest_word_begins_with_the_one_given_or_has_it_or_is_spelled_alike() -> None:
    words = ["--zero-debug", "--zero-stage", "--use-zero1", "--lr"]
    found = {word: find_nearest(word, words) for word in ("--zero_stage", "--use", "--stage", "--zero-stge", "--xyz")}
    assert list(found.values()) == ["--zero-stage", "--use-zero1", "--zero-stage", "--zero-stage", None]


@pytest.mark.parametrize(("ranks", "steps", "batch"), [(2, 1, 12), (8, 1, 16), (4, 2, 16), (5, 7, 35), (128, 1, 128)])
def test_a_batch_that_nobody_gave_is_one_that_the_ranks_divide(ranks: int, steps: int, batch: int) -> None:
    assert RunSpec(ranks=ranks, grad_accum_steps=steps).batch_size == batch
    written = write({"ranks": ranks, "grad_accum_steps": steps})
    assert written["train_batch_size"] == batch


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"batch_size": 10**30}, "it should be less than or equal to 2147483648"),
        ({"seed": 10**25}, "seed is 10000000000000000000000000; it should be less than"),
        ({"lr": "inf"}, "lr is 'inf'; give a number"),
        ({"timeout": 1e30}, "timeout is 1e"),
        ({"layers": 10**8}, "layers is 100000000; it should be less than"),
        ({"vocab_size": 10**30}, "it should be less than 2147483648"),
        ({"eval_every": 1, "eval_steps": 10**24}, "it should be less than or equal to 1048576"),
        ({"latency_us": 1e30, "gbit_per_s": 1}, "latency_us is 1e"),
        ({"ranks": "two"}, "ranks is 'two'; give a whole number"),
    ],
)
def test_a_number_that_no_run_can_have_is_refused_before_anything_starts(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError) as error:
        RunSpec(**settings)
    assert says in str(error.value)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"zero_stage": 2, "prefetch_bucket_size": 5}, "prefetch_bucket_size is 5 but stage 2 gathers nothing"),
        ({"zero_stage": 1, "max_live_parameters": 5}, "max_live_parameters is 5 but stage 1 gathers nothing"),
        ({"prefetch": False}, "prefetch is False but stage 0 gathers nothing"),
        ({"zero_stage": 3, "reduction": "all_reduce"}, "reduction is all_reduce but stage 3 keeps a shard"),
        ({"warmup_shape": "log"}, "warmup_shape is log but the learning rate does not warm up"),
    ],
)
def test_a_setting_that_its_stage_does_not_heed_is_refused(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        RunSpec(**settings)


# DeepSpeed's file

FILES: list[tuple[bytes, str]] = [
    (b"", "cannot be read as JSON"),
    (b'{"train_batch_size": 12 # said\n}', "cannot be read as JSON"),
    (b"null", "holds null, but a DeepSpeed configuration is an object"),
    (b"[]", "holds [], but"),
    (b'{"train_batch_size": ' + b"9" * 6000 + b"}", "cannot be read as JSON"),
    (b"[" * 100000, "cannot be read as JSON"),
    (b'{"bf16": true}', 'bf16 is true; give an object, with keys such as "enabled"'),
    (b'{"zero_optimization": [2]}', 'zero_optimization is [2]; give an object, with keys such as "stage"'),
    (b'{"optimizer": "AdamW"}', 'optimizer is "AdamW"; give an object, with keys such as "type"'),
    (b'{"optimizer": null}', "optimizer is null; give an object"),
    (b'{"scheduler": null}', "scheduler is null; give an object"),
    (
        b'{"zero_optimization": {"stage": 2, "offload_optimizer": "cpu"}}',
        'zero_optimization.offload_optimizer is "cpu"; give an object, with keys such as "device"',
    ),
    (b'{"zero_optimization": {"stage": true}}', "zero_optimization.stage is true; give a number"),
    (b'{"zero_optimization": {"stage": "2"}}', 'zero_optimization.stage is "2"; give a number'),
    (b'{"optimizer": {"type": "AdamW", "params": {"lr": "3e-4"}}}', 'optimizer.params.lr is "3e-4"; give a number'),
    (b'{"gradient_clipping": Infinity}', "gradient_clipping is Infinity; give a number"),
    (b'{"zero_optimization": {"mics_shard_size": 8}}', "mics_shard_size is no key that zerolab knows"),
]


@pytest.mark.parametrize(("content", "says"), FILES, ids=[says[:40] for _, says in FILES])
def test_row_22_a_deepspeed_file_that_is_none_is_one_sentence_and_status_2(
    content: bytes, says: str, tmp_path: Path, capsys: Captured
) -> None:
    path = tmp_path / "ds.json"
    path.write_bytes(content)
    said = refused(["train", "--deepspeed-config", str(path)], capsys)
    assert says in said and str(path) in said


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ('{"zero_optimization": {"stage": 2, "reduce_scatter": false}}', "reduction is all_reduce but stage 2 keeps"),
        ('{"zero_optimization": {"stage": 1, "offload_optimizer": {"device": "nvme"}}}', "name a folder there"),
        ('{"fp16": {"enabled": true}, "bf16": {"enabled": true}, "steps_per_print": 5}', "are both asked for"),
    ],
)
def test_row_22_what_a_run_refuses_of_a_file_is_one_sentence_too(
    content: str, says: str, tmp_path: Path, capsys: Captured
) -> None:
    path = tmp_path / "ds.json"
    path.write_text(content)
    assert says in refused(["train", "--deepspeed-config", str(path)], capsys)


def test_row_22_an_empty_section_and_an_optimizer_without_a_type_are_read(tmp_path: Path) -> None:
    path = tmp_path / "ds.json"
    path.write_text('{"bf16": {}, "optimizer": {"params": {"lr": 0.5}}, "zero_optimization": {}, "scheduler": {}}')
    reading = read_deepspeed(path, 2)
    assert reading.settings["lr"] == 0.5 and {*reading.settings} - reading.missing == {"lr"}
    assert "optimizer.type is not given: AdamW" in reading.notes


@pytest.mark.parametrize("kind", ["WarmupLR", "WarmupDecayLR", "WarmupCosineLR"])
def test_row_22_a_logarithmic_warm_up_is_deepspeeds_two_steps_ahead(kind: str, tmp_path: Path) -> None:
    params = {"warmup_num_steps": 1000} | ({} if kind == "WarmupLR" else {"total_num_steps": 2000})
    config = {"scheduler": {"type": kind, "params": params}, "train_batch_size": 12, "gradient_clipping": 1.0}
    path = tmp_path / "ds.json"
    path.write_text(str(config).replace("'", '"'))
    run = RunSpec(**read_deepspeed(path, 2).settings)
    # Its scheduler has the rate log(i + 1) / log(1000) from the step after the i-th on, and nothing in the first two.
    for step in (0, 1, 10, 500):
        theirs = run.lr * math.log(step + 2) / math.log(1000)
        assert run.schedule(step) == pytest.approx(theirs, rel=1e-3)
    assert run.schedule(1000) == pytest.approx(run.lr)
    assert write(run.model_dump())["scheduler"]["params"]["warmup_type"] == "log"
    rates = [RunSpec(warmup_steps=4, warmup_shape="log").schedule(step) for step in range(6)]
    assert rates == sorted(rates) and rates[0] > 0 and rates[4] == rates[5] == 1e-3


# nanoGPT's files


def test_row_13_a_stock_configuration_that_names_its_run_by_the_time_is_read(tmp_path: Path) -> None:
    path = tmp_path / "finetune.py"
    path.write_text(
        "import time\nwandb_run_name = 'ft-' + str(time.time())\nn_layer = n_head = 2\nmax_iters: int = 20\n"
    )
    read = read_assignments(path, {})
    assert {key: value for key, (value, _) in read.items()} == {"n_layer": 2, "n_head": 2, "max_iters": 20}
    for line in ("n_layer += 1", "a, b = 1, 2", "n_layer: int", "out_dir = str(1)"):
        path.write_text(f"n_layer = 2\n{line}\n")
        with pytest.raises(InputError, match=f"line 2: {re.escape(line)}"):
            read_assignments(path, {})


# Plans


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--gpu T4 --recommend --emit deepspeed --ranks 8 --model llama-3-405b", "no stage fits"),
        ("--gpu-memory inf", "--gpu-memory is 'inf'; give a number"),
        ("--batch-size 100000000000000000000 --ranks 1", "--batch-size is '100000000000000000000'"),
        ("--batch-size 7", "--batch-size 7 is not a multiple of ranks 8"),
        ("--seq-len 0", "--seq-len is '0'"),
        ("--bf16", "unrecognized arguments: --bf16"),
        ("--offload-optimizer gpu", "it should be 'device', 'host', 'disk', 'none', 'cpu' or 'nvme'"),
    ],
)
def test_a_plan_that_cannot_be_is_one_sentence_that_names_its_flag(words: str, says: str, capsys: Captured) -> None:
    assert says in refused(["plan", "--model", "gpt-2-124m", *words.split()], capsys)


@pytest.mark.parametrize(
    ("asked", "name"),
    [("gpt2", "GPT-2 124M"), ("gpt2-xl", "GPT-2 1.5B"), ("openai-community/gpt2-large", "GPT-2 774M"),
     ("meta-llama/Meta-Llama-3-8B", "Llama 3 8B"), ("meta-llama/Llama-2-7b-hf", "Llama 2 7B"),
     ("mistralai/Mixtral-8x7B-v0.1", "Mixtral 8x7B")],
)  # fmt: skip
def test_a_model_is_known_by_the_name_that_it_has_on_its_hub(asked: str, name: str) -> None:
    assert find_model(asked).name == name


# Heads and worlds


@pytest.mark.parametrize(("dialect", "says"), [("zerolab", "--no-tied-head"), ("megatron", "--untie-embeddings")])
def test_a_head_with_a_weight_of_its_own_is_written_and_read_again(
    dialect: str, says: str, capsys: Captured, tmp_path: Path
) -> None:
    emitted = ["--model", "layers=2,hidden=64,heads=2,kv_heads=1,ffn=96", "--ranks", "2", "--emit", dialect]
    assert main(["plan", *emitted, "--seq-len", "32", "--precision", "bf16"]) == 0
    assert says in capsys.readouterr().out
    (tied,) = {RunSpec(layers=2).architecture.tied_head}
    assert tied and not RunSpec(layers=2, tied_head=False).architecture.tied_head


def test_torchrun_may_bring_more_ranks_than_one_machine_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="ranks is 256"):
        check_here(RunSpec(ranks=256, batch_size=256))
    for name, value in {"RANK": "0", "WORLD_SIZE": "256", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    check_here(RunSpec(ranks=256, batch_size=256))
