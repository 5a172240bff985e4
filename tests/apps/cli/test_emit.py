"""What `zerolab plan --emit` prints, given to `zerolab train` again, is the run that was planned."""

import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from zerolab.apps.cli import main
from zerolab.apps.cli import plan as plan_command
from zerolab.data import prepare
from zerolab.errors import InputError
from zerolab.precision import Precision
from zerolab.run import RunSpec

GPT2 = "--model 'gpt2 nano' --seq-len 1024"
LLAMA = "--model 'llama nano' --seq-len 32"
PLANS = {
    f"{GPT2} --ranks 2 --zero-stage 1 --precision fp32": "zerolab megatron deepspeed nanogpt fsdp2 accelerate",
    f"{GPT2} --ranks 4 --zero-stage 0 --precision fp32 --batch-size 16 --grad-accum-steps 2": (
        "zerolab megatron deepspeed nanogpt fsdp2 accelerate"
    ),
    f"{GPT2} --ranks 2 --zero-stage 2 --precision fp16 --checkpoint-activations": "zerolab megatron deepspeed",
    f"{LLAMA} --ranks 4 --zero-stage 3 --batch-size 8 --checkpoint-activations": (
        "zerolab megatron deepspeed fsdp2 accelerate"
    ),
    f"{LLAMA} --ranks 2 --zero-stage 2 --offload-optimizer cpu": "zerolab megatron deepspeed accelerate",
    f"{LLAMA} --ranks 3 --zero-stage 3 --offload-optimizer host --offload-param host": "zerolab deepspeed accelerate",
    f"{LLAMA} --ranks 2 --zero-stage 3 --offload-optimizer nvme --offload-param disk --offload-path .": (
        "zerolab deepspeed accelerate"
    ),
    f"{LLAMA} --ranks 2 --zero-stage 2 --precision bf16_fp32_grads --defer-reduction": "zerolab fsdp2",
    f"{LLAMA} --ranks 2 --zero-stage 3 --precision fp8": "zerolab megatron",
    "--model layers=2,hidden=48,heads=4,kv_heads=2,ffn=80,vocabulary=300,context=64 --seq-len 64 --ranks 2": (
        "zerolab megatron deepspeed fsdp2 accelerate"
    ),
}
CASES = [(flags, dialect) for flags, dialects in PLANS.items() for dialect in dialects.split()]


def by_name(flags: str, names: tuple[str, ...]) -> list[str]:
    """Of a command line those flags that a DeepSpeed configuration has no key for."""
    words = shlex.split(flags)
    found = []
    for at, word in enumerate(words):
        if word in names:
            found += words[at : at + 1 if word == "--checkpoint-activations" else at + 2]
    return found


def meaning(run: RunSpec) -> dict[str, Any]:
    """What a run is, by whatever words it was described."""
    dtypes = run.dtypes or Precision()
    parts = (
        "ranks",
        "stage",
        "micro_batch_size",
        "micro_batches",
        "seq_len",
        "checkpoint_activations",
        "defer_reduction",
    )
    places = (run.places.optimizer, run.places.parameters)
    return {name: getattr(run, name) for name in parts} | {
        "config": run.architecture, "dtypes": {**vars(dtypes), "name": ""}, "places": places,
    }  # fmt: skip


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[RunSpec]:
    """The runs that `zerolab plan` reads."""
    seen: list[RunSpec] = []
    read = plan_command.read

    def noted(given: Any) -> Any:
        found = read(given)
        seen.append(found[0])
        return found

    monkeypatch.setattr(plan_command, "read", noted)
    return seen


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[RunSpec]:
    """The runs that `zerolab train` would begin."""
    seen: list[RunSpec] = []

    def begin(config: RunSpec, *_: Any) -> None:
        seen.append(config)
        raise InputError("this is enough; the run need not begin")

    monkeypatch.setattr("zerolab.train.run.train", begin)
    return seen


def words_of(dialect: str, text: str, flags: str, ranks: int) -> list[str]:
    """The command line that trains what was emitted to a file."""
    if dialect == "zerolab":
        return shlex.split(text.replace("\\\n", " "))[2:]
    if dialect == "megatron":
        return [f"--ranks={ranks}", *shlex.split(text.replace("\\\n", " "))]
    Path("emitted").write_text(text)
    if dialect == "nanogpt":
        return ["--config", "emitted", "--dataset=fox", f"--ranks={ranks}", "--out_dir=out"]
    model = shlex.split(flags)[1]
    ours = {
        "gpt2 nano": "--model gpt2 --model-size nano --context 1024",
        "llama nano": "--model-size nano --context 1024",
    }
    sizes = "--layers 2 --dim 48 --heads 4 --kv-heads 2 --ffn-dim 80 --vocab-size 300 --context 64 --no-tied-head"
    beside = by_name(flags, ("--seq-len", "--checkpoint-activations"))
    return ["--deepspeed-config", "emitted", f"--ranks={ranks}", *ours.get(model, sizes).split(), *beside]


@pytest.mark.parametrize(("flags", "dialect"), [case for case in CASES if case[1] not in ("fsdp2", "accelerate")])
def test_what_a_plan_emits_is_read_as_the_run_that_was_planned(
    flags: str, dialect: str, planned: list[RunSpec], trained: list[RunSpec], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    Path("fox.txt").write_text("the quick brown fox jumps over the lazy dog; " * 300)
    prepare("fox.txt", Path("data/fox"))
    assert main(["plan", *shlex.split(flags), "--emit", dialect]) == 0
    text = capsys.readouterr().out
    words = words_of(dialect, text, flags, planned[0].ranks)
    main(["train", *words])
    assert trained, capsys.readouterr().err
    assert meaning(trained[0]) == meaning(planned[0])


@pytest.mark.parametrize(("flags", "dialect"), [case for case in CASES if case[1] in ("fsdp2", "accelerate")])
def test_what_a_plan_emits_for_others_says_its_ranks_and_batches(
    flags: str, dialect: str, planned: list[RunSpec], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", *shlex.split(flags), "--emit", dialect]) == 0
    text, run = capsys.readouterr().out, planned[0]
    if dialect == "accelerate":
        assert yaml.safe_load(text)["num_processes"] == run.ranks
        assert f"micro-batches of {run.micro_batch_size} a rank" in text
        return
    names: dict[str, Any] = {"__name__": "emitted"}
    exec(compile(text, "emitted.py", "exec"), names)
    assert names["MICRO_BATCHES"] == run.micro_batches
    assert f"--nproc_per_node {run.ranks}" in text
    shape = run.architecture
    sizes = (shape.layers, shape.dim, shape.heads, shape.vocab_size, run.seq_len)
    assert tuple(names[name] for name in ("LAYERS", "WIDTH", "HEADS", "VOCABULARY", "SEQ_LEN")) == sizes


REFUSED = {
    f"{LLAMA} --emit nanogpt": ["nanoGPT has GPT-2 alone"],
    "--model 'gpt2 nano' --seq-len 16 --precision fp32 --emit nanogpt": ["16", "1024", "nanoGPT"],
    f"{LLAMA} --attention eager --emit zerolab": ["--attention is eager", "leave it out"],
    f"{LLAMA} --zero-stage 3 --offload-param disk --emit deepspeed": ["--offload-path"],
    f"{LLAMA} --zero-stage 3 --offload-param disk --emit zerolab": ["--offload-path"],
    "--model Mixtral-8x7B --emit zerolab": ["Mixtral 8x7B has experts"],
    f"{LLAMA} --emit deepspeeed": ["--emit is 'deepspeeed'", "deepspeed"],
}


@pytest.mark.parametrize("flags", REFUSED)
def test_what_cannot_be_emitted_is_one_sentence_and_status_2(flags: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *shlex.split(flags)]) == 2
    seen = capsys.readouterr()
    assert seen.out == "" and len(seen.err.splitlines()) == 1
    assert all(word in seen.err for word in REFUSED[flags]), seen.err


def test_an_emitted_run_that_does_not_fit_is_said_beside_it(capsys: pytest.CaptureFixture[str]) -> None:
    run = ["plan", *shlex.split(GPT2), "--ranks", "2", "--precision", "fp32", "--emit", "zerolab", "--gpu-memory"]
    assert main([*run, "0.001"]) == 0
    seen = capsys.readouterr()
    assert seen.out.startswith("zerolab train") and "Does not fit: 0." in seen.err
    assert main([*run, "8"]) == 0
    again = capsys.readouterr()
    assert again.out == seen.out and again.err == ""
